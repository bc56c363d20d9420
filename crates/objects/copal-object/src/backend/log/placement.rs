//! The placement of the `log` backend: data in the open group or at a head, records at the commit head.
//!
//! Design: docs/design/object.md#log

use super::{
    CommitHead,
    append_head::{AppendHead, SegmentOrder},
};
use crate::{
    LogSegments,
    format::{
        record::{self, RecordHeader},
        run::PageRun,
        segment::ChainSegment,
    },
    space::segment_table::SegmentTable,
    space::{home::PageHome, journal_place::JournalPlace, placement::Placement},
};
use bytes::Bytes;
use copal_device::AlignedBuf;
use std::ops::Range;

/// Free segments that only records may use. While a checkpoint is written, records go on; afterwards the segments
/// before its position are free again, so that deletes always find room.
const RECORD_SEGMENTS: u64 = 2;
/// Free segments for the rests of segments that the two copies of a checkpoint leave.
const CHECKPOINT_RESTS: u64 = 2;
/// Free segments that the cleaner needs: a victim, and the rest of one that a batch does not fit in.
const CLEANER_SEGMENTS: u64 = 2;
/// Segments that hold no data, or little: three of the chain of records, two of each copy of checkpoints, two whose
/// rests are not filled yet.
const HELD_SEGMENTS: u64 = 9;
/// Segments that ordinary operations leave free, besides those for the pages of a checkpoint.
const KEPT_SEGMENTS: u64 = RECORD_SEGMENTS + CHECKPOINT_RESTS + CLEANER_SEGMENTS;
/// Records that recovery replays at most, in bytes; a checkpoint is due at half of them.
const REPLAY_BYTES_MAX: u64 = 512 << 20;

/// Segments, and the heads that append to them.
#[derive(Debug)]
pub(crate) struct LogPlacement {
    segments: SegmentTable,
    commit: CommitHead,
    data: AppendHead,
    /// Checkpoints. Their segments hold nothing else, so each is free once a later checkpoint is live.
    checkpoints: AppendHead,
    /// Second copies of checkpoints: in another segment than the first ones.
    copies: AppendHead,
    /// Pages that the cleaner keeps.
    survivors: AppendHead,
    /// Bytes of the operations in the open group.
    ops_bytes: usize,
    /// The record whose place was taken last.
    record: PageRun,
    /// Survivors may take one of the segments that are kept for records.
    lends_to_survivors: bool,
    /// No data lies in groups. For tests.
    data_apart: bool,
}

impl LogPlacement {
    /// The chain's segments are held; every other segment of `segments` is free.
    pub(crate) fn new(mut segments: SegmentTable, commit: CommitHead) -> LogPlacement {
        commit.segments().for_each(|segment| segments.hold(segment));
        LogPlacement {
            segments,
            commit,
            data: AppendHead::default(),
            checkpoints: AppendHead::of_checkpoints(SegmentOrder::Next),
            copies: AppendHead::of_checkpoints(SegmentOrder::Last),
            survivors: AppendHead::default(),
            ops_bytes: 0,
            record: PageRun::new(0, 0),
            lends_to_survivors: false,
            data_apart: false,
        }
    }
}

impl LogPlacement {
    /// From now on no data lies in groups: segments of data are used up sooner.
    pub(crate) fn place_data_apart(&mut self) {
        self.data_apart = true;
    }

    /// From now on segments of records are filled with zeros beforehand.
    pub(crate) fn write_ahead(&mut self) {
        self.commit.write_ahead();
    }

    /// Whether `pages` pages of data for `home` lie in the open group.
    fn rides(&self, pages: u64, home: PageHome) -> bool {
        let is_short = !self.data_apart && CommitHead::takes(pages, &self.segments);
        home.in_group && (home.is_frame || is_short)
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

    fn reachable_pages(&self) -> u64 {
        let rests = self.segments.held_rests();
        self.ownerless_pages().saturating_sub(rests) + u64::from(self.data.rest_pages(&self.segments))
    }

    fn lasting_pages(&self) -> u64 {
        let held = HELD_SEGMENTS * u64::from(self.segments.segment_pages());
        self.ownerless_pages().saturating_sub(held.max(self.segments.held_rests()))
    }

    fn kept_pages(&self) -> u64 {
        Placement::pages(self) / self.kept_one_in()
    }

    fn kept_one_in(&self) -> u64 {
        33
    }

    fn kept_always(&self) -> u64 {
        KEPT_SEGMENTS * u64::from(self.segments.segment_pages())
    }

    fn kept_from_releases(&self) -> u64 {
        (RECORD_SEGMENTS + CHECKPOINT_RESTS + 1) * u64::from(self.segments.segment_pages())
    }

    fn segments_for_survivors(&self, checkpoint_pages: u64) -> u64 {
        let copies = [&self.checkpoints, &self.copies];
        let for_copies: u64 =
            copies.map(|head| head.segments_for(checkpoint_pages, &self.segments)).iter().sum();
        let free = self.segments.free_segments();
        let lent = u64::from(self.lends_to_survivors && free > 1);
        free.saturating_sub(for_copies + RECORD_SEGMENTS).max(lent)
    }

    fn fits_checkpoint(&self, pages: u64) -> bool {
        match self.checkpoints.segments_for(pages, &self.segments) {
            0 => true,
            segments => segments + RECORD_SEGMENTS <= self.segments.free_segments(),
        }
    }

    fn segments(&self) -> Option<&SegmentTable> {
        Some(&self.segments)
    }

    fn survivor_rest(&self) -> u32 {
        self.survivors.rest_pages(&self.segments)
    }

    fn lend_to_survivors(&mut self, lends: bool) {
        self.lends_to_survivors = lends;
    }

    fn survivor_segment(&self) -> Option<u32> {
        self.survivors.segment()
    }

    fn take(&mut self, run: PageRun) -> bool {
        self.segments.take(run)
    }

    fn take_free(&mut self, run: PageRun) -> bool {
        self.segments.is_free(run) && self.segments.take(run)
    }

    fn pages_end(&self) -> u64 {
        self.segments.device_pages()
    }

    fn free_granule(&self) -> u64 {
        self.segments.segment_pages().into()
    }

    fn clip(&self, run: PageRun) -> Option<PageRun> {
        self.segments.is_usable(run).then_some(run)
    }

    fn release(&mut self, run: PageRun) {
        self.segments.release(run);
        self.commit.give_back(run, &self.segments);
    }

    fn allocate(&mut self, pages: u64, home: PageHome) -> Option<Vec<PageRun>> {
        if self.rides(pages, home) {
            let run = self.commit.take_data(pages as u32, self.ops_bytes, &mut self.segments)?;
            return Some(vec![run]);
        }
        self.data.take(&mut self.segments, pages)
    }

    fn allocate_run(&mut self, pages: u32, home: PageHome, _written: bool) -> Option<PageRun> {
        if self.rides(pages.into(), home) {
            return self.commit.take_data(pages, self.ops_bytes, &mut self.segments);
        }
        let lent = u64::from(self.lends_to_survivors && home.owner == PageHome::SURVIVORS);
        let head = match home.owner {
            PageHome::STORE => &mut self.checkpoints,
            PageHome::STORE_COPY => &mut self.copies,
            PageHome::SURVIVORS => &mut self.survivors,
            _ => &mut self.data,
        };
        let keeps = head.rest_pages(&self.segments) >= pages
            || self.segments.free_segments() > RECORD_SEGMENTS - lent;
        keeps.then(|| head.take_run(&mut self.segments, pages)).flatten()
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

    fn longest_free(&self) -> Range<u64> {
        self.segments.longest_free()
    }

    fn grow(&mut self, to_pages: u64) {
        self.segments.grow(to_pages);
    }

    fn place_low(&mut self) {
        self.data.set_order(SegmentOrder::Lowest);
        self.survivors.set_order(SegmentOrder::Lowest);
    }

    fn note_written(&mut self, run: PageRun) {
        self.segments.note_written(run);
    }

    fn forget_written(&mut self, first: u64) {
        self.segments.forget_written(first);
    }

    fn zone_runs(&self) -> u64 {
        self.segments.zone_runs()
    }

    fn written_zones(&self) -> Vec<(u64, u64)> {
        self.segments.written_zones()
    }

    fn flushed(&mut self, epoch: u64) {
        self.commit.flushed(epoch);
    }

    /// The longest group without its first page.
    fn frame_pages_max(&self) -> u32 {
        CommitHead::group_pages_max(self.segments.segment_pages(), self.segments.page_bytes()) - 1
    }

    fn verify(&self) -> Result<(), String> {
        match self.commit.next_segments().find(|&segment| self.segments.owned_pages(segment) > 0) {
            Some(segment) => {
                Err(format!("segment {segment} is next for records, and an object owns a part of it"))
            }
            None => Ok(()),
        }
    }

    fn frames_ride(&self) -> bool {
        true
    }

    fn segment_use(&self) -> Option<LogSegments> {
        let segments = &self.segments;
        Some(LogSegments {
            segment_bytes: u64::from(segments.segment_pages()) * segments.page_bytes() as u64,
            usable: segments.usable(),
            free: segments.free_segments(),
            closed: segments.closed_segments(),
            commit_head: self.commit.segments().count() as u64,
            data_head: self.data.has_segment().into(),
            checkpoint_heads: u64::from(self.checkpoints.has_segment())
                + u64::from(self.copies.has_segment()),
            survivor_head: self.survivors.has_segment().into(),
        })
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

    fn segment(&self) -> ChainSegment {
        self.commit.segment()
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
        record::HEADER_LEN + ops_bytes <= self.record_bytes_max()
            && self.commit.has_room(0, ops_bytes, &self.segments)
    }

    /// The other half of the longest group, without the record's first page.
    fn group_pages(&self) -> u64 {
        let (size, page) = (self.segments.segment_pages(), self.segments.page_bytes());
        u64::from(CommitHead::group_pages_max(size, page) / 2).saturating_sub(1)
    }

    fn prepare_data(&mut self, pages: u64, ops_bytes: usize) -> bool {
        let ops_bytes = self.ops_bytes + ops_bytes;
        pages == 0 || self.commit.prepare_data(pages as u32, ops_bytes, &self.segments)
    }

    fn note_ops(&mut self, ops_bytes: usize) {
        self.ops_bytes = ops_bytes;
    }

    fn fill(&mut self, run: PageRun, bytes: AlignedBuf) -> Option<AlignedBuf> {
        self.commit.fill(run, bytes, &self.segments)
    }

    fn page(&self, at: u64) -> Option<Bytes> {
        self.commit.page(at, &self.segments)
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

    fn take_zeros(&mut self) -> Option<PageRun> {
        self.commit.take_zeros(&self.segments)
    }

    fn zeros_written(&mut self, run: PageRun) {
        self.commit.zeros_written(run, &mut self.segments);
    }

    fn header_written(&mut self, epoch: u64) {
        self.commit.header_written(epoch);
    }

    fn awaited_epoch(&self) -> Option<u64> {
        self.commit.awaited_epoch()
    }

    fn passable_segments(&self) -> usize {
        self.commit.passed_segments()
    }

    /// Ordinary operations leave more segments free.
    fn is_short(&self) -> bool {
        self.segments.free_segments() <= KEPT_SEGMENTS && self.commit.passed_segments() > 0
    }

    fn lacks_segment(&self) -> bool {
        self.commit.lacks_header()
    }

    fn reuse(&mut self, tail: u64) {
        self.commit.reuse(tail, &mut self.segments);
    }
}
