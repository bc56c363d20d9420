//! Segment table: the use of each segment, and its owned pages.
//!
//! Invariants
//! - Segments that hold a copy of the superblock, and a partial one at the end, are never used.
//! - A closed segment without an owned page is free.

use crate::{
    format::{
        run::PageRun,
        superblock::{COPIES, SUPERBLOCK_LEN},
    },
    space::allocator::{PageAllocator, ZONE_PAGES},
};
use std::collections::BTreeSet;

/// Use of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SegmentUse {
    Unusable,
    Free,
    /// A head appends to it, or the chain of records needs it.
    Held,
    /// Full, or abandoned by its head.
    Closed,
    /// The same, with pages of checkpoints: it comes back with a later checkpoint.
    ClosedChain,
}

/// Segments of one device.
#[derive(Debug)]
pub(crate) struct SegmentTable {
    segment_pages: u32,
    page_bytes: usize,
    /// Owned pages, and the zones that were written once.
    owned: PageAllocator,
    /// Owned pages of each segment.
    live: Vec<u32>,
    /// Pages of each segment that were written once: the first ones.
    written: Vec<u32>,
    uses: Vec<SegmentUse>,
    free: BTreeSet<u32>,
    live_pages: u64,
    /// Segments that can be used.
    usable: u64,
}

impl SegmentTable {
    /// All segments within `pages` pages, without owned pages.
    pub(crate) fn new(pages: u64, segment_pages: u32, page_bytes: usize) -> SegmentTable {
        let mut table = SegmentTable {
            segment_pages,
            page_bytes,
            owned: PageAllocator::new(pages),
            live: Vec::new(),
            written: Vec::new(),
            uses: Vec::new(),
            free: BTreeSet::new(),
            live_pages: 0,
            usable: 0,
        };
        table.add_segments();
        table
    }

    /// Adds the segments up to the end of the device.
    fn add_segments(&mut self) {
        let count = self.owned.pages() / u64::from(self.segment_pages);
        for segment in self.uses.len() as u64..count {
            let bytes = u64::from(self.segment_pages) * self.page_bytes as u64;
            let (from, to) = (segment * bytes, (segment + 1) * bytes);
            let holds_copy = COPIES.iter().any(|&at| at < to && from < at + SUPERBLOCK_LEN as u64);
            self.live.push(0);
            self.written.push(0);
            self.uses.push(if holds_copy { SegmentUse::Unusable } else { SegmentUse::Free });
            if !holds_copy {
                self.usable += 1;
                self.free.insert(segment as u32);
            }
        }
    }

    pub(crate) fn grow(&mut self, to_pages: u64) {
        self.owned.grow(to_pages);
        self.add_segments();
    }

    pub(crate) fn segment_pages(&self) -> u32 {
        self.segment_pages
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Pages of the device.
    pub(crate) fn device_pages(&self) -> u64 {
        self.owned.pages()
    }

    /// Segments that can be used.
    pub(crate) fn usable(&self) -> u64 {
        self.usable
    }

    pub(crate) fn free_segments(&self) -> u64 {
        self.free.len() as u64
    }

    /// Segments of no head with owned pages.
    pub(crate) fn closed_segments(&self) -> u64 {
        let is_closed = |used: &&SegmentUse| matches!(used, SegmentUse::Closed | SegmentUse::ClosedChain);
        self.uses.iter().filter(is_closed).count() as u64
    }

    /// Pages without an owner, in segments that can be used.
    pub(crate) fn ownerless_pages(&self) -> u64 {
        self.usable() * u64::from(self.segment_pages) - self.live_pages
    }

    /// Pages of `segment` that have an owner.
    pub(crate) fn owned_pages(&self, segment: u32) -> u32 {
        self.live.get(segment as usize).copied().unwrap_or(0)
    }

    /// Full and abandoned segments, each with its owned pages.
    pub(crate) fn closed(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let uses = self.uses.iter().zip(&self.live).enumerate();
        uses.filter(|(_, (used, _))| **used == SegmentUse::Closed)
            .map(|(segment, (_, live))| (segment as u32, *live))
    }

    pub(crate) fn first_page(&self, segment: u32) -> u64 {
        u64::from(segment) * u64::from(self.segment_pages)
    }

    /// Whether data or records may lie in the whole run.
    pub(crate) fn is_usable(&self, run: PageRun) -> bool {
        run.pages > 0
            && self.parts(run).all(|(segment, _)| {
                self.uses.get(segment as usize).is_some_and(|used| *used != SegmentUse::Unusable)
            })
    }

    /// Whether the run lies in segments that nobody holds and that have no owned page.
    pub(crate) fn is_free(&self, run: PageRun) -> bool {
        self.parts(run).all(|(segment, _)| self.free.contains(&segment))
    }

    /// The segments of a run, each with the number of its pages in the run.
    pub(crate) fn parts(&self, run: PageRun) -> impl Iterator<Item = (u32, u32)> + use<> {
        let size = u64::from(self.segment_pages);
        let end = run.end();
        let mut at = run.at;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let segment = at / size;
                let upto = end.min((segment + 1) * size);
                let part = (u32::try_from(segment).unwrap_or(u32::MAX), (upto - at) as u32);
                at = upto;
                part
            })
        })
    }

    /// Marks `run` as owned. `false`, without a change, if a page of it is owned or unusable.
    pub(crate) fn take(&mut self, run: PageRun) -> bool {
        if !self.is_usable(run) || !self.owned.take(run) {
            return false;
        }
        for (segment, pages) in self.parts(run) {
            self.live[segment as usize] += pages;
            if self.uses[segment as usize] == SegmentUse::Free {
                self.uses[segment as usize] = SegmentUse::Closed;
                self.free.remove(&segment);
            }
        }
        self.live_pages += u64::from(run.pages);
        true
    }

    /// Frees `run`.
    pub(crate) fn release(&mut self, run: PageRun) {
        self.owned.release(run);
        self.live_pages -= u64::from(run.pages);
        for (segment, pages) in self.parts(run) {
            self.live[segment as usize] -= pages;
            self.free_if_empty(segment);
        }
    }

    /// Takes a free segment for a head or for the chain: the first one from `from` on, or the lowest.
    pub(crate) fn hold_free(&mut self, from: u32) -> Option<u32> {
        let segment = self.free.range(from..).next().or_else(|| self.free.first()).copied()?;
        self.hold(segment);
        Some(segment)
    }

    /// Takes the last free segment.
    pub(crate) fn hold_last_free(&mut self) -> Option<u32> {
        let segment = self.free.last().copied()?;
        self.hold(segment);
        Some(segment)
    }

    /// Takes `segment` for a head or for the chain.
    pub(crate) fn hold(&mut self, segment: u32) {
        self.free.remove(&segment);
        self.uses[segment as usize] = SegmentUse::Held;
    }

    /// Neither a head nor the chain needs `segment` any more.
    pub(crate) fn close(&mut self, segment: u32) {
        self.uses[segment as usize] = SegmentUse::Closed;
        self.free_if_empty(segment);
    }

    /// Like [`SegmentTable::close`], for a segment of checkpoints.
    pub(crate) fn close_chain(&mut self, segment: u32) {
        self.uses[segment as usize] = SegmentUse::ClosedChain;
        self.free_if_empty(segment);
    }

    /// Pages without an owner in segments that a head, the chain of records or a checkpoint has.
    pub(crate) fn held_rests(&self) -> u64 {
        let is_held = |used: SegmentUse| matches!(used, SegmentUse::Held | SegmentUse::ClosedChain);
        let held = self.uses.iter().zip(&self.live).filter(|(used, _)| is_held(**used));
        held.map(|(_, live)| u64::from(self.segment_pages - live)).sum()
    }

    /// Notes that every page of `run` has been written.
    pub(crate) fn note_written(&mut self, run: PageRun) {
        self.owned.note_written(run);
        let mut at = run.at;
        for (segment, pages) in self.parts(run) {
            let from = (at - self.first_page(segment)) as u32;
            if let Some(written) = self.written.get_mut(segment as usize)
                && *written >= from
            {
                *written = (*written).max(from + pages);
            }
            at += u64::from(pages);
        }
    }

    /// Pages from `first` on count as never written, and so do the segments with one of them.
    pub(crate) fn forget_written(&mut self, first: u64) {
        self.owned.forget_written(first);
        let segment = (first / u64::from(self.segment_pages)) as usize;
        self.written.iter_mut().skip(segment).for_each(|written| *written = 0);
    }

    /// The pages of `segment` to write next, so that all of it was written once; at most a zone of them.
    pub(crate) fn unwritten(&self, segment: u32) -> Option<PageRun> {
        let written = self.written.get(segment as usize).copied()?;
        let pages = (self.segment_pages - written).min(ZONE_PAGES as u32);
        (pages > 0).then(|| PageRun::new(self.first_page(segment) + u64::from(written), pages))
    }

    /// Number of runs that [`SegmentTable::written_zones`] returns.
    pub(crate) fn zone_runs(&self) -> u64 {
        self.owned.zone_runs()
    }

    /// Runs of written zones, for the checkpoint.
    pub(crate) fn written_zones(&self) -> Vec<(u64, u64)> {
        self.owned.written_zones()
    }

    fn free_if_empty(&mut self, segment: u32) {
        let is_closed = matches!(self.uses[segment as usize], SegmentUse::Closed | SegmentUse::ClosedChain);
        if self.live[segment as usize] == 0 && is_closed {
            self.uses[segment as usize] = SegmentUse::Free;
            self.free.insert(segment);
        }
    }

    /// The longest run of neighbours among the free segments, in pages; empty if none is free.
    pub(crate) fn longest_free(&self) -> std::ops::Range<u64> {
        let size = u64::from(self.segment_pages);
        let (mut longest, mut run) = (0..0, 0..0);
        for &segment in &self.free {
            let first = self.first_page(segment);
            run = if run.end == first { run.start..first + size } else { first..first + size };
            if run.end - run.start > longest.end - longest.start {
                longest = run.clone();
            }
        }
        longest
    }

    /// Pages without an owner, in segments of any use, ascending.
    pub(crate) fn free_ranges(&self) -> Vec<std::ops::Range<u64>> {
        self.owned.free_ranges()
    }
}
