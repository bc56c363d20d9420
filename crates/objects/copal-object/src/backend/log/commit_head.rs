//! Commit head: the place of the open group, and the chain of segments that hold records.
//!
//! The header of a segment names the segment after it. While one segment is filled, the header of the next one is
//! written, so that the head moves on without waiting.
//! Invariants
//! - The head enters a segment only when the segment's header is durable (OBJ-32).
//! - A valid header is never written again: the segment that it names stays the next one, also after a crash that
//!   lost the records before it.
//! - A record never spans segments.
//! - Zeros go only to a segment without a header, and the header waits for those in flight: they never overwrite records.

use super::group_buffer::GroupBuffer;
use crate::format::{
    group,
    record::RecordHeader,
    run::PageRun,
    segment::{ChainSegment, SegmentHeader},
    sum_rule::SumRule,
};
use crate::space::segment_table::SegmentTable;
use bytes::Bytes;
use copal_device::AlignedBuf;
use std::collections::VecDeque;

/// Longest group in bytes.
const GROUP_BYTES_MAX: usize = 4 << 20;
/// Longest data of one operation in a group; longer data goes to a head of its own.
const OP_BYTES_MAX: usize = 64 << 10;

/// State of the header of the next segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderState {
    /// Not written, or its write was lost.
    Missing,
    Writing,
    /// Written in this epoch.
    Written(u64),
    Durable,
}

/// The segments after the current one.
#[derive(Clone, Debug)]
pub(crate) struct NextSegments {
    /// The one that the header of the current one names.
    pub(crate) next: u32,
    /// Those that further headers name: the first one by the header of `next`, and so on. They are kept in this
    /// order: after a crash, headers may be durable although the records before them are lost.
    pub(crate) ahead: Vec<u32>,
}

/// The open group, and the segments of records.
#[derive(Debug)]
pub(crate) struct CommitHead {
    store: u64,
    /// Segments from that of the oldest record that recovery needs, to the current one.
    chain: VecDeque<u32>,
    /// Number of the current segment in the chain.
    number: u64,
    /// Page of the open group in the current segment.
    page: u32,
    group: GroupBuffer,
    next: u32,
    header: HeaderState,
    /// Segments that headers name from the next one's on; the last header may not be durable.
    ahead: VecDeque<u32>,
    /// Page from which the first segment of the chain is needed.
    tail_page: u32,
    /// The group that is being closed.
    closing: GroupBuffer,
    /// Segments are written once before they hold records.
    writes_ahead: bool,
    /// Zeros are in flight.
    is_zeroing: bool,
}

impl CommitHead {
    /// The head at page `page` of the last segment of `chain`, whose number is `number`.
    pub(crate) fn new(store: u64, chain: Vec<u32>, number: u64, page: u32, next: NextSegments) -> CommitHead {
        CommitHead {
            store,
            chain: chain.into(),
            number,
            page,
            group: GroupBuffer::default(),
            next: next.next,
            header: if next.ahead.is_empty() { HeaderState::Missing } else { HeaderState::Durable },
            ahead: next.ahead.into(),
            tail_page: 0,
            closing: GroupBuffer::default(),
            writes_ahead: false,
            is_zeroing: false,
        }
    }

    /// From now on segments are filled with zeros before they hold records.
    pub(crate) fn write_ahead(&mut self) {
        self.writes_ahead = true;
    }

    /// A head in the same place, without an open group.
    pub(crate) fn copy_of_place(&self) -> CommitHead {
        let next = NextSegments { next: self.next, ahead: self.ahead.iter().copied().collect() };
        CommitHead::new(self.store, self.chain.iter().copied().collect(), self.number, self.page, next)
    }

    /// Every segment that the chain uses or names.
    pub(crate) fn segments(&self) -> impl Iterator<Item = u32> + '_ {
        self.chain.iter().copied().chain(self.next_segments())
    }

    /// The segments that the chain will continue in.
    pub(crate) fn next_segments(&self) -> impl Iterator<Item = u32> + '_ {
        [self.next].into_iter().chain(self.ahead.iter().copied())
    }

    fn current(&self) -> u32 {
        self.chain.back().copied().unwrap_or(self.next)
    }

    /// Position of a page: the segment in the upper half, the page in the lower.
    pub(crate) fn position(segment: u32, page: u32) -> u64 {
        u64::from(segment) << 32 | u64::from(page)
    }

    pub(crate) fn head(&self) -> u64 {
        CommitHead::position(self.current(), self.page)
    }

    /// The current segment.
    pub(crate) fn segment(&self) -> ChainSegment {
        ChainSegment { number: self.number, next: self.next.into() }
    }

    /// Sets the position from which recovery needs the records.
    pub(crate) fn set_tail(&mut self, position: u64) {
        self.tail_page = position as u32;
    }

    /// Segments before the current one.
    pub(crate) fn passed_segments(&self) -> usize {
        self.chain.len().saturating_sub(1)
    }

    /// Pages of records from the tail to the head.
    pub(crate) fn used_pages(&self, segment_pages: u32) -> u64 {
        let before = (self.chain.len() as u64 - 1) * u64::from(segment_pages);
        (before + u64::from(self.page)).saturating_sub(self.tail_page.into())
    }

    /// Most pages of a group.
    pub(crate) fn group_pages_max(segment_pages: u32, page_bytes: usize) -> u32 {
        ((GROUP_BYTES_MAX / page_bytes) as u32).min(segment_pages - 1)
    }

    /// Most pages of one operation's data in a group.
    fn op_pages_max(segment_pages: u32, page_bytes: usize) -> u32 {
        let group = CommitHead::group_pages_max(segment_pages, page_bytes);
        ((OP_BYTES_MAX / page_bytes) as u32).min(group / 4).max(1)
    }

    /// Whether data of so many pages belongs into the group.
    pub(crate) fn takes(pages: u64, segments: &SegmentTable) -> bool {
        pages <= u64::from(CommitHead::op_pages_max(segments.segment_pages(), segments.page_bytes()))
    }

    /// Whether a group of `data` pages with `ops_bytes` bytes of operations fits behind the head.
    fn fits_here(&self, data: u32, ops_bytes: usize, segments: &SegmentTable) -> bool {
        let (size, page) = (segments.segment_pages(), segments.page_bytes());
        let pages = 1 + data + group::rest_pages(ops_bytes, page);
        pages <= CommitHead::group_pages_max(size, page) && self.page + pages <= size
    }

    /// Whether the open group has room for `data` more pages and `ops_bytes` bytes of operations in all. An empty
    /// group may begin in the next segment.
    pub(crate) fn has_room(&self, data: u32, ops_bytes: usize, segments: &SegmentTable) -> bool {
        self.fits_here(self.group.taken() + data, ops_bytes, segments)
            || (self.group.taken() == 0 && self.is_ready() && self.fits_new(data, ops_bytes, segments))
    }

    /// Whether an empty group of this length fits into an empty segment.
    pub(crate) fn fits_new(&self, data: u32, ops_bytes: usize, segments: &SegmentTable) -> bool {
        let (size, page) = (segments.segment_pages(), segments.page_bytes());
        1 + data + group::rest_pages(ops_bytes, page) <= CommitHead::group_pages_max(size, page)
    }

    /// Whether a record of one page fits at the head itself, or at the start of the next segment if the current one
    /// is full.
    pub(crate) fn fits_page(&self, ops_bytes: usize, segments: &SegmentTable) -> bool {
        group::rest_pages(ops_bytes, segments.page_bytes()) == 0
    }

    /// Whether the next segment can be entered.
    pub(crate) fn is_ready(&self) -> bool {
        self.header == HeaderState::Durable
    }

    /// Ensures room for `pages` more pages of data; an empty group moves to the next segment for it. `false`: there is
    /// none yet.
    pub(crate) fn prepare_data(&mut self, pages: u32, ops_bytes: usize, segments: &SegmentTable) -> bool {
        let has_room = self.has_room(pages, ops_bytes, segments);
        if has_room && !self.fits_here(self.group.taken() + pages, ops_bytes, segments) {
            self.enter_next();
        }
        has_room
    }

    /// Takes `pages` pages of the open group, which has `ops_bytes` bytes of operations so far.
    pub(crate) fn take_data(
        &mut self,
        pages: u32,
        ops_bytes: usize,
        segments: &mut SegmentTable,
    ) -> Option<PageRun> {
        if !self.prepare_data(pages, ops_bytes, segments) {
            return None;
        }
        let first = self.group.take(pages);
        let run = PageRun::new(self.data_page(segments) + u64::from(first), pages);
        assert!(segments.take(run), "nothing lies behind the commit head");
        Some(run)
    }

    /// First page of the open group's data.
    fn data_page(&self, segments: &SegmentTable) -> u64 {
        segments.first_page(self.current()) + u64::from(self.page) + 1
    }

    /// Page of `run` in the open group's data, if the run lies there.
    fn in_group(&self, run: PageRun, segments: &SegmentTable) -> Option<u32> {
        let first = self.data_page(segments);
        let end = first + u64::from(self.group.taken());
        (run.at >= first && run.end() <= end).then(|| (run.at - first) as u32)
    }

    /// `run` is not needed: the last pages of the open group can be taken again.
    pub(crate) fn give_back(&mut self, run: PageRun, segments: &SegmentTable) {
        if let Some(first) = self.in_group(run, segments) {
            self.group.give_back(first, run.pages);
        }
    }

    /// Keeps the bytes of `run` until the group closes; gives them back if the run is not in the open group.
    pub(crate) fn fill(
        &mut self,
        run: PageRun,
        bytes: AlignedBuf,
        segments: &SegmentTable,
    ) -> Option<AlignedBuf> {
        match self.in_group(run, segments) {
            Some(first) => {
                self.group.fill(first, bytes);
                None
            }
            None => Some(bytes),
        }
    }

    /// Bytes of a page of the open group.
    pub(crate) fn page(&self, at: u64, segments: &SegmentTable) -> Option<Bytes> {
        let page = self.in_group(PageRun::new(at, 1), segments)?;
        self.group.page(page, segments.page_bytes())
    }

    /// Whether a page of `run` lies in the open group.
    pub(crate) fn holds(&self, run: PageRun, segments: &SegmentTable) -> bool {
        self.group.taken() > 0 && run.overlaps(PageRun::new(self.data_page(segments), self.group.taken()))
    }

    /// Takes the place of the open group's record with its data. `None`: the next segment cannot be entered yet.
    pub(crate) fn take_record(&mut self, ops_bytes: usize, segments: &SegmentTable) -> Option<PageRun> {
        if !self.fits_here(self.group.taken(), ops_bytes, segments) {
            if self.group.taken() > 0 || !self.is_ready() {
                return None;
            }
            self.enter_next();
        }
        let pages = 1 + self.group.taken() + group::rest_pages(ops_bytes, segments.page_bytes());
        let run = PageRun::new(segments.first_page(self.current()) + u64::from(self.page), pages);
        self.closing = std::mem::take(&mut self.group);
        self.page += pages;
        Some(run)
    }

    /// Encodes the record of the group that was just taken; returns the hash that the next record carries.
    pub(crate) fn encode(
        &mut self,
        run: PageRun,
        record: &RecordHeader,
        ops: &[u8],
        out: &mut [u8],
        page_bytes: usize,
    ) -> u64 {
        let group = std::mem::take(&mut self.closing);
        let (first, behind) = out.split_at_mut(page_bytes);
        let (data, rest) = behind.split_at_mut(group.taken() as usize * page_bytes);
        group.copy_to(data, page_bytes);
        let header = group::GroupHeader {
            record: record.clone(),
            at: run.at,
            data_pages: group.taken(),
            data_sum: SumRule::Hashes.sum(0, data, page_bytes),
        };
        group::encode(&header, ops, first, rest)
    }

    fn enter_next(&mut self) {
        debug_assert!(self.is_ready() && self.group.taken() == 0);
        let Some(next) = self.ahead.pop_front() else { return };
        self.chain.push_back(self.next);
        self.number += 1;
        self.page = 1;
        self.next = next;
        self.header = if self.ahead.is_empty() { HeaderState::Missing } else { HeaderState::Durable };
    }

    /// The header of the next segment, if it must be written now. Chooses the segment after it.
    pub(crate) fn take_header(&mut self, segments: &mut SegmentTable) -> Option<(PageRun, AlignedBuf)> {
        if self.header != HeaderState::Missing || self.is_zeroing {
            return None;
        }
        let after = segments.hold_free(0)?;
        self.ahead.push_back(after);
        self.header = HeaderState::Writing;
        let header = SegmentHeader {
            store: self.store,
            segment: self.next.into(),
            number: self.number + 1,
            next: after.into(),
        };
        let mut page = AlignedBuf::zeroed(segments.page_bytes());
        header.encode(&mut page);
        Some((PageRun::new(segments.first_page(self.next), 1), page))
    }

    /// The next part of the last segment of the chain to fill with zeros. The parts keep ahead of the records: the last
    /// one is due when the head has passed three quarters of its own segment. Where records are faster, the segment is
    /// used as it is.
    pub(crate) fn take_zeros(&mut self, segments: &SegmentTable) -> Option<PageRun> {
        if !self.writes_ahead || self.is_zeroing {
            return None;
        }
        let last = *self.ahead.back()?;
        let run = segments.unwritten(last)?;
        let end = run.end() - segments.first_page(last);
        let is_due = u64::from(self.page) * 4 >= end * 3;
        self.is_zeroing = is_due;
        is_due.then_some(run)
    }

    /// The zeros of [`CommitHead::take_zeros`] are written.
    pub(crate) fn zeros_written(&mut self, run: PageRun, segments: &mut SegmentTable) {
        self.is_zeroing = false;
        segments.note_written(run);
    }

    /// The header was written while `epoch` was open.
    pub(crate) fn header_written(&mut self, epoch: u64) {
        if self.header == HeaderState::Writing {
            self.header = HeaderState::Written(epoch);
        }
    }

    /// All epochs up to `epoch` are durable.
    pub(crate) fn flushed(&mut self, epoch: u64) {
        if matches!(self.header, HeaderState::Written(written) if written <= epoch) {
            self.header = HeaderState::Durable;
        }
    }

    /// Whether the header of the next segment is not being written: no segment is free for the one after it.
    pub(crate) fn lacks_header(&self) -> bool {
        self.header == HeaderState::Missing && !self.is_zeroing
    }

    /// The epoch whose flush makes the next segment's header durable, unless it is durable or missing. 0: its write,
    /// or that of zeros before it, has not completed.
    pub(crate) fn awaited_epoch(&self) -> Option<u64> {
        match self.header {
            HeaderState::Written(epoch) => Some(epoch),
            HeaderState::Writing => Some(0),
            HeaderState::Missing if self.is_zeroing => Some(0),
            HeaderState::Missing | HeaderState::Durable => None,
        }
    }

    /// Records before `tail` are not needed any more.
    pub(crate) fn reuse(&mut self, tail: u64, segments: &mut SegmentTable) {
        let segment = (tail >> 32) as u32;
        if self.chain.contains(&segment) {
            while self.chain.front().is_some_and(|&first| first != segment) {
                if let Some(first) = self.chain.pop_front() {
                    segments.close(first);
                }
            }
            self.set_tail(tail);
        }
    }
}
