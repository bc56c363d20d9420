//! Places of journal records: a ring of pages, unless a backend places records with its data.
//!
//! Positions in the ring are pages counted from the store's first record on; modulo the length they give the
//! place in the ring. A record never wraps: if it does not fit before the end of the ring, it starts at the
//! ring's first page.
//! Invariants
//! - Nothing between tail and head is overwritten; the tail moves only when the superblock that passes it is
//!   durable (OBJ-7).
//! - One sixteenth of the ring is reserved for records that free space and for mounts.

use crate::format::{hash64, record, record::RecordHeader, run::PageRun, segment::ChainSegment};
use bytes::Bytes;
use copal_device::AlignedBuf;
use std::fmt::Debug;

/// The place of the next record, and the records that recovery would replay.
pub(crate) trait JournalPlace: Debug {
    /// Longest record in bytes.
    fn record_bytes_max(&self) -> usize;

    /// Position of the next record.
    fn head(&self) -> u64;

    /// The segment with the head.
    fn segment(&self) -> ChainSegment {
        ChainSegment::default()
    }

    /// Pages of the records that recovery would replay, and of skipped space between them.
    fn used_pages(&self) -> u64;

    /// Most pages that these may have.
    fn pages(&self) -> u64;

    /// Whether there is room for a record of so many bytes of operations; `releasing` ones may use the reserved
    /// part.
    fn fits(&self, ops_bytes: usize, releasing: bool) -> bool;

    /// Whether a record of so many bytes of operations fits exactly at the head.
    fn fits_at_head(&self, ops_bytes: usize) -> bool;

    /// Takes the place of the next record and moves the head behind it. `None`: there is no room.
    fn take(&mut self, ops_bytes: usize, releasing: bool) -> Option<PageRun>;

    /// Records before `tail` may be overwritten.
    fn reuse(&mut self, tail: u64);

    /// Encodes the record whose place was just taken into `out`; returns the hash that the next record carries.
    fn encode(&mut self, header: &RecordHeader, ops: &[u8], out: &mut [u8]) -> u64 {
        record::encode(header, ops, out);
        hash64(out)
    }

    /// Whether the open group has room for `ops_bytes` bytes of operations in all.
    fn admits(&self, ops_bytes: usize) -> bool {
        record::HEADER_LEN + ops_bytes <= self.record_bytes_max()
    }

    /// Most pages of data that one transaction can have in a group.
    fn group_pages(&self) -> u64 {
        0
    }

    /// Ensures that the open group has room for `pages` more pages of data and `ops_bytes` more bytes of operations.
    /// `false`: it must be closed first, or the next segment cannot be entered yet.
    fn prepare_data(&mut self, _pages: u64, _ops_bytes: usize) -> bool {
        true
    }

    /// The open group has `ops_bytes` bytes of operations.
    fn note_ops(&mut self, _ops_bytes: usize) {}

    /// Segments of records that a checkpoint would pass.
    fn passable_segments(&self) -> usize {
        0
    }

    /// Whether the space of records that a checkpoint passes is needed now.
    fn is_short(&self) -> bool {
        false
    }

    /// Whether records cannot go on behind the current segment, since no segment is free.
    fn lacks_segment(&self) -> bool {
        false
    }

    /// Whether records hold data, so that reads may wait for them.
    fn has_data(&self) -> bool {
        false
    }

    /// Keeps the bytes of `run` for the open group's record; gives them back if `run` does not lie there.
    fn fill(&mut self, _run: PageRun, bytes: AlignedBuf) -> Option<AlignedBuf> {
        Some(bytes)
    }

    /// Bytes of a page that waits for the open group's record.
    fn page(&self, _at: u64) -> Option<Bytes> {
        None
    }

    /// Whether a page of `run` waits for the open group's record.
    fn holds(&self, _run: PageRun) -> bool {
        false
    }

    /// A segment header to write now.
    fn take_header(&mut self) -> Option<(PageRun, AlignedBuf)> {
        None
    }

    /// Pages that will hold records, to fill with zeros now: the first write to a block of a file costs metadata.
    fn take_zeros(&mut self) -> Option<PageRun> {
        None
    }

    /// The zeros of [`JournalPlace::take_zeros`] are written.
    fn zeros_written(&mut self, _run: PageRun) {}

    /// The header was written while `epoch` was open.
    fn header_written(&mut self, _epoch: u64) {}

    /// The epoch that must be flushed before the head can enter the next segment.
    fn awaited_epoch(&self) -> Option<u64> {
        None
    }
}

/// The ring.
#[derive(Clone, Debug, Default)]
pub(crate) struct JournalRing {
    /// First page on the device.
    pub(crate) at: u64,
    pub(crate) pages: u64,
    pub(crate) head: u64,
    pub(crate) tail: u64,
    pub(crate) page_bytes: usize,
}

impl JournalRing {
    /// Pages reserved for records that free space.
    fn kept_pages(&self) -> u64 {
        (self.pages / 16).max(1)
    }

    /// Position of a record of `pages` pages that leaves `keep` pages; `None` if the ring is full.
    fn place(&self, pages: u64, keep: u64) -> Option<u64> {
        let within = self.head % self.pages;
        let skip = if within + pages > self.pages { self.pages - within } else { 0 };
        let at = self.head + skip;
        (at + pages - self.tail <= self.pages - keep.min(self.pages)).then_some(at)
    }

    fn position_of(&self, ops_bytes: usize, releasing: bool) -> Option<(u64, u64)> {
        let pages = record::pages_for(ops_bytes, self.page_bytes) as u64;
        let keep = if releasing { 0 } else { self.kept_pages() };
        self.place(pages, keep).map(|position| (position, pages))
    }
}

impl JournalPlace for JournalRing {
    fn record_bytes_max(&self) -> usize {
        record::bytes_max(self.pages, self.page_bytes)
    }

    fn head(&self) -> u64 {
        self.head
    }

    fn used_pages(&self) -> u64 {
        self.head - self.tail
    }

    fn pages(&self) -> u64 {
        self.pages
    }

    fn fits(&self, ops_bytes: usize, releasing: bool) -> bool {
        self.position_of(ops_bytes, releasing).is_some()
    }

    fn fits_at_head(&self, ops_bytes: usize) -> bool {
        let pages = record::pages_for(ops_bytes, self.page_bytes);
        pages * self.page_bytes <= self.record_bytes_max() && self.place(pages as u64, 0) == Some(self.head)
    }

    fn take(&mut self, ops_bytes: usize, releasing: bool) -> Option<PageRun> {
        let (position, pages) = self.position_of(ops_bytes, releasing)?;
        self.head = position + pages;
        Some(PageRun::new(self.at + position % self.pages, pages as u32))
    }

    fn reuse(&mut self, tail: u64) {
        self.tail = tail;
    }
}
