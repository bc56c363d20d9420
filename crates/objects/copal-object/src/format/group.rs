//! Group record: the record of the `log` backend, which holds the data of its group.
//!
//! Layout, in whole pages: header and first operations; data; the remaining operations.
//! Format: docs/formats/object-segment.md v1
//! Invariants
//! - The record's sum covers header and operations, and the header holds the sum of the data. So a walk reads the
//!   data only where its durability is unknown.
//! - The header names its own page. Data that looks like a record, such as a copy of a store, is therefore none.

use super::{
    hash64,
    ops::RecordOp,
    record::{self, RecordError, RecordHeader},
};
use copal_codec::{Put, Reader, crc32c};

/// Bytes before the operations.
pub(crate) const HEADER_LEN: usize = record::HEADER_LEN + 16;
const MAGIC: u32 = 0x474c_5043; // "CPLG"
const SUM_AT: usize = 4;

/// Header of a group record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupHeader {
    pub(crate) record: RecordHeader,
    /// Page of this header.
    pub(crate) at: u64,
    /// Pages of data behind the first page.
    pub(crate) data_pages: u32,
    /// Their sum, by [`SumRule::Hashes`](super::sum_rule::SumRule).
    pub(crate) data_sum: u32,
}

/// Shape of a group record, as its first page claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupShape {
    pub(crate) data_pages: u32,
    /// Pages of operations behind the data.
    pub(crate) rest_pages: u32,
}

impl GroupShape {
    /// All pages of the record.
    pub(crate) fn pages(self) -> u64 {
        1 + u64::from(self.data_pages) + u64::from(self.rest_pages)
    }
}

/// Pages behind the data for `ops_len` bytes of operations.
pub(crate) fn rest_pages(ops_len: usize, page_bytes: usize) -> u32 {
    (HEADER_LEN + ops_len).div_ceil(page_bytes) as u32 - 1
}

/// Encodes header and operations into `first`, one page, and `rest`, the pages behind the data. Returns the hash
/// that the next record carries.
///
/// # Panics
/// When `ops` does not fit: the caller sized `rest` with [`rest_pages`].
pub(crate) fn encode(header: &GroupHeader, ops: &[u8], first: &mut [u8], rest: &mut [u8]) -> u64 {
    let mut head = Vec::with_capacity(HEADER_LEN);
    head.put_u32(MAGIC);
    head.put_u32(0);
    header.record.put(HEADER_LEN + ops.len(), &mut head);
    head.put_u64(header.at);
    head.put_u32(header.data_pages);
    head.put_u32(header.data_sum);
    debug_assert_eq!(head.len(), HEADER_LEN);
    first.fill(0);
    rest.fill(0);
    first[..HEADER_LEN].copy_from_slice(&head);
    let (here, behind) = ops.split_at(ops.len().min(first.len() - HEADER_LEN));
    first[HEADER_LEN..HEADER_LEN + here.len()].copy_from_slice(here);
    rest[..behind.len()].copy_from_slice(behind);
    let sum = crc32c(crc32c(0, first), rest);
    first[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    hash_of(first, rest)
}

/// Hash of a record's pages except those of data.
fn hash_of(first: &[u8], rest: &[u8]) -> u64 {
    if rest.is_empty() { hash64(first) } else { hash64(&[first, rest].concat()) }
}

/// Shape of the record whose first page is `first`, if it lies at page `at` and has at most `pages_max` pages. Not
/// verified yet; the reader fetches the rest with it.
pub(crate) fn claimed_shape(first: &[u8], at: u64, pages_max: u64) -> Result<GroupShape, RecordError> {
    let mut input = Reader::new(first);
    if input.u32()? != MAGIC {
        return Err(RecordError::Magic);
    }
    input.bytes(36)?;
    let len = input.u32()? as usize;
    input.bytes(36)?;
    let is_here = input.u64()? == at;
    let data_pages = input.u32()?;
    if !is_here || len < HEADER_LEN {
        return Err(RecordError::Length);
    }
    let rest_pages = rest_pages(len - HEADER_LEN, first.len());
    let shape = GroupShape { data_pages, rest_pages };
    if shape.pages() > pages_max { Err(RecordError::Length) } else { Ok(shape) }
}

/// A decoded record.
#[derive(Debug, PartialEq)]
pub(crate) struct GroupRecord {
    pub(crate) header: GroupHeader,
    pub(crate) ops: Vec<RecordOp>,
    /// The encoded operations.
    pub(crate) encoded: Vec<u8>,
    /// The hash that the next record carries.
    pub(crate) hash: u64,
}

/// Checks the record with the first page `first` and the pages `rest` behind its data. Not checked here: the data,
/// store, mount, seq and chain.
pub(crate) fn decode(first: &[u8], rest: &[u8]) -> Result<GroupRecord, RecordError> {
    let mut input = Reader::new(first);
    if input.u32()? != MAGIC {
        return Err(RecordError::Magic);
    }
    let stored = input.u32()?;
    let (record, len) = RecordHeader::take(&mut input)?;
    let header = GroupHeader { record, at: input.u64()?, data_pages: input.u32()?, data_sum: input.u32()? };
    let most = first.len() + rest.len();
    if !(HEADER_LEN..=most).contains(&len)
        || rest_pages(len - HEADER_LEN, first.len()) as usize * first.len() != rest.len()
    {
        return Err(RecordError::Length);
    }
    let (before, behind) = first.split_at(SUM_AT);
    let computed = crc32c(crc32c(crc32c(crc32c(0, before), &[0; 4]), &behind[4..]), rest);
    if stored != computed {
        return Err(RecordError::Sum);
    }
    header.record.validate()?;
    let ops_len = len - HEADER_LEN;
    let here = ops_len.min(first.len() - HEADER_LEN);
    let encoded = [&first[HEADER_LEN..HEADER_LEN + here], &rest[..ops_len - here]].concat();
    let ops = record::decode_ops(&encoded)?;
    Reader::new(&first[HEADER_LEN + here..]).zeros(first.len() - HEADER_LEN - here)?;
    Reader::new(&rest[ops_len - here..]).zeros(rest.len() - (ops_len - here))?;
    let hash = hash_of(first, rest);
    Ok(GroupRecord { header, ops, encoded, hash })
}
