//! Index page: for a key, the block of a partition that would hold it. About 5 bytes per block.
//!
//! Format: docs/formats/kv-table.md v1, "Index page"
//! Invariants
//! - Separator i is greater than every key of block i-1 and not greater than any of block i. Where one key's
//!   versions continue into block i, the separator is that key with the first sequence of block i.
//! - All separators begin with the partition's common prefix, stored once.
//! - A page is checked completely once, when it is loaded; block sizes add up to the partition's data length.

use super::{
    block::{TARGET_BYTES, TRAILER_BYTES, common_prefix, seed},
    error::Damage,
};
use crate::format::entry::{MAX_KEY_BYTES, MAX_SEQ, compare};
use copal_codec::{Put, Reader, crc32c};
use std::{cmp::Ordering, ops::Range};

/// Entries between two directly addressable ones.
const RESTART_INTERVAL: u32 = 16;
/// Entry position u32, block offset u64.
const RESTART_BYTES: usize = 12;
/// Prefix length u32, blocks u32, checksum u32.
const TRAILER: usize = 12;
/// Block number that seeds the checksum of the index page.
const SEED_NUMBER: u32 = u32::MAX;

/// Place of one block in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockAt {
    /// Number of the block in its partition.
    pub(crate) number: u32,
    /// First byte, from the start of the partition.
    pub(crate) offset: u64,
    /// Bytes, trailer included.
    pub(crate) len: u64,
}

impl BlockAt {
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.len
    }
}

/// Builder of an index page: separators and sizes of one partition's blocks.
#[derive(Default)]
pub(crate) struct IndexBuilder {
    blocks: Vec<BuiltEntry>,
    separators: Vec<u8>,
}

struct BuiltEntry {
    len: u64,
    separator_end: usize,
    /// First sequence of the block if it continues a key.
    continues: Option<u64>,
}

impl IndexBuilder {
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Approximate bytes of the page so far.
    pub(crate) fn bytes(&self) -> usize {
        self.separators.len() + 4 * self.blocks.len() + TRAILER
    }

    /// Adds a block. `last_before` is the last key of the preceding block in the partition; `first` is the
    /// block's own first key and sequence.
    pub(crate) fn add(&mut self, last_before: Option<&[u8]>, first: (&[u8], u64), len: u64) {
        let mut continues = None;
        match last_before {
            None => {}
            Some(last) if last == first.0 => {
                continues = Some(first.1);
                self.separators.extend_from_slice(first.0);
            }
            Some(last) => self.separators.extend_from_slice(shortest_after(last, first.0)),
        }
        self.blocks.push(BuiltEntry { len, separator_end: self.separators.len(), continues });
    }

    /// Appends the page to `out` and starts an empty one. `first` and `last` are the keys of the partition.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>, first: &[u8], last: &[u8], uid: u64) {
        let prefix = &first[..common_prefix(first, last)];
        let (from, mut restarts) = (out.len(), Vec::new());
        let (mut offset, mut before, mut separator_at) = (0u64, TARGET_BYTES as u64, 0);
        for (i, block) in self.blocks.iter().enumerate() {
            if (i as u32).is_multiple_of(RESTART_INTERVAL) {
                restarts.put_u32((out.len() - from) as u32);
                restarts.put_u64(offset);
                before = TARGET_BYTES as u64;
            }
            out.put_varint(zigzag(block.len as i64 - before as i64));
            if i > 0 {
                let separator = &self.separators[separator_at + prefix.len()..block.separator_end];
                out.put_varint((separator.len() as u64) << 1 | u64::from(block.continues.is_some()));
                out.put_bytes(separator);
                if let Some(seq) = block.continues {
                    out.put_varint(seq);
                }
            }
            (offset, before, separator_at) = (offset + block.len, block.len, block.separator_end);
        }
        out.put_bytes(&restarts);
        out.put_bytes(prefix);
        out.put_u32(prefix.len() as u32);
        out.put_u32(self.blocks.len() as u32);
        let sum = crc32c(seed(uid, SEED_NUMBER), &out[from..]);
        out.put_u32(sum);
        self.blocks.clear();
        self.separators.clear();
    }
}

/// The shortest prefix of `first` that is greater than `last`; `last < first`.
pub(crate) fn shortest_after<'a>(last: &[u8], first: &'a [u8]) -> &'a [u8] {
    &first[..(common_prefix(last, first) + 1).min(first.len())]
}

fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// A checked index page.
#[derive(Debug)]
pub(crate) struct IndexPage {
    bytes: Box<[u8]>,
    restarts_at: usize,
    prefix_at: usize,
    prefix_end: usize,
    blocks: u32,
    data_len: u64,
}

/// Separator of one block.
struct KeySeparator<'a> {
    suffix: &'a [u8],
    continues: Option<u64>,
}

impl IndexPage {
    /// Decodes and checks a stored page of a partition of `data_len` bytes.
    pub(crate) fn decode(stored: &[u8], uid: u64, data_len: u64) -> Result<IndexPage, Damage> {
        let (checked, sum) = stored.split_last_chunk::<4>().ok_or(Damage::Field("length"))?;
        let (sum, computed) = (u32::from_le_bytes(*sum), crc32c(seed(uid, SEED_NUMBER), checked));
        if sum != computed {
            return Err(Damage::Checksum { stored: sum, computed });
        }
        let (rest, trailer) = checked.split_last_chunk::<{ TRAILER - 4 }>().ok_or(Damage::Field("length"))?;
        let mut trailer = Reader::new(trailer);
        let (prefix_len, blocks) = (trailer.u32()? as usize, trailer.u32()?);
        if prefix_len > MAX_KEY_BYTES || blocks == 0 {
            return Err(Damage::Field("prefix length or number of blocks"));
        }
        let restarts = blocks.div_ceil(RESTART_INTERVAL) as usize * RESTART_BYTES;
        let prefix_at = rest.len().checked_sub(prefix_len).ok_or(Damage::Field("prefix length"))?;
        let restarts_at = prefix_at.checked_sub(restarts).ok_or(Damage::Field("number of blocks"))?;
        let page = IndexPage {
            bytes: rest.into(),
            restarts_at,
            prefix_at,
            prefix_end: rest.len(),
            blocks,
            data_len,
        };
        page.check()?;
        Ok(page)
    }

    /// Checks all entries: sizes add up, separators ascend, restarts point to their entries.
    fn check(&self) -> Result<(), Damage> {
        let mut walk = IndexWalk::from_restart(self, 0)?;
        let mut before: Option<(&[u8], u64)> = None;
        for number in 0..self.blocks {
            if number.is_multiple_of(RESTART_INTERVAL)
                && self.restart(number / RESTART_INTERVAL)? != (walk.from.position(), walk.next_offset)
            {
                return Err(Damage::Field("restart"));
            }
            let (block, separator) = walk.step(number)?;
            if block.len < TRAILER_BYTES as u64 || walk.next_offset > self.data_len {
                return Err(Damage::Field("block length"));
            }
            if number > 0 {
                let here = (separator.suffix, separator.continues.unwrap_or(MAX_SEQ));
                if before.is_some_and(|before| compare(before, here) != Ordering::Less) {
                    return Err(Damage::Order);
                }
                before = Some(here);
            }
        }
        if walk.next_offset != self.data_len || walk.from.position() != self.restarts_at {
            return Err(Damage::Field("data length"));
        }
        Ok(())
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Bytes of heap memory of this page.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The block that holds `(key, seq)`, if the partition does.
    pub(crate) fn find(&self, key: &[u8], seq: u64) -> Result<BlockAt, Damage> {
        let prefix = &self.bytes[self.prefix_at..self.prefix_end];
        let Some(suffix) = key.strip_prefix(prefix) else {
            return self.block(if key < prefix { 0 } else { self.blocks - 1 });
        };
        // `!=` Greater: the separator is at or before the wanted position.
        let (mut low, mut high) = (1, self.blocks.div_ceil(RESTART_INTERVAL));
        while low < high {
            let middle = low + (high - low) / 2;
            let (_, separator) = IndexWalk::from_restart(self, middle)?.step(middle * RESTART_INTERVAL)?;
            if separator.compare(suffix, seq) == Ordering::Greater {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let restart = low - 1;
        let mut walk = IndexWalk::from_restart(self, restart)?;
        let from = restart * RESTART_INTERVAL;
        let (mut found, _) = walk.step(from)?;
        for number in from + 1..self.blocks.min(from + RESTART_INTERVAL) {
            let (block, separator) = walk.step(number)?;
            if separator.compare(suffix, seq) == Ordering::Greater {
                break;
            }
            found = block;
        }
        Ok(found)
    }

    /// Block `number`; the caller ensures that it is below [`IndexPage::blocks`].
    pub(crate) fn block(&self, number: u32) -> Result<BlockAt, Damage> {
        if number >= self.blocks {
            return Err(Damage::Field("block number"));
        }
        let restart = number / RESTART_INTERVAL;
        let mut walk = IndexWalk::from_restart(self, restart)?;
        for before in restart * RESTART_INTERVAL..number {
            walk.step(before)?;
        }
        Ok(walk.step(number)?.0)
    }

    fn restart(&self, i: u32) -> Result<(usize, u64), Damage> {
        let at = self.restarts_at + i as usize * RESTART_BYTES;
        let mut from = Reader::new(self.bytes.get(at..self.prefix_at).ok_or(Damage::Field("restart"))?);
        Ok((from.u32()? as usize, from.u64()?))
    }
}

impl KeySeparator<'_> {
    fn compare(&self, suffix: &[u8], seq: u64) -> Ordering {
        compare((self.suffix, self.continues.unwrap_or(MAX_SEQ)), (suffix, seq))
    }
}

/// Reads entries one after another.
struct IndexWalk<'a> {
    from: Reader<'a>,
    next_offset: u64,
    len_before: u64,
}

impl<'a> IndexWalk<'a> {
    fn from_restart(page: &'a IndexPage, restart: u32) -> Result<IndexWalk<'a>, Damage> {
        let (at, offset) = page.restart(restart)?;
        let mut from = Reader::new(&page.bytes[..page.restarts_at]);
        from.bytes(at)?;
        Ok(IndexWalk { from, next_offset: offset, len_before: TARGET_BYTES as u64 })
    }

    /// Reads entry `number`, which must be the next one.
    fn step(&mut self, number: u32) -> Result<(BlockAt, KeySeparator<'a>), Damage> {
        if number.is_multiple_of(RESTART_INTERVAL) {
            self.len_before = TARGET_BYTES as u64;
        }
        let delta = unzigzag(self.from.varint()?);
        let len = self.len_before.checked_add_signed(delta).ok_or(Damage::Field("block length"))?;
        let block = BlockAt { number, offset: self.next_offset, len };
        self.next_offset = self.next_offset.checked_add(len).ok_or(Damage::Field("block length"))?;
        self.len_before = len;
        let mut separator = KeySeparator { suffix: &[], continues: None };
        if number > 0 {
            let head = self.from.bounded(MAX_KEY_BYTES << 1 | 1)?;
            separator.suffix = self.from.bytes(head >> 1)?;
            if head & 1 == 1 {
                separator.continues = Some(self.from.varint()?);
            }
        }
        Ok((block, separator))
    }
}

/// Any bytes as a page with a valid checksum.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn crafted(bytes: &[u8], uid: u64) -> Vec<u8> {
    let mut page = bytes.to_vec();
    page.put_u32(crc32c(seed(uid, SEED_NUMBER), bytes));
    page
}
