//! The placement of the `log` backend: data in the open group or at a head, records at the commit head.
//!
//! Design: docs/design/object.md#log

use super::{CommitHead, SegmentTable, append_head::AppendHead};
use crate::{
    format::{record::RecordHeader, run::PageRun},
    space::{home::PageHome, journal_place::JournalPlace, placement::Placement},
};
use copal_device::AlignedBuf;
use std::ops::Range;

/// Segments kept for the chain of records, the heads and deletes.
const KEPT_SEGMENTS: u64 = 4;
/// Records that recovery replays at most, in bytes; a checkpoint is due at half of them.
const REPLAY_BYTES_MAX: u64 = 512 << 20;

/// Segments, and the heads that append to them.
#[derive(Debug)]
pub(crate) struct LogPlacement {
    segments: SegmentTable,
    commit: CommitHead,
    data: AppendHead,
    /// Second copies of checkpoints: in another segment than the first ones.
    copies: AppendHead,
    /// Bytes of the operations in the open group.
    ops_bytes: usize,
    /// The record whose place was taken last.
    record: PageRun,
}

impl LogPlacement {
    /// The chain's segments are held; every other segment of `segments` is free.
    pub(crate) fn new(mut segments: SegmentTable, commit: CommitHead) -> LogPlacement {
        commit.segments().for_each(|segment| segments.hold(segment));
        LogPlacement {
            segments,
            commit,
            data: AppendHead::default(),
            copies: AppendHead::from_end(),
            ops_bytes: 0,
            record: PageRun::new(0, 0),
        }
    }
}

impl Placement for LogPlacement {
    fn emptied(&self) -> Box<dyn Placement> {
        let segments = SegmentTable::new(
            self.segments.device_pages(),
            self.segments.segment_pages(),
            self.segments.page_bytes(),
        );
        Box::new(LogPlacement::new(segments, self.commit.copy_of_place()))
    }

    fn pages(&self) -> u64 {
        self.segments.usable() * u64::from(self.segments.segment_pages())
    }

    fn free_pages(&self) -> u64 {
        self.segments.free_segments() * u64::from(self.segments.segment_pages())
            + u64::from(self.data.rest_pages(&self.segments))
    }

    fn ownerless_pages(&self) -> u64 {
        self.segments.ownerless_pages()
    }

    fn kept_pages(&self) -> u64 {
        let kept = KEPT_SEGMENTS * u64::from(self.segments.segment_pages());
        kept.max(Placement::pages(self) / self.kept_one_in())
    }

    fn kept_one_in(&self) -> u64 {
        33
    }

    fn take(&mut self, run: PageRun) -> bool {
        self.segments.take(run)
    }

    fn clip(&self, run: PageRun) -> Option<PageRun> {
        self.segments.is_usable(run).then_some(run)
    }

    fn release(&mut self, run: PageRun) {
        self.segments.release(run);
        self.commit.give_back(run, &self.segments);
    }

    fn allocate(&mut self, pages: u64, home: PageHome) -> Option<Vec<PageRun>> {
        if home.in_group && CommitHead::takes(pages, &self.segments) {
            let run = self.commit.take_data(pages as u32, self.ops_bytes, &mut self.segments)?;
            return Some(vec![run]);
        }
        self.data.take(&mut self.segments, pages)
    }

    fn allocate_run(&mut self, pages: u32, home: PageHome, _written: bool) -> Option<PageRun> {
        if home.in_group && CommitHead::takes(pages.into(), &self.segments) {
            return self.commit.take_data(pages, self.ops_bytes, &mut self.segments);
        }
        let head = if home.owner == PageHome::STORE_COPY { &mut self.copies } else { &mut self.data };
        head.take_run(&mut self.segments, pages)
    }

    fn journal(&self) -> &dyn JournalPlace {
        self
    }

    fn journal_mut(&mut self) -> &mut dyn JournalPlace {
        self
    }

    fn free_ranges(&self) -> Vec<Range<u64>> {
        self.segments.free_ranges()
    }

    fn grow(&mut self, to_pages: u64) {
        self.segments.grow(to_pages);
    }

    fn flushed(&mut self, epoch: u64) {
        self.commit.flushed(epoch);
    }

    fn run_pages_max(&self) -> u32 {
        self.segments.segment_pages()
    }

    fn verify(&self) -> Result<(), String> {
        match self.commit.next_segments().find(|&segment| self.segments.is_owned(segment)) {
            Some(segment) => {
                Err(format!("segment {segment} is next for records, and an object owns a part of it"))
            }
            None => Ok(()),
        }
    }

    fn frames_ride(&self) -> bool {
        true
    }
}

impl JournalPlace for LogPlacement {
    /// Half of the longest group, so that data has room beside the operations.
    fn record_bytes_max(&self) -> usize {
        let (size, page) = (self.segments.segment_pages(), self.segments.page_bytes());
        (CommitHead::group_pages_max(size, page) as usize).div_ceil(2) * page
    }

    fn head(&self) -> u64 {
        self.commit.head()
    }

    fn used_pages(&self) -> u64 {
        self.commit.used_pages(self.segments.segment_pages())
    }

    /// An eighth of the store, between four segments and 512 MiB.
    fn pages(&self) -> u64 {
        let size = u64::from(self.segments.segment_pages());
        let most = REPLAY_BYTES_MAX / self.segments.page_bytes() as u64;
        (self.segments.usable() * size / 8).min(most).max(4 * size)
    }

    /// A record always finds room: segments are kept for the chain.
    fn fits(&self, ops_bytes: usize, _releasing: bool) -> bool {
        self.commit.fits_new(0, ops_bytes, &self.segments)
    }

    fn fits_at_head(&self, ops_bytes: usize) -> bool {
        self.commit.fits_page(ops_bytes, &self.segments)
    }

    fn take(&mut self, ops_bytes: usize, _releasing: bool) -> Option<PageRun> {
        let run = self.commit.take_record(ops_bytes, &self.segments)?;
        self.ops_bytes = 0;
        self.record = run;
        Some(run)
    }

    fn encode(&mut self, header: &RecordHeader, ops: &[u8], out: &mut [u8]) -> u64 {
        self.commit.encode(self.record, header, ops, out, self.segments.page_bytes())
    }

    fn admits(&self, ops_bytes: usize) -> bool {
        self.commit.has_room(0, ops_bytes, &self.segments)
    }

    /// The other half of the longest group, without the record's first page.
    fn group_pages(&self) -> u64 {
        let (size, page) = (self.segments.segment_pages(), self.segments.page_bytes());
        u64::from(CommitHead::group_pages_max(size, page) / 2).saturating_sub(1)
    }

    fn prepare_data(&mut self, pages: u64) -> bool {
        pages == 0 || self.commit.prepare_data(pages as u32, self.ops_bytes, &self.segments)
    }

    fn note_ops(&mut self, ops_bytes: usize) {
        self.ops_bytes = ops_bytes;
    }

    fn fill(&mut self, run: PageRun, bytes: AlignedBuf) -> Option<AlignedBuf> {
        self.commit.fill(run, bytes, &self.segments)
    }

    fn holds(&self, run: PageRun) -> bool {
        self.commit.holds(run, &self.segments)
    }

    fn has_data(&self) -> bool {
        true
    }

    fn take_header(&mut self) -> Option<(PageRun, AlignedBuf)> {
        self.commit.take_header(&mut self.segments)
    }

    fn header_written(&mut self, epoch: u64) {
        self.commit.header_written(epoch);
    }

    fn awaited_epoch(&self) -> Option<u64> {
        self.commit.awaited_epoch()
    }

    fn reuse(&mut self, tail: u64) {
        self.commit.reuse(tail, &mut self.segments);
    }
}
