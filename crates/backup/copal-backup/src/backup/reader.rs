//! First thread of a backup: reads blocks that may have changed, cuts them into chunks, names these, and
//! decides which are stored.
//!
//! Invariants
//! - A segment that no list of changes names is not read: its reference is taken from the base. A page of
//!   such segments is taken by its own reference.
//! - A segment whose recipe has the name of the base's recipe takes the base's reference, and costs no
//!   look-up.
//! - The bytes that are hashed are the bytes that are stored: they are read once.

use super::changes::{ChangedBlocks, apply_zero_extent, segment_range};
use super::chunk_sink::ChunkSink;
use super::in_flight_chunks::InFlightChunks;
use super::job::{SegmentJob, TreeStep};
use super::pipeline_end::{PipelineEnd, PipelineResult};
use super::read_estimate::bytes_ahead;
use super::read_helpers::{data_of, pieces_of, read_exactly, read_fully};
use super::stored_chunks::StoredChunks;
use crate::catalog::popular::PopularState;
use crate::catalog::replay::ReplayedLog;
use crate::keys::RecipeKey;
use crate::packs::pack_store::PackStore;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress, Stage};
use crate::request::{BackupCounts, DiskSource};
use crate::snapshot::recipe::{
    DiskRoot, FrameRef, PAGE_BYTES, PAGE_SEGMENTS, RecipeEntry, RecipePage, SegmentRecipe,
    format::MAX_DISK_BYTES, segments_of,
};
use crate::snapshot::tree::TreeReader;
use copal_chunk::{BLOCK_BYTES, BlockChange, Chunker, NewPiece, SEGMENT_BYTES, SegmentPiece, rechunk, split};
use copal_disk::source::{Extent, ExtentKind};
use std::ops::Range;
use std::sync::Arc;
use uuid::Uuid;

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
pub(crate) struct DiskReader<'a> {
    pub(super) pack_store: &'a PackStore,
    chunker: &'a Chunker,
    pub(super) in_flight: &'a InFlightChunks,
    progress: &'a dyn Progress,
    cancel: &'a CancelFlag,
    pub(super) key: RecipeKey,
    pub(super) tree: TreeReader<'a>,
    pub(super) stored: StoredChunks<'a>,
    /// Chunks of changed segments are stored without a look-up.
    pub(super) stores_whole_segments: bool,
    pub(super) outlet: ChunkSink,
    pub(crate) counts: BackupCounts,
    /// The last answer of the source about extents, so that a long hole is asked for once.
    extent: Option<Extent>,
    /// A job that was not needed.
    pub(super) spare: Option<Box<SegmentJob>>,
}

impl<'a> DiskReader<'a> {
    pub(crate) fn new(
        pack_store: &'a PackStore,
        chunker: &'a Chunker,
        in_flight: &'a InFlightChunks,
        progress: &'a dyn Progress,
        cancel: &'a CancelFlag,
        vm: Uuid,
        outlet: ChunkSink,
    ) -> Result<DiskReader<'a>> {
        Ok(DiskReader {
            pack_store,
            chunker,
            in_flight,
            progress,
            cancel,
            key: pack_store.keys.recipe_key(vm),
            tree: TreeReader::new(pack_store, vm)?,
            stored: StoredChunks::new(pack_store, in_flight, pack_store.home_of_chunks(vm)),
            stores_whole_segments: false,
            outlet,
            counts: BackupCounts::default(),
            extent: None,
            spare: None,
        })
    }

    /// From now on each stored frame is decrypted before it is referred to.
    pub(crate) fn verify_stored_frames(&mut self) -> Result<()> {
        self.stored.verify_frames()
    }

    /// From now on frames of popular packs that do not count in this log are not referred to.
    pub(crate) fn set_popular(&mut self, popular: Arc<ReplayedLog<PopularState>>) {
        self.stored.set_popular(popular);
    }

    /// Reads one disk.
    pub(crate) fn disk(&mut self, disk: &DiskSource, plan: &DiskPlan) -> PipelineResult<()> {
        self.begin_disk(disk, plan)?;
        let (size_bytes, data_bytes) = match disk.source.size_bytes() {
            Some(size) => {
                let pages = 0..pages_of(size);
                (size, self.pages(disk, plan, size, pages, plan.data_at_first())?)
            }
            None => self.stream(disk, plan.base.as_ref().map(|(root, _)| root))?,
        };
        self.end_disk(size_bytes, data_bytes)
    }

    /// Reports the estimate of the bytes to be read.
    pub(super) fn begin_disk(&mut self, disk: &DiskSource, plan: &DiskPlan) -> PipelineResult<()> {
        self.extent = None;
        self.progress.stage(Stage::Plan, &disk.name, 0);
        let changes = plan.changes.as_ref().filter(|_| plan.base.is_some());
        let ahead = bytes_ahead(disk, changes, |at| {
            self.check_cancel()?;
            self.extent_at(disk, at)
        })?;
        // The map is walked again from its beginning.
        self.extent = None;
        self.progress.stage(Stage::Read, &disk.name, ahead);
        Ok(())
    }

    /// Reads some pages of a disk of known size. `data`: bytes of the disk that are not holes, as known so
    /// far; returns that number after these pages.
    pub(super) fn pages(
        &mut self,
        disk: &DiskSource,
        plan: &DiskPlan,
        size: u64,
        pages: Range<u64>,
        data: u64,
    ) -> PipelineResult<u64> {
        match (&plan.changes, &plan.base) {
            (Some(changes), Some((base, _))) => self.incremental(disk, (size, pages), changes, base, data),
            (_, base) => {
                let base = base.as_ref().map(|(root, _)| root);
                Ok(data + self.scan(disk, (size, pages), base)?)
            }
        }
    }

    /// Ends the tree of a disk.
    pub(super) fn end_disk(&mut self, size_bytes: u64, data_bytes: u64) -> PipelineResult<()> {
        self.counts.logical_bytes += size_bytes;
        self.counts.data_bytes += data_bytes;
        self.counts.segments += segments_of(size_bytes);
        self.send(TreeStep::EndOfDisk { size_bytes, data_bytes })
    }

    /// Reads the changed blocks. Returns the bytes of the new disk that are not holes.
    fn incremental(
        &mut self,
        disk: &DiskSource,
        (size, pages): (u64, Range<u64>),
        changes: &ChangedBlocks,
        base: &DiskRoot,
        mut data: u64,
    ) -> PipelineResult<u64> {
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
                data += self.whole_page(disk, &page_range, index, size)?;
                self.progress.advance(changes.dirty_bytes_in(&page_range));
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
                } else {
                    self.check_cancel()?;
                    let (before, after) = match self.old_segment(reference.as_ref(), size, number) {
                        Ok(old) => (
                            data_of(&old.entries),
                            self.changed_segment(disk, &range, changes, reference, &old)?,
                        ),
                        Err(error) => {
                            self.unless_damaged(error)?;
                            (0, self.whole_segment(disk, &range, None)?)
                        }
                    };
                    data = (data + after).saturating_sub(before);
                    self.progress.advance(changes.dirty_bytes_in(&range));
                }
            }
        }
        Ok(data)
    }

    /// Reads a page of segments whose old recipes cannot be read.
    fn whole_page(
        &mut self,
        disk: &DiskSource,
        page: &Range<u64>,
        index: u64,
        size: u64,
    ) -> PipelineResult<u64> {
        let mut data = 0;
        for within in 0..segments_of(page.end - page.start) {
            self.check_cancel()?;
            let range = segment_range(size, index * PAGE_SEGMENTS as u64 + within);
            data += self.whole_segment(disk, &range, None)?;
        }
        Ok(data)
    }

    /// If the base is damaged, more of the disk is read, and the backup continues.
    fn unless_damaged(&self, error: Error) -> Result<()> {
        if !error.is_corruption() {
            return Err(error);
        }
        self.progress.notice(&format!("the base is not used here: {error}"));
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
        range: &Range<u64>,
        changes: &ChangedBlocks,
        reference: Option<FrameRef>,
        old: &SegmentRecipe,
    ) -> PipelineResult<u64> {
        let mut blocks = changes.blocks(range);
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
            self.for_each_extent(disk, range, |extent| apply_zero_extent(&mut blocks, range, extent))?;
        }
        let mut job = self.job(range.start)?;
        let length = (range.end - range.start) as usize;
        let pieces = pieces_of(&old.entries);
        let mut read_bytes = 0;
        let fresh = rechunk(self.chunker, &pieces, &blocks, &mut job.segment[..length], |at, buffer| {
            read_bytes += buffer.len() as u64;
            read_exactly(disk, range.start + at as u64, buffer)
        })?;
        self.counts.read_bytes += read_bytes;
        let layout: Vec<(SegmentPiece, Option<FrameRef>)> = fresh
            .into_iter()
            .map(|fresh| match fresh {
                NewPiece::Kept(index) => (pieces[index], old.entries[index].chunk),
                NewPiece::New(piece) => (piece, None),
            })
            .collect();
        self.finish_segment(job, &layout, reference, Some(old))
    }

    /// Reads everything that is not a hole.
    fn scan(
        &mut self,
        disk: &DiskSource,
        (size, pages): (u64, Range<u64>),
        base: Option<&DiskRoot>,
    ) -> PipelineResult<u64> {
        let mut data = 0;
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
            let before = self.counts.read_bytes;
            data += self.whole_segment(disk, &range, reference)?;
            self.progress.advance(self.counts.read_bytes - before);
            number += 1;
        }
        Ok(data)
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
                self.progress.notice(&format!("the base is not used here: {error}"));
                RecipePage::default()
            });
            // Of changed segments the old recipes are read. Which ones change is not known yet.
            self.tree.announce(page.segments.iter().flatten());
            *cached = Some((index, page));
        }
        let (_, page) = cached.as_ref()?;
        // The last segment of a base of another size has another length, so its name differs.
        let same_place = segment_range(size, number) == segment_range(base.size_bytes, number);
        let within = (number % PAGE_SEGMENTS as u64) as usize;
        page.segments.get(within).copied().flatten().filter(|_| same_place)
    }

    pub(super) fn whole_segment(
        &mut self,
        disk: &DiskSource,
        range: &Range<u64>,
        reference: Option<FrameRef>,
    ) -> PipelineResult<u64> {
        let length = (range.end - range.start) as usize;
        let mut blocks = vec![BlockChange::Written; length.div_ceil(BLOCK_BYTES)];
        self.for_each_extent(disk, range, |extent| apply_zero_extent(&mut blocks, range, extent))?;
        if blocks.iter().all(|&block| block == BlockChange::Zeroed) {
            self.send(TreeStep::Segment(None))?;
            return Ok(0);
        }
        let mut job = self.job(range.start)?;
        let segment = &mut job.segment[..length];
        let mut first = 0;
        for run in blocks.chunk_by(|a, b| a == b) {
            let bytes = first * BLOCK_BYTES..((first + run.len()) * BLOCK_BYTES).min(length);
            first += run.len();
            if run[0] == BlockChange::Zeroed {
                segment[bytes].fill(0);
            } else {
                self.counts.read_bytes += bytes.len() as u64;
                self.counts.dirty_bytes += bytes.len() as u64;
                read_exactly(disk, range.start + bytes.start as u64, &mut segment[bytes])?;
            }
        }
        self.split_segment(job, length, reference)
    }

    /// Reads a stream in order. Returns its size and its bytes that are not holes.
    fn stream(&mut self, disk: &DiskSource, base: Option<&DiskRoot>) -> PipelineResult<(u64, u64)> {
        let mut data = 0;
        let mut size = 0;
        let mut page = None;
        for number in 0.. {
            self.check_cancel()?;
            let mut job = self.job(size)?;
            let length = read_fully(&*disk.source, size, &mut job.segment)
                .map_err(|error| Error::Source { disk: disk.name.clone(), error })?;
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
            data += self.split_segment(job, length, reference)?;
            self.progress.advance(length as u64);
            if length < SEGMENT_BYTES {
                break;
            }
        }
        Ok((size, data))
    }

    /// Cuts a segment that was read completely.
    fn split_segment(
        &mut self,
        job: Box<SegmentJob>,
        length: usize,
        reference: Option<FrameRef>,
    ) -> PipelineResult<u64> {
        let pieces = split(self.chunker, &job.segment[..length]);
        let layout: Vec<(SegmentPiece, Option<FrameRef>)> =
            pieces.into_iter().map(|piece| (piece, None)).collect();
        // The old recipe is read only if the new one differs.
        self.finish_segment(job, &layout, reference, None)
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

    /// An empty job for the segment that begins at `start`.
    pub(super) fn job(&mut self, start: u64) -> PipelineResult<Box<SegmentJob>> {
        let mut job = match self.spare.take() {
            Some(job) => job,
            None => self.outlet.job()?,
        };
        job.start = start;
        Ok(job)
    }

    pub(super) fn send(&mut self, step: TreeStep) -> PipelineResult<()> {
        if let Some(job) = self.outlet.send(step)? {
            self.spare = Some(job);
        }
        Ok(())
    }

    pub(super) fn check_cancel(&self) -> PipelineResult<()> {
        if self.cancel.is_cancelled() { Err(PipelineEnd::Cancelled) } else { Ok(()) }
    }
}
