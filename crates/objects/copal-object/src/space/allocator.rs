//! Page allocator: one bit per page, next fit: each kind and lifetime continues behind its last allocation.
//!
//! The state is in memory and derived from the tables at open; on disk is only which zones have been written
//! once.
//! Invariants
//! - A page is free or owned, never both: taking an owned page or freeing a free one panics (a bug of Copal).
//! - A search reads the bits of a few chunks, for any fragmentation: the index of free runs names them.
//! - A hollow page is neither free nor owned: it counts as taken until the file system has space for it
//!   again.
//!
//! Not here: quarantine and reserves (`space`).

use crate::{
    format::run::{PageRun, RUN_PAGES_MAX},
    space::{
        hollow::HollowRanges,
        run_index::{RunIndex, UsablePages, WORD_PAGES},
    },
};
use std::ops::Range;

/// Pages of a zone, the unit of "written once": 1 MiB of 4 KiB pages. A multiple of 64.
pub(crate) const ZONE_PAGES: u64 = 256;
const ZONE_WORDS: usize = (ZONE_PAGES / WORD_PAGES) as usize;
/// Placement classes: data of different classes is placed apart.
pub(crate) const CLASSES: usize = 7;

/// Free and taken pages of a store.
#[derive(Debug)]
pub(crate) struct PageAllocator {
    /// Bit set: taken.
    bits: Vec<u64>,
    free_runs: RunIndex,
    /// Free runs in written zones.
    written_runs: RunIndex,
    free: u64,
    pages: u64,
    /// Cursor of each class, in words.
    cursors: [usize; CLASSES],
    /// Bit per zone: every page of it was written once.
    written: Vec<bool>,
    /// Runs of written zones.
    zone_runs: u64,
    hollow: HollowRanges,
    /// Search from the first page, so that freed pages are reused soon and the last ones become free.
    pub(crate) lowest_first: bool,
}

impl PageAllocator {
    /// All of `pages` pages are free and unwritten.
    pub(crate) fn new(pages: u64) -> PageAllocator {
        let mut allocator = PageAllocator {
            bits: Vec::new(),
            free_runs: RunIndex::default(),
            written_runs: RunIndex::default(),
            free: 0,
            pages: 0,
            cursors: [0; CLASSES],
            written: Vec::new(),
            zone_runs: 0,
            hollow: HollowRanges::default(),
            lowest_first: false,
        };
        allocator.grow(pages);
        for (class, cursor) in allocator.cursors.iter_mut().enumerate() {
            *cursor = (pages / WORD_PAGES) as usize / (CLASSES + 1) * class;
        }
        allocator
    }

    /// Adds free pages at the end.
    pub(crate) fn grow(&mut self, pages: u64) {
        if pages <= self.pages {
            return;
        }
        let words = pages.div_ceil(WORD_PAGES) as usize;
        self.bits.resize(words, u64::MAX);
        self.written.resize(pages.div_ceil(ZONE_PAGES) as usize, false);
        self.free_runs.resize(pages);
        self.written_runs.resize(pages);
        let from = self.pages;
        self.pages = pages;
        masks(from, pages).for_each(|(word, mask)| self.bits[word] &= !mask);
        self.free += pages - from;
        self.free_runs.update(UsablePages { taken: &self.bits, written: None }, from, pages);
        self.update_written_runs(from, pages);
    }

    /// Reads the runs around the pages `from..to` again: other zones are written.
    fn update_written_runs(&mut self, from: u64, to: u64) {
        let written = Some((&self.written[..], ZONE_WORDS));
        self.written_runs.update(UsablePages { taken: &self.bits, written }, from, to);
    }

    /// Removes the pages from `pages` on, none of which is owned.
    ///
    /// # Panics
    /// When one of them is owned.
    pub(crate) fn cut(&mut self, pages: u64) {
        if pages >= self.pages {
            return;
        }
        self.hollow.cut(pages);
        let mut free = 0;
        for (word, mask) in masks(pages, self.pages) {
            let here = (!self.bits[word] & mask).count_ones();
            self.bits[word] |= mask;
            free += u64::from(here);
        }
        self.free -= free;
        self.free_runs.update(UsablePages { taken: &self.bits, written: None }, pages, self.pages);
        self.forget_written(pages);
        self.pages = pages;
        self.bits.truncate(pages.div_ceil(WORD_PAGES) as usize);
        self.written.truncate(pages.div_ceil(ZONE_PAGES) as usize);
        self.free_runs.resize(pages);
        self.written_runs.resize(pages);
    }

    pub(crate) fn hollow(&self) -> &HollowRanges {
        &self.hollow
    }

    /// Makes the free pages of `range` hollow.
    pub(crate) fn make_hollow(&mut self, range: Range<u64>) {
        let end = range.end.min(self.pages);
        let mut at = self.first_from(range.start, false);
        while at < end {
            let upto = self.first_from(at, true).min(end);
            self.mark_taken(at, upto);
            self.forget_zones(at..upto);
            self.hollow.insert(at..upto);
            at = self.first_from(upto, false);
        }
        self.zone_runs = self.written_zones().len() as u64;
    }

    /// Frees the hollow run `range`, or the first part of one.
    ///
    /// # Panics
    /// When a page of it is not hollow.
    pub(crate) fn fill(&mut self, range: Range<u64>) {
        self.hollow.remove(range.clone());
        self.mark_free(range.start, range.end);
    }

    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    pub(crate) fn free_pages(&self) -> u64 {
        self.free
    }

    /// All free pages, ascending, in ranges that do not touch.
    pub(crate) fn free_ranges(&self) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        let mut at = self.first_from(0, false);
        while at < self.pages {
            let end = self.first_from(at, true);
            ranges.push(at..end);
            at = self.first_from(end, false);
        }
        ranges
    }

    /// First page from `at` on that is taken, or free; the end if there is none.
    fn first_from(&self, at: u64, taken: bool) -> u64 {
        let mut page = at;
        while page < self.pages {
            let word = self.bits[(page / WORD_PAGES) as usize] >> (page % WORD_PAGES);
            let skip = if taken { word.trailing_zeros() } else { word.trailing_ones() };
            let left = WORD_PAGES - page % WORD_PAGES;
            if u64::from(skip) < left {
                return (page + u64::from(skip)).min(self.pages);
            }
            page += left;
        }
        self.pages
    }

    /// Marks `run` as owned. `false`, without a change, if a page of it is owned already.
    pub(crate) fn take(&mut self, run: PageRun) -> bool {
        if run.end() > self.pages || !self.is_free(run) {
            return false;
        }
        self.mark_taken(run.at, run.end());
        true
    }

    /// Whether all pages of `run` are free.
    pub(crate) fn is_free(&self, run: PageRun) -> bool {
        masks(run.at, run.end()).all(|(word, mask)| self.bits[word] & mask == 0)
    }

    /// Whether no page of `run` is free.
    pub(crate) fn is_taken(&self, run: PageRun) -> bool {
        run.end() <= self.pages && masks(run.at, run.end()).all(|(word, mask)| self.bits[word] & mask == mask)
    }

    /// Frees `run`.
    ///
    /// # Panics
    /// When a page of it is free already.
    pub(crate) fn release(&mut self, run: PageRun) {
        assert!(self.is_taken(run), "pages {}..{} are freed twice", run.at, run.end());
        self.mark_free(run.at, run.end());
    }

    fn mark_taken(&mut self, from: u64, to: u64) {
        masks(from, to).for_each(|(word, mask)| self.bits[word] |= mask);
        self.free -= to - from;
        let taken = &self.bits[..];
        self.free_runs.taken(UsablePages { taken, written: None }, from, to);
        let written = Some((&self.written[..], ZONE_WORDS));
        self.written_runs.taken(UsablePages { taken, written }, from, to);
    }

    fn mark_free(&mut self, from: u64, to: u64) {
        masks(from, to).for_each(|(word, mask)| self.bits[word] &= !mask);
        self.free += to - from;
        let taken = &self.bits[..];
        self.free_runs.freed(UsablePages { taken, written: None }, from, to);
        let usable = UsablePages { taken, written: Some((&self.written[..], ZONE_WORDS)) };
        let mut at = from;
        while at < to {
            let zone = at / ZONE_PAGES;
            let end = ((zone + 1) * ZONE_PAGES).min(to);
            if self.written[zone as usize] {
                self.written_runs.freed(usable, at, end);
            }
            at = end;
        }
    }

    /// Allocates `pages` pages in as few runs as first fit finds; `None` if fewer are free.
    pub(crate) fn allocate(&mut self, pages: u64, class: usize) -> Option<Vec<PageRun>> {
        if pages > self.free {
            return None;
        }
        let mut runs = Vec::new();
        let mut left = pages;
        let mut shortest = left;
        while left > 0 {
            let want = left.min(RUN_PAGES_MAX.into());
            shortest = shortest.min(want);
            match self.find(shortest, want, class, false) {
                Some(run) => {
                    assert!(self.take(run), "a run that was found free is free");
                    left -= u64::from(run.pages);
                    runs.push(run);
                }
                None => shortest = (shortest / 2).max(1),
            }
        }
        Some(runs)
    }

    /// Allocates one run of `pages` pages; with `written`, in written zones only.
    pub(crate) fn allocate_run(&mut self, pages: u32, class: usize, written: bool) -> Option<PageRun> {
        let run = self.find(pages.into(), pages.into(), class, written)?;
        assert!(self.take(run), "a run that was found free is free");
        Some(run)
    }

    /// Moves the cursor of `class` half a store away from `page`.
    pub(crate) fn aim_far_from(&mut self, page: u64, class: usize) {
        let far = (page + self.pages / 2) % self.pages.max(1);
        self.cursors[class] = (far / WORD_PAGES) as usize;
    }

    /// First free run of at least `shortest` pages from the cursor of `class` on, cut to `want` pages.
    fn find(&mut self, shortest: u64, want: u64, class: usize, written: bool) -> Option<PageRun> {
        let last_word = self.bits.len().saturating_sub(1);
        let start =
            if self.lowest_first { 0 } else { self.cursors[class].min(last_word) as u64 * WORD_PAGES };
        let taken = &self.bits[..];
        let (runs, usable) = if written {
            let zones = Some((&self.written[..], ZONE_WORDS));
            (&mut self.written_runs, UsablePages { taken, written: zones })
        } else {
            (&mut self.free_runs, UsablePages { taken, written: None })
        };
        let at = runs.find(usable, start, shortest).or_else(|| runs.find(usable, 0, shortest))?;
        let found = PageRun::new(at, (usable.run_end(at, at + want) - at) as u32);
        self.cursors[class] = (found.end() / WORD_PAGES) as usize;
        Some(found)
    }

    /// Notes that every page of `run` has been written; whole zones inside it count as written from now on.
    pub(crate) fn note_written(&mut self, run: PageRun) {
        let first = run.at.div_ceil(ZONE_PAGES) as usize;
        let last = (run.end() / ZONE_PAGES) as usize;
        let is_written = |written: &[bool], zone: usize| written.get(zone).copied().unwrap_or(false);
        for zone in first..last.min(self.written.len()) {
            if self.written[zone] {
                continue;
            }
            self.written[zone] = true;
            let before = zone > 0 && is_written(&self.written, zone - 1);
            match (before, is_written(&self.written, zone + 1)) {
                (true, true) => self.zone_runs -= 1,
                (false, false) => self.zone_runs += 1,
                _ => {}
            }
        }
        self.update_written_runs(run.at, run.end().min(self.pages));
    }

    /// Zones that reach beyond page `first` no longer count as written.
    pub(crate) fn forget_written(&mut self, first: u64) {
        self.forget_zones(first..self.pages.max(first + 1));
        self.zone_runs = self.written_zones().len() as u64;
    }

    /// Zones with a page of `range` no longer count as written. Does not update the number of runs.
    fn forget_zones(&mut self, range: Range<u64>) {
        let (first, end) = (range.start / ZONE_PAGES, range.end.div_ceil(ZONE_PAGES));
        let zones = self.written.iter_mut().take(end as usize).skip(first as usize);
        let forgotten = zones.map(std::mem::take).filter(|written| *written).count();
        if forgotten > 0 {
            self.update_written_runs(first * ZONE_PAGES, (end * ZONE_PAGES).min(self.pages));
        }
    }

    /// Free pages in zones that do not count as written.
    pub(crate) fn unwritten_pages(&self) -> u64 {
        let zones = |range: &Range<u64>| range.start / ZONE_PAGES..range.end.div_ceil(ZONE_PAGES);
        let unwritten = |range: Range<u64>| {
            let unwritten =
                zones(&range).filter(|&zone| !self.written.get(zone as usize).is_some_and(|is| *is));
            unwritten
                .map(move |zone| range.end.min((zone + 1) * ZONE_PAGES) - range.start.max(zone * ZONE_PAGES))
        };
        self.free_ranges().into_iter().flat_map(unwritten).sum()
    }

    /// Number of runs that [`PageAllocator::written_zones`] returns.
    pub(crate) fn zone_runs(&self) -> u64 {
        self.zone_runs
    }

    /// Runs of written zones, for the checkpoint: first zone and number of zones.
    pub(crate) fn written_zones(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (zone, _) in self.written.iter().enumerate().filter(|(_, written)| **written) {
            match runs.last_mut() {
                Some((at, zones)) if *at + *zones == zone as u64 => *zones += 1,
                _ => runs.push((zone as u64, 1)),
            }
        }
        runs
    }
}

/// Words and bit masks that cover pages `from..to`.
fn masks(from: u64, to: u64) -> impl Iterator<Item = (usize, u64)> {
    let mut page = from;
    std::iter::from_fn(move || {
        if page >= to {
            return None;
        }
        let bit = page % WORD_PAGES;
        let count = (WORD_PAGES - bit).min(to - page);
        let mask = if count == 64 { u64::MAX } else { ((1 << count) - 1) << bit };
        let word = (page / WORD_PAGES) as usize;
        page += count;
        Some((word, mask))
    })
}

#[cfg(test)]
mod tests;
