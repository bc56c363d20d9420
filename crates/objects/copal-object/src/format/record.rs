//! Journal record: the operations of one commit group.
//!
//! Format: docs/formats/object-record.md v1
//! Invariants
//! - The sum covers the whole pages of the record, header and padding included.
//! - `previous` is the XXH3-64 of the previous record: a stale record cannot follow a new one.

use super::ops::RecordOp;
use copal_codec::{DecodeError, Put, Reader, crc32c};

/// Bytes before the operations.
pub(crate) const HEADER_LEN: usize = 80;
const MAGIC: u32 = 0x4c4a_5043; // "CPJL"
const SUM_AT: usize = 4;
/// Longest record in bytes, for a journal of any size.
const RECORD_BYTES_MAX: u64 = 4 << 20;
/// Beyond any number of records, epochs or commits that a store can reach.
pub(crate) const COUNTER_MAX: u64 = 1 << 62;

/// Header of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    /// Low half of the store's uuid.
    pub(crate) store: u64,
    pub(crate) mount: u64,
    /// Counts records, through all mounts.
    pub(crate) seq: u64,
    pub(crate) previous: u64,
    /// Number of transactions; their positions are `first_lsn..`.
    pub(crate) transactions: u16,
    /// Epoch that was open when it was written.
    pub(crate) epoch: u64,
    /// Everything of epochs up to this is durable.
    pub(crate) flushed_epoch: u64,
    pub(crate) first_lsn: u64,
    /// Records below this number are durable.
    pub(crate) flushed_seq: u64,
}

impl RecordHeader {
    /// Appends the fields behind the sum; `len` counts header and operations.
    pub(super) fn put(&self, len: usize, out: &mut Vec<u8>) {
        for word in [self.store, self.mount, self.seq, self.previous] {
            out.put_u64(word);
        }
        out.put_u32(len as u32);
        out.put_u16(self.transactions);
        out.put_u16(0);
        for word in [self.epoch, self.flushed_epoch, self.first_lsn, self.flushed_seq] {
            out.put_u64(word);
        }
    }

    /// Reads the fields behind the sum: the header, and the bytes of header and operations. Nothing is verified.
    pub(super) fn take(input: &mut Reader<'_>) -> Result<(RecordHeader, usize), DecodeError> {
        let [store, mount, seq, previous] = [input.u64()?, input.u64()?, input.u64()?, input.u64()?];
        let len = input.u32()? as usize;
        let transactions = input.u16()?;
        input.zeros(2)?;
        let header = RecordHeader {
            store,
            mount,
            seq,
            previous,
            transactions,
            epoch: input.u64()?,
            flushed_epoch: input.u64()?,
            first_lsn: input.u64()?,
            flushed_seq: input.u64()?,
        };
        Ok((header, len))
    }

    /// No counter is near its end, so that continuing from it cannot overflow.
    pub(super) fn validate(&self) -> Result<(), RecordError> {
        let counters = [self.seq, self.epoch, self.flushed_epoch, self.first_lsn, self.flushed_seq];
        if counters.iter().any(|&counter| counter >= COUNTER_MAX) { Err(RecordError::Length) } else { Ok(()) }
    }
}

/// Reason why bytes are not a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("no record")]
    Magic,
    #[error("its length is impossible")]
    Length,
    #[error("its checksum differs")]
    Sum,
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// Encodes a record into `out`, whose length is the whole pages it takes.
///
/// # Panics
/// When `ops` does not fit: the caller sized `out` with [`pages_for`].
pub(crate) fn encode(header: &RecordHeader, ops: &[u8], out: &mut [u8]) {
    let used = HEADER_LEN + ops.len();
    assert!(used <= out.len(), "the buffer was sized for the record");
    let mut head = Vec::with_capacity(HEADER_LEN);
    head.put_u32(MAGIC);
    head.put_u32(0);
    header.put(used, &mut head);
    debug_assert_eq!(head.len(), HEADER_LEN);
    out[..HEADER_LEN].copy_from_slice(&head);
    out[HEADER_LEN..used].copy_from_slice(ops);
    out[used..].fill(0);
    let sum = crc32c(0, out);
    out[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
}

/// Pages of a record with `ops_len` bytes of operations.
pub(crate) fn pages_for(ops_len: usize, page_bytes: usize) -> usize {
    (HEADER_LEN + ops_len).div_ceil(page_bytes)
}

/// Longest record in bytes of a journal of `journal_pages` pages: min(journal/8, 4 MiB), at least a page.
pub(crate) fn bytes_max(journal_pages: u64, page_bytes: usize) -> usize {
    let page = page_bytes as u64;
    (journal_pages / 8 * page).min(RECORD_BYTES_MAX).max(page) as usize
}

/// Length in bytes that the record at the start of `bytes` claims, header included, if it is at most `max`.
/// The reader fetches the rest with it before [`decode`].
pub(crate) fn claimed_len(bytes: &[u8], max: usize) -> Result<usize, RecordError> {
    let mut input = Reader::new(bytes);
    if input.u32()? != MAGIC {
        return Err(RecordError::Magic);
    }
    input.bytes(36)?;
    let len = input.u32()? as usize;
    if !(HEADER_LEN..=max).contains(&len) {
        return Err(RecordError::Length);
    }
    Ok(len)
}

/// Checks the record that fills the whole pages `bytes`; returns its header and operations.
/// Not checked here: store, mount, seq and chain.
pub(crate) fn decode(bytes: &[u8]) -> Result<(RecordHeader, Vec<RecordOp>), RecordError> {
    let len = claimed_len(bytes, bytes.len())?;
    let (before, rest) = bytes.split_at(SUM_AT);
    let stored = Reader::new(rest).u32()?;
    let computed = crc32c(crc32c(crc32c(0, before), &[0; 4]), &rest[4..]);
    if stored != computed {
        return Err(RecordError::Sum);
    }
    let mut input = Reader::new(&bytes[..len]);
    input.bytes(8)?;
    let (header, _) = RecordHeader::take(&mut input)?;
    header.validate()?;
    let ops = decode_ops(input.rest())?;
    Reader::new(&bytes[len..]).zeros(bytes.len() - len)?;
    Ok((header, ops))
}

/// The operations of a record, which follow its header.
pub(crate) fn decode_ops(bytes: &[u8]) -> Result<Vec<RecordOp>, DecodeError> {
    let mut input = Reader::new(bytes);
    let mut ops = Vec::new();
    while !input.is_empty() {
        ops.push(RecordOp::decode(&mut input)?);
    }
    Ok(ops)
}
