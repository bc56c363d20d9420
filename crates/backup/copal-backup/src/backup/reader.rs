//! Calling thread of a backup: walks the disk, and gives the segments that may have changed to the pool.
//!
//! Invariants
//! - A segment that no list of changes names is not read: its reference is taken from the base. A page of
//!   such segments is taken by its own reference.
//! - A segment whose recipe has the name of the base's recipe takes the base's reference, and costs no
//!   look-up.
//! - Each step has a number: the order of the disk. All that depends on other segments of the backup is decided in it.

use super::changes::{ChangedBlocks, apply_zero_extent, segment_range};
use super::decide::{ChunkDecider, StepOffer};
use super::job::{SegmentJob, TreeStep};
use super::pipeline_end::{PipelineEnd, PipelineResult};
use super::read_estimate::bytes_ahead;
use super::read_helpers::read_fully;
use super::segment_reader::{SegmentReader, SegmentScope};
use super::segment_task::{SegmentReading, SegmentTask};
use super::work_queue::WorkQueue;
use crate::request::error::{Error, Result};
use crate::request::progress::Stage;
use crate::request::{BackupCounts, DiskSource};
use crate::snapshot::recipe::{
    DiskRoot, FrameRef, PAGE_BYTES, PAGE_SEGMENTS, RecipeEntry, RecipePage, SegmentRecipe,
    format::MAX_DISK_BYTES, segments_of,
};
use crate::snapshot::tree::TreeReader;
use copal_chunk::{BLOCK_BYTES, BlockChange, SEGMENT_BYTES};
use copal_disk::source::{Extent, ExtentKind};
use std::ops::Range;

/// A changed segment is read whole if at most one block in this many written ones is clean.
const CLEAN_SHARE: usize = 8;

/// Knowledge about a disk before it is read.
pub(crate) struct DiskPlan {
    /// Root of the base's disk, and its bytes that are not holes.
    pub(crate) base: Option<(DiskRoot, u64)>,
    /// Changes since the base; `None`: everything may have changed.
    pub(crate) changes: Option<ChangedBlocks>,
}

impl DiskPlan {
    /// Bytes of the disk that are not holes, as known before reading.
    pub(super) fn data_at_first(&self) -> u64 {
        match (&self.changes, &self.base) {
            (Some(_), Some((_, data))) => *data,
            _ => 0,
        }
    }
}

/// Pages of a disk of that size.
pub(super) fn pages_of(size_bytes: u64) -> u64 {
    segments_of(size_bytes).div_ceil(PAGE_SEGMENTS as u64)
}

/// State of the reading thread.
pub(crate) struct DiskReader<'r, 'a> {
    pub(super) scope: &'r SegmentScope<'a>,
    decider: &'r ChunkDecider<'r>,
    /// Free jobs, and the pool that reads segments.
    queue: Option<&'r WorkQueue>,
    /// Segments are read by this thread, because the decisions about others are made here, too.
    pub(super) reads_itself: bool,
    /// Number of the disk in the request.
    disk: usize,
    /// Number of the next step.
    next: u64,
    tree: TreeReader<'a>,
    /// Reads segments on this thread.
    pub(super) segments: SegmentReader<'r, 'a>,
    pub(crate) counts: BackupCounts,
    /// The last answer of the source about extents, so that a long hole is asked for once.
    extent: Option<Extent>,
    /// A job that was not needed.
    spare: Option<SegmentJob>,
}

impl<'r, 'a> DiskReader<'r, 'a> {
    /// A reader for the pool of `queue`; without one it reads segments itself, one job after another.
    pub(super) fn new(
        scope: &'r SegmentScope<'a>,
        decider: &'r ChunkDecider<'r>,
        queue: Option<&'r WorkQueue>,
    ) -> Result<DiskReader<'r, 'a>> {
        Ok(DiskReader {
            scope,
            decider,
            queue,
            reads_itself: queue.is_none(),
            disk: 0,
            next: 0,
            tree: TreeReader::new(scope.pack_store, scope.vm)?,
            segments: SegmentReader::new(scope)?,
            counts: BackupCounts::default(),
            extent: None,
            spare: None,
        })
    }

    /// The disk whose segments are read from now on.
    pub(super) fn choose_disk(&mut self, number: usize) -> &'a DiskSource {
        self.disk = number;
        &self.scope.disks[number]
    }

    /// Reads one disk.
    pub(crate) fn disk(&mut self, number: usize, plan: &DiskPlan) -> PipelineResult<()> {
        let disk = self.choose_disk(number);
        self.begin_disk(disk, plan)?;
        match disk.source.size_bytes() {
            Some(size) => {
                self.pages(disk, plan, size, 0..pages_of(size))?;
                self.end_disk(size, plan.data_at_first())
            }
            None => {
                let size = self.stream(disk, plan.base.as_ref().map(|(root, _)| root))?;
                self.end_disk(size, 0)
            }
        }
    }

    /// Reports the estimate of the bytes to be read.
    pub(super) fn begin_disk(&mut self, disk: &DiskSource, plan: &DiskPlan) -> PipelineResult<()> {
        self.extent = None;
        self.scope.progress.stage(Stage::Plan, &disk.name, 0);
        let changes = plan.changes.as_ref().filter(|_| plan.base.is_some());
        let ahead = bytes_ahead(disk, changes, |at| {
            self.check_cancel()?;
            self.extent_at(disk, at)
        })?;
        // The map is walked again from its beginning.
        self.extent = None;
        self.scope.progress.stage(Stage::Read, &disk.name, ahead);
        Ok(())
    }

    /// Reads some pages of a disk of known size.
    pub(super) fn pages(
        &mut self,
        disk: &DiskSource,
        plan: &DiskPlan,
        size: u64,
        pages: Range<u64>,
    ) -> PipelineResult<()> {
        match (&plan.changes, &plan.base) {
            (Some(changes), Some((base, _))) => self.incremental(disk, (size, pages), changes, base),
            (_, base) => self.scan(disk, (size, pages), base.as_ref().map(|(root, _)| root)),
        }
    }

    /// Ends the tree of a disk. `data_bytes`: its bytes that are not holes, but for the segments that were read.
    pub(super) fn end_disk(&mut self, size_bytes: u64, data_bytes: u64) -> PipelineResult<()> {
        self.counts.segments += segments_of(size_bytes);
        self.offer(StepOffer::EndOfDisk { size_bytes, data_bytes })
    }

    /// Ends all steps. `end`: reason of an early end.
    pub(super) fn end(&mut self, end: Option<PipelineEnd>) -> Result<()> {
        self.decider.offer(self.next, StepOffer::End(end)).map(drop)
    }

    /// Reads the changed blocks.
    fn incremental(
        &mut self,
        disk: &DiskSource,
        (size, pages): (u64, Range<u64>),
        changes: &ChangedBlocks,
        base: &DiskRoot,
    ) -> PipelineResult<()> {
        for index in pages {
            self.check_cancel()?;
            let page_start = index * PAGE_BYTES;
            let page_range = page_start..(page_start + PAGE_BYTES).min(size);
            self.counts.dirty_bytes += changes.dirty_bytes_in(&page_range);
            let old = base.pages.get(index as usize).copied().flatten();
            if !changes.touches(&page_range) {
                self.counts.clean_segments += segments_of(page_range.end - page_range.start);
                self.send(TreeStep::Page(old))?;
                continue;
            }
            let page = self
                .tree
                .page(old.as_ref(), size, index)
                .or_else(|error| self.unless_damaged(error).map(|()| RecipePage::default()))?;
            if page.segments.is_empty() {
                self.whole_page(disk, &page_range, index, size)?;
                continue;
            }
            let numbers = (index * PAGE_SEGMENTS as u64)..;
            let changed = page.segments.iter().zip(numbers).filter_map(|(segment, number)| {
                segment.as_ref().filter(|_| changes.touches(&segment_range(size, number)))
            });
            self.tree.announce(changed);
            for (within, &reference) in page.segments.iter().enumerate() {
                let number = index * PAGE_SEGMENTS as u64 + within as u64;
                let range = segment_range(size, number);
                if !changes.touches(&range) {
                    self.counts.clean_segments += 1;
                    self.send(TreeStep::Segment(reference))?;
                    continue;
                }
                self.check_cancel()?;
                match self.old_segment(reference.as_ref(), size, number) {
                    Ok(old) => self.changed_segment(disk, range, changes, reference, old)?,
                    Err(error) => {
                        self.unless_damaged(error)?;
                        self.whole_segment(disk, &range, None)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads a page of segments whose old recipes cannot be read.
    fn whole_page(
        &mut self,
        disk: &DiskSource,
        page: &Range<u64>,
        index: u64,
        size: u64,
    ) -> PipelineResult<()> {
        for within in 0..segments_of(page.end - page.start) {
            self.check_cancel()?;
            let range = segment_range(size, index * PAGE_SEGMENTS as u64 + within);
            self.whole_segment(disk, &range, None)?;
        }
        Ok(())
    }

    /// If the base is damaged, more of the disk is read, and the backup continues.
    fn unless_damaged(&self, error: Error) -> Result<()> {
        if !error.is_corruption() {
            return Err(error);
        }
        self.scope.progress.notice(&format!("the base is not used here: {error}"));
        Ok(())
    }

    fn old_segment(&mut self, reference: Option<&FrameRef>, size: u64, number: u64) -> Result<SegmentRecipe> {
        if let Some(reference) = reference {
            return self.tree.segment(reference, size, number);
        }
        let range = segment_range(size, number);
        let length = (range.end - range.start) as u32;
        Ok(SegmentRecipe { entries: vec![RecipeEntry::new(length, None)] })
    }

    fn changed_segment(
        &mut self,
        disk: &DiskSource,
        range: Range<u64>,
        changes: &ChangedBlocks,
        reference: Option<FrameRef>,
        old: SegmentRecipe,
    ) -> PipelineResult<()> {
        let mut blocks = changes.blocks(&range);
        let count = |state| blocks.iter().filter(|&&block| block == state).count();
        let (written, clean) = (count(BlockChange::Written), count(BlockChange::Clean));
        if clean * CLEAN_SHARE <= written {
            // One read of the whole segment is cheaper than many small ones, and hardly longer.
            blocks
                .iter_mut()
                .filter(|block| **block == BlockChange::Clean)
                .for_each(|block| *block = BlockChange::Written);
        }
        if written > 0 {
            self.for_each_extent(disk, &range, |extent| apply_zero_extent(&mut blocks, &range, extent))?;
        }
        let dirty_bytes = changes.dirty_bytes_in(&range);
        self.issue(range, reference, SegmentReading::Changed { blocks, old, dirty_bytes }, None)
    }

    /// Reads everything that is not a hole.
    fn scan(
        &mut self,
        disk: &DiskSource,
        (size, pages): (u64, Range<u64>),
        base: Option<&DiskRoot>,
    ) -> PipelineResult<()> {
        let mut number = pages.start * PAGE_SEGMENTS as u64;
        let segments = segments_of(size).min(pages.end * PAGE_SEGMENTS as u64);
        let mut page: Option<(u64, RecipePage)> = None;
        while number < segments {
            self.check_cancel()?;
            let page_index = number / PAGE_SEGMENTS as u64;
            if number.is_multiple_of(PAGE_SEGMENTS as u64) {
                let start = page_index * PAGE_BYTES;
                let end = (start + PAGE_BYTES).min(size);
                let extent = self.extent_at(disk, start)?;
                if extent.kind == ExtentKind::Zero && extent.end() >= end {
                    self.send(TreeStep::Page(None))?;
                    number += segments_of(end - start);
                    continue;
                }
            }
            let range = segment_range(size, number);
            let reference = self.base_reference(base, size, number, &mut page);
            self.whole_segment(disk, &range, reference)?;
            number += 1;
        }
        Ok(())
    }

    /// The base's reference at this place. A base that cannot be read is ignored here; `check` reports the
    /// damage.
    fn base_reference(
        &mut self,
        base: Option<&DiskRoot>,
        size: u64,
        number: u64,
        cached: &mut Option<(u64, RecipePage)>,
    ) -> Option<FrameRef> {
        let base = base?;
        let index = number / PAGE_SEGMENTS as u64;
        if cached.as_ref().is_none_or(|(held, _)| *held != index) {
            let reference = base.pages.get(index as usize)?.as_ref();
            let page = self.tree.page(reference, base.size_bytes, index).unwrap_or_else(|error| {
                self.scope.progress.notice(&format!("the base is not used here: {error}"));
                RecipePage::default()
            });
            // Of changed segments the old recipes are read. Which ones change is not known yet.
            self.scope.old.announce(&page);
            *cached = Some((index, page));
        }
        let (_, page) = cached.as_ref()?;
        // The last segment of a base of another size has another length, so its name differs.
        let same_place = segment_range(size, number) == segment_range(base.size_bytes, number);
        let within = (number % PAGE_SEGMENTS as u64) as usize;
        page.segments.get(within).copied().flatten().filter(|_| same_place)
    }

    /// Reads a segment, but for its holes.
    pub(super) fn whole_segment(
        &mut self,
        disk: &DiskSource,
        range: &Range<u64>,
        reference: Option<FrameRef>,
    ) -> PipelineResult<()> {
        let length = (range.end - range.start) as usize;
        let mut blocks = vec![BlockChange::Written; length.div_ceil(BLOCK_BYTES)];
        self.for_each_extent(disk, range, |extent| apply_zero_extent(&mut blocks, range, extent))?;
        if blocks.iter().all(|&block| block == BlockChange::Zeroed) {
            return self.send(TreeStep::Segment(None));
        }
        self.issue(range.clone(), reference, SegmentReading::Whole(blocks), None)
    }

    /// Reads a stream in order. Returns its size.
    fn stream(&mut self, disk: &DiskSource, base: Option<&DiskRoot>) -> PipelineResult<u64> {
        let mut size = 0;
        let mut page = None;
        for number in 0.. {
            self.check_cancel()?;
            let mut job = self.job()?;
            let length = read_fully(&*disk.source, size, job.segment_mut())
                .map_err(|error| Error::Source { disk: disk.name.clone(), error })?;
            let start = size;
            size += length as u64;
            if size > MAX_DISK_BYTES {
                let reason = format!("disk {} is larger than 64 TiB", disk.name);
                return Err(PipelineEnd::Failed(Error::Invalid { reason }));
            }
            self.counts.read_bytes += length as u64;
            self.counts.dirty_bytes += length as u64;
            if length == 0 {
                self.spare = Some(job);
                break;
            }
            let reference = self.base_reference(base, size, number, &mut page);
            self.issue(start..size, reference, SegmentReading::Done, Some(job))?;
            self.scope.progress.advance(length as u64);
            if length < SEGMENT_BYTES {
                break;
            }
        }
        Ok(size)
    }

    /// Gives a segment to the pool, or reads it on this thread. `job`: one into which it has been read.
    fn issue(
        &mut self,
        range: Range<u64>,
        reference: Option<FrameRef>,
        reading: SegmentReading,
        job: Option<SegmentJob>,
    ) -> PipelineResult<()> {
        let number = self.number()?;
        let task = SegmentTask { number, disk: self.disk, range, reference, reading };
        match self.queue.filter(|_| !self.reads_itself) {
            Some(queue) => {
                self.spare.take().into_iter().for_each(|spare| queue.give_back(spare));
                queue.push_segment(task, job);
            }
            None => {
                let job = job.map_or_else(|| self.job(), Ok);
                let prepared = job.and_then(|job| Ok(self.segments.prepare(task, job)?));
                // Without this step, the next one gets its number.
                let prepared = prepared.inspect_err(|_| self.next = number)?;
                self.spare = self.decider.offer(number, StepOffer::Segment(Box::new(prepared)))?;
            }
        }
        Ok(())
    }

    pub(super) fn extent_at(&mut self, disk: &DiskSource, offset: u64) -> PipelineResult<Extent> {
        if let Some(extent) = self.extent.filter(|extent| extent.offset <= offset && offset < extent.end()) {
            return Ok(extent);
        }
        let failed = |error| Error::Source { disk: disk.name.clone(), error };
        let extent = disk.source.extent_at(offset).map_err(failed)?;
        let covers = extent.offset <= offset && offset < extent.end();
        // An extent of another place is ignored.
        let extent = if covers { extent } else { Extent { offset, length: 1 << 20, kind: ExtentKind::Data } };
        self.extent = Some(extent);
        Ok(extent)
    }

    fn for_each_extent(
        &mut self,
        disk: &DiskSource,
        range: &Range<u64>,
        mut visit: impl FnMut(&Extent),
    ) -> PipelineResult<()> {
        let mut at = range.start;
        while at < range.end {
            let extent = self.extent_at(disk, at)?;
            visit(&extent);
            at = extent.end();
        }
        Ok(())
    }

    /// An empty job.
    pub(super) fn job(&mut self) -> PipelineResult<SegmentJob> {
        match (self.spare.take(), self.queue) {
            (Some(job), _) => Ok(job),
            (None, Some(queue)) => queue.free_job(),
            (None, None) => Ok(SegmentJob::new()),
        }
    }

    /// Bytes that are not holes in the segments that were read since the last call.
    pub(super) fn more_data(&self) -> u64 {
        self.decider.data_after(0)
    }

    /// Keeps a job that was not needed.
    pub(super) fn keep(&mut self, job: SegmentJob) {
        self.spare = Some(job);
    }

    pub(super) fn send(&mut self, step: TreeStep) -> PipelineResult<()> {
        self.offer(StepOffer::Step(step))
    }

    fn offer(&mut self, offer: StepOffer) -> PipelineResult<()> {
        let number = self.number()?;
        if let Some(job) = self.decider.offer(number, offer)? {
            self.spare = Some(job);
        }
        Ok(())
    }

    /// The number of the next step.
    fn number(&mut self) -> PipelineResult<u64> {
        if let Some(queue) = self.queue {
            queue.wait_for_room(self.next)?;
        }
        self.next += 1;
        Ok(self.next - 1)
    }

    pub(super) fn check_cancel(&self) -> PipelineResult<()> {
        if self.scope.cancel.is_cancelled() { Err(PipelineEnd::Cancelled) } else { Ok(()) }
    }
}
