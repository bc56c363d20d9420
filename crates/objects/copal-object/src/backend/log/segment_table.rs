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
    space::allocator::PageAllocator,
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
}

/// Segments of one device.
#[derive(Debug)]
pub(crate) struct SegmentTable {
    segment_pages: u32,
    page_bytes: usize,
    owned: PageAllocator,
    /// Owned pages of each segment.
    live: Vec<u32>,
    uses: Vec<SegmentUse>,
    free: BTreeSet<u32>,
    live_pages: u64,
}

impl SegmentTable {
    /// All segments within `pages` pages, without owned pages.
    pub(crate) fn new(pages: u64, segment_pages: u32, page_bytes: usize) -> SegmentTable {
        let mut table = SegmentTable {
            segment_pages,
            page_bytes,
            owned: PageAllocator::new(pages),
            live: Vec::new(),
            uses: Vec::new(),
            free: BTreeSet::new(),
            live_pages: 0,
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
            self.uses.push(if holds_copy { SegmentUse::Unusable } else { SegmentUse::Free });
            if !holds_copy {
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
        self.uses.iter().filter(|used| **used != SegmentUse::Unusable).count() as u64
    }

    pub(crate) fn free_segments(&self) -> u64 {
        self.free.len() as u64
    }

    /// Pages without an owner, in segments that can be used.
    pub(crate) fn ownerless_pages(&self) -> u64 {
        self.usable() * u64::from(self.segment_pages) - self.live_pages
    }

    /// Whether a page of `segment` has an owner.
    pub(crate) fn is_owned(&self, segment: u32) -> bool {
        self.live.get(segment as usize).is_some_and(|&pages| pages > 0)
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

    /// The segments of a run, each with the number of its pages in the run.
    fn parts(&self, run: PageRun) -> impl Iterator<Item = (u32, u32)> + use<> {
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

    fn free_if_empty(&mut self, segment: u32) {
        if self.live[segment as usize] == 0 && self.uses[segment as usize] == SegmentUse::Closed {
            self.uses[segment as usize] = SegmentUse::Free;
            self.free.insert(segment);
        }
    }

    /// Free segments as ranges of pages, ascending.
    pub(crate) fn free_ranges(&self) -> Vec<std::ops::Range<u64>> {
        self.owned.free_ranges()
    }
}
