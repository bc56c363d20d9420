//! Journal: a ring of records, its head, its tail and the hash chain.
//!
//! Positions are pages counted from the store's first record on; modulo the length they give the place in the
//! ring. A record never wraps: if it does not fit before the end of the ring, it starts at the ring's first
//! page.
//! Invariants
//! - Nothing between tail and head is overwritten; the tail moves only when the superblock that passes it is
//!   durable (OBJ-7).
//! - One sixteenth is reserved for records that free space and for mounts.

use crate::format::{hash64, record, record::RecordHeader, run::PageRun};

/// Longest record in bytes, for a journal of any size.
const RECORD_BYTES_MAX: u64 = 4 << 20;

/// A record about to be written.
pub(crate) struct NewRecord<'a> {
    pub(crate) position: u64,
    pub(crate) ops: &'a [u8],
    pub(crate) transactions: u16,
    pub(crate) first_lsn: u64,
    pub(crate) epoch: u64,
    pub(crate) flushed_epoch: u64,
}

/// Place and header fields of the next record.
#[derive(Debug)]
pub(crate) struct JournalRing {
    /// First page on the device.
    pub(crate) at: u64,
    pub(crate) pages: u64,
    pub(crate) head: u64,
    pub(crate) tail: u64,
    pub(crate) seq: u64,
    /// Records below this are durable.
    pub(crate) flushed_seq: u64,
    /// Hash of the last record, or the chain seed.
    pub(crate) previous: u64,
    pub(crate) mount: u64,
    pub(crate) store: u64,
    pub(crate) page_bytes: usize,
}

impl JournalRing {
    /// Longest record in bytes: min(journal/8, 4 MiB), at least a page.
    pub(crate) fn record_bytes_max(&self) -> usize {
        let page = self.page_bytes as u64;
        ((self.pages / 8 * page).min(RECORD_BYTES_MAX).max(page)) as usize
    }

    /// Pages reserved for records that free space.
    pub(crate) fn kept_pages(&self) -> u64 {
        (self.pages / 16).max(1)
    }

    pub(crate) fn used_pages(&self) -> u64 {
        self.head - self.tail
    }

    /// Position of a record of `pages` pages that leaves `keep` pages; `None` if the ring is full.
    pub(crate) fn place(&self, pages: u64, keep: u64) -> Option<u64> {
        let within = self.head % self.pages;
        let skip = if within + pages > self.pages { self.pages - within } else { 0 };
        let at = self.head + skip;
        (at + pages - self.tail <= self.pages - keep.min(self.pages)).then_some(at)
    }

    /// Position of a record of so many bytes of operations, if there is room; `releasing` ones may use the
    /// reserved part.
    pub(crate) fn position_of(&self, ops_bytes: usize, releasing: bool) -> Option<u64> {
        let pages = record::pages_for(ops_bytes, self.page_bytes) as u64;
        let keep = if releasing { 0 } else { self.kept_pages() };
        self.place(pages, keep)
    }

    /// Device run of a record at position `position`.
    pub(crate) fn run(&self, position: u64, pages: u64) -> PageRun {
        PageRun::new(self.at + position % self.pages, pages as u32)
    }

    /// Encodes the record into `out` and moves the head behind it.
    pub(crate) fn write(&mut self, record: &NewRecord<'_>, out: &mut [u8]) {
        let header = RecordHeader {
            store: self.store,
            mount: self.mount,
            seq: self.seq,
            previous: self.previous,
            transactions: record.transactions,
            epoch: record.epoch,
            flushed_epoch: record.flushed_epoch,
            first_lsn: record.first_lsn,
            flushed_seq: self.flushed_seq,
        };
        record::encode(&header, record.ops, out);
        self.previous = hash64(out);
        self.seq += 1;
        self.head = record.position + (out.len() / self.page_bytes) as u64;
    }
}
