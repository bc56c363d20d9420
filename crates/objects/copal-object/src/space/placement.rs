//! Placement of pages: bits of one device, or files of a directory.
//!
//! Design: docs/design/object.md#space
//! Not here: quarantine and reserves (`space`), which are the same for both.

use crate::{
    backend::home::PageHome, backend::hostfs::FileSpace, format::run::PageRun,
    space::allocator::PageAllocator,
};
use std::ops::Range;

/// Free and owned pages of either backend.
#[derive(Debug)]
pub(crate) enum PagePlacement {
    /// `cow`: pages of one device.
    Pages(PageAllocator),
    /// `hostfs`: pages of files.
    Files(FileSpace),
}

impl PagePlacement {
    /// One of so many pages of a device is kept in reserve.
    pub(crate) const KEPT_ONE_IN: u64 = 50;

    /// The same space without owned pages, to derive it a second time.
    pub(crate) fn emptied(&self) -> PagePlacement {
        match self {
            PagePlacement::Pages(pages) => PagePlacement::Pages(PageAllocator::new(pages.pages())),
            PagePlacement::Files(files) => PagePlacement::Files(files.emptied()),
        }
    }

    pub(crate) fn pages(&self) -> u64 {
        match self {
            PagePlacement::Pages(pages) => pages.pages(),
            PagePlacement::Files(files) => files.pages(),
        }
    }

    /// Pages that ordinary operations leave free, besides those for checkpoints.
    pub(crate) fn kept_pages(&self) -> u64 {
        match self {
            PagePlacement::Pages(pages) => {
                (pages.pages() - pages.hollow().pages()) / PagePlacement::KEPT_ONE_IN
            }
            PagePlacement::Files(files) => files.kept_pages(),
        }
    }

    pub(crate) fn free_pages(&self) -> u64 {
        match self {
            PagePlacement::Pages(pages) => pages.free_pages(),
            PagePlacement::Files(files) => files.free_pages(),
        }
    }

    /// All free pages of a device, ascending. A directory has no free pages.
    pub(crate) fn free_ranges(&self) -> Vec<Range<u64>> {
        match self {
            PagePlacement::Pages(pages) => pages.free_ranges(),
            PagePlacement::Files(_) => Vec::new(),
        }
    }

    /// Hollow pages, ascending.
    pub(crate) fn hollow_ranges(&self) -> Vec<Range<u64>> {
        match self {
            PagePlacement::Pages(pages) => pages.hollow().iter().collect(),
            PagePlacement::Files(_) => Vec::new(),
        }
    }

    /// Number of hollow pages.
    pub(crate) fn hollow_pages(&self) -> u64 {
        match self {
            PagePlacement::Pages(pages) => pages.hollow().pages(),
            PagePlacement::Files(_) => 0,
        }
    }

    /// Number of runs that [`PagePlacement::hollow_ranges`] returns.
    pub(crate) fn hollow_runs(&self) -> u64 {
        match self {
            PagePlacement::Pages(pages) => pages.hollow().runs(),
            PagePlacement::Files(_) => 0,
        }
    }

    /// Makes the free pages of `range` hollow.
    pub(crate) fn make_hollow(&mut self, range: Range<u64>) {
        if let PagePlacement::Pages(pages) = self {
            pages.make_hollow(range);
        }
    }

    /// Frees the hollow run `range`, or the first part of one.
    pub(crate) fn fill(&mut self, range: Range<u64>) {
        if let PagePlacement::Pages(pages) = self {
            pages.fill(range);
        }
    }

    /// Removes pages at the end of a device that have no owner.
    pub(crate) fn cut(&mut self, to_pages: u64) {
        if let PagePlacement::Pages(pages) = self {
            pages.cut(to_pages);
        }
    }

    /// Adds free pages at the end of a device.
    pub(crate) fn grow(&mut self, to_pages: u64) {
        if let PagePlacement::Pages(pages) = self {
            pages.grow(to_pages);
        }
    }

    /// Marks `run` as owned. `false`, without a change, if a page of it is owned already.
    pub(crate) fn take(&mut self, run: PageRun) -> bool {
        match self {
            PagePlacement::Pages(pages) => pages.take(run),
            PagePlacement::Files(files) => files.take(run),
        }
    }

    /// Like [`PagePlacement::take`], for an object that may continue there.
    pub(crate) fn take_for(&mut self, run: PageRun, owner: u64) -> bool {
        match self {
            PagePlacement::Pages(pages) => pages.take(run),
            PagePlacement::Files(files) => files.take_for(run, owner),
        }
    }

    /// The pages of `run` that can have an owner: those of the device, or, in a directory, all of a run
    /// inside one file.
    pub(crate) fn clip(&self, run: PageRun) -> Option<PageRun> {
        match self {
            PagePlacement::Pages(pages) => {
                let left = pages.pages().checked_sub(run.at)?.min(run.pages.into());
                (left > 0).then(|| PageRun::new(run.at, left as u32))
            }
            PagePlacement::Files(files) => files.is_valid(run).then_some(run),
        }
    }

    /// Frees `run`.
    pub(crate) fn release(&mut self, run: PageRun) {
        match self {
            PagePlacement::Pages(pages) => pages.release(run),
            PagePlacement::Files(files) => files.release(run),
        }
    }

    /// Allocates `pages` pages; `None` if fewer are free.
    pub(crate) fn allocate(&mut self, pages: u64, home: PageHome) -> Option<Vec<PageRun>> {
        match self {
            PagePlacement::Pages(bits) => bits.allocate(pages, home.class),
            PagePlacement::Files(files) => files.allocate(pages, home.owner),
        }
    }

    /// From now on the lowest free pages of a device are allocated first.
    pub(crate) fn place_low(&mut self) {
        if let PagePlacement::Pages(pages) = self {
            pages.lowest_first = true;
        }
    }

    /// The next pages for `class` lie half a device away from `page`.
    pub(crate) fn aim_far_from(&mut self, page: u64, class: usize) {
        if let PagePlacement::Pages(bits) = self {
            bits.aim_far_from(page, class);
        }
    }

    /// Allocates one run of `pages` pages; with `written`, from written space only. In files all space is
    /// equal.
    pub(crate) fn allocate_run(&mut self, pages: u32, home: PageHome, written: bool) -> Option<PageRun> {
        match self {
            PagePlacement::Pages(bits) => bits.allocate_run(pages, home.class, written),
            PagePlacement::Files(files) => files.allocate_run(pages, home.owner),
        }
    }

    /// Notes that every page of `run` has been written.
    pub(crate) fn note_written(&mut self, run: PageRun) {
        if let PagePlacement::Pages(pages) = self {
            pages.note_written(run);
        }
    }

    /// Pages from `first` on count as never written.
    pub(crate) fn forget_written(&mut self, first: u64) {
        if let PagePlacement::Pages(pages) = self {
            pages.forget_written(first);
        }
    }

    /// Number of runs of written zones.
    pub(crate) fn zone_runs(&self) -> u64 {
        match self {
            PagePlacement::Pages(pages) => pages.zone_runs(),
            PagePlacement::Files(_) => 0,
        }
    }

    /// Runs of written zones, for the checkpoint.
    pub(crate) fn written_zones(&self) -> Vec<(u64, u64)> {
        match self {
            PagePlacement::Pages(pages) => pages.written_zones(),
            PagePlacement::Files(_) => Vec::new(),
        }
    }

    /// Takes the blocks and files that have no owner any more, for a discard.
    pub(crate) fn take_discardable(&mut self) -> Vec<PageRun> {
        match self {
            PagePlacement::Pages(_) => Vec::new(),
            PagePlacement::Files(files) => files.take_discardable(),
        }
    }

    /// The discard of a run of [`PagePlacement::take_discardable`] has ended while `epoch` was open; `done`:
    /// with success.
    pub(crate) fn discarded(&mut self, run: PageRun, done: bool, epoch: u64) {
        if let PagePlacement::Files(files) = self {
            files.discarded(run, done, epoch);
        }
    }

    /// All epochs up to `epoch` are durable.
    pub(crate) fn flushed(&mut self, epoch: u64) {
        if let PagePlacement::Files(files) = self {
            files.flushed(epoch);
        }
    }

    /// In a directory, `owner` continues in a new file.
    pub(crate) fn start_new_file(&mut self, owner: u64) {
        if let PagePlacement::Files(files) = self {
            files.start_new_file(owner);
        }
    }

    /// Queries the host's free space if a query is due.
    pub(crate) fn query_host_when_due(&mut self, unwritten_bytes: u64) {
        if let PagePlacement::Files(files) = self {
            files.query_host_when_due(unwritten_bytes);
        }
    }

    /// Queries the host's free space.
    pub(crate) fn query_host(&mut self, unwritten_bytes: u64) {
        if let PagePlacement::Files(files) = self {
            files.query_host(unwritten_bytes);
        }
    }

    /// Frees those files among `numbers` that no record names.
    pub(crate) fn free_unknown_files(&mut self, numbers: &[u32]) {
        if let PagePlacement::Files(files) = self {
            files.free_unknown_files(numbers);
        }
    }
}
