//! `cow`: data in free pages of one device, records in a ring.
//!
//! Design: docs/design/object.md#placement

use crate::{
    format::run::PageRun,
    space::home::PageHome,
    space::{
        allocator::PageAllocator,
        journal_place::{JournalPlace, JournalRing},
        placement::Placement,
    },
};
use std::ops::Range;

/// Pages of one device, and the ring on it.
#[derive(Debug)]
pub(crate) struct CowPlacement {
    pages: PageAllocator,
    ring: JournalRing,
}

impl CowPlacement {
    pub(crate) fn new(pages: PageAllocator, ring: JournalRing) -> CowPlacement {
        CowPlacement { pages, ring }
    }
}

impl Placement for CowPlacement {
    fn emptied(&self) -> Box<dyn Placement> {
        Box::new(CowPlacement::new(PageAllocator::new(self.pages.pages()), self.ring.clone()))
    }

    fn pages(&self) -> u64 {
        self.pages.pages()
    }

    fn free_pages(&self) -> u64 {
        self.pages.free_pages()
    }

    fn kept_pages(&self) -> u64 {
        (self.pages.pages() - self.pages.hollow().pages()) / self.kept_one_in()
    }

    fn take(&mut self, run: PageRun) -> bool {
        self.pages.take(run)
    }

    fn clip(&self, run: PageRun) -> Option<PageRun> {
        let left = self.pages.pages().checked_sub(run.at)?.min(run.pages.into());
        (left > 0).then(|| PageRun::new(run.at, left as u32))
    }

    fn release(&mut self, run: PageRun) {
        self.pages.release(run);
    }

    /// Neighbours are freed together: each release reads the bits of the free pages around it.
    fn release_all(&mut self, mut runs: Vec<PageRun>) {
        runs.sort_unstable_by_key(|run| run.at);
        let mut joined: Option<PageRun> = None;
        for run in runs {
            match &mut joined {
                Some(last) if last.end() == run.at && last.pages.checked_add(run.pages).is_some() => {
                    last.pages += run.pages;
                }
                _ => {
                    let before = joined.replace(run);
                    before.into_iter().for_each(|before| self.pages.release(before));
                }
            }
        }
        joined.into_iter().for_each(|last| self.pages.release(last));
    }

    fn allocate(&mut self, pages: u64, home: PageHome) -> Option<Vec<PageRun>> {
        self.pages.allocate(pages, home.class)
    }

    fn allocate_run(&mut self, pages: u32, home: PageHome, written: bool) -> Option<PageRun> {
        self.pages.allocate_run(pages, home.class, written)
    }

    fn journal(&self) -> &dyn JournalPlace {
        &self.ring
    }

    fn journal_mut(&mut self) -> &mut dyn JournalPlace {
        &mut self.ring
    }

    fn free_ranges(&self) -> Vec<Range<u64>> {
        self.pages.free_ranges()
    }

    fn hollow_ranges(&self) -> Vec<Range<u64>> {
        self.pages.hollow().iter().collect()
    }

    fn hollow_pages(&self) -> u64 {
        self.pages.hollow().pages()
    }

    fn hollow_runs(&self) -> u64 {
        self.pages.hollow().runs()
    }

    fn make_hollow(&mut self, range: Range<u64>) {
        self.pages.make_hollow(range);
    }

    fn fill(&mut self, range: Range<u64>) {
        self.pages.fill(range);
    }

    fn cut(&mut self, to_pages: u64) {
        self.pages.cut(to_pages);
    }

    fn grow(&mut self, to_pages: u64) {
        self.pages.grow(to_pages);
    }

    fn place_low(&mut self) {
        self.pages.lowest_first = true;
    }

    fn aim_far_from(&mut self, page: u64, class: usize) {
        self.pages.aim_far_from(page, class);
    }

    fn keeps_extents(&self) -> bool {
        true
    }

    fn note_written(&mut self, run: PageRun) {
        self.pages.note_written(run);
    }

    fn forget_written(&mut self, first: u64) {
        self.pages.forget_written(first);
    }

    fn unwritten_pages(&self) -> u64 {
        self.pages.unwritten_pages()
    }

    fn zone_runs(&self) -> u64 {
        self.pages.zone_runs()
    }

    fn written_zones(&self) -> Vec<(u64, u64)> {
        self.pages.written_zones()
    }
}
