//! Placement: the part of a store that depends on the kind of storage below it. It decides the places of data
//! and of records.
//!
//! Each backend implements it. Groups, epochs, quarantine, tables, checkpoints and recovery are the same for all
//! backends.
//!
//! Design: docs/design/object.md#placement
//! Not here: quarantine and reserves (`space`).

use crate::{
    LogSegments,
    format::run::{PageRun, RUN_PAGES_MAX},
    space::home::PageHome,
    space::journal_place::JournalPlace,
    space::segment_table::SegmentTable,
};
use std::{fmt::Debug, ops::Range};

/// Free and owned pages of one backend, and the place of its journal. Methods with a body concern only some
/// backends; for the others nothing happens.
pub(crate) trait Placement: Debug + Send {
    /// The same space without owned pages, to derive it a second time.
    fn emptied(&self) -> Box<dyn Placement>;

    /// Owned and free pages.
    fn pages(&self) -> u64;

    fn free_pages(&self) -> u64;

    /// Pages without an owner, also those that cannot be allocated yet.
    fn ownerless_pages(&self) -> u64 {
        self.free_pages()
    }

    /// Those of them that can become free for data. The rests of segments that other heads append to cannot.
    fn reachable_pages(&self) -> u64 {
        self.ownerless_pages()
    }

    /// Those of them that will stay so, however the heads move on.
    fn lasting_pages(&self) -> u64 {
        self.ownerless_pages()
    }

    /// Whether the owned pages leave the places for records that the backend needs; otherwise the reason.
    fn verify(&self) -> Result<(), String> {
        Ok(())
    }

    /// Longest frame in pages.
    fn frame_pages_max(&self) -> u32 {
        RUN_PAGES_MAX
    }

    /// Whether stream frames are data of groups. Otherwise streams have extents of their own.
    fn frames_ride(&self) -> bool {
        false
    }

    /// Pages that ordinary operations leave free, besides those for checkpoints.
    fn kept_pages(&self) -> u64;

    /// Pages that every ordinary operation leaves free, besides those for checkpoints.
    fn kept_always(&self) -> u64 {
        0
    }

    /// Pages that operations which free space leave, besides those for checkpoints, if they need pages at first.
    fn kept_from_releases(&self) -> u64 {
        0
    }

    /// Whether one copy of a checkpoint of `pages` pages finds room.
    fn fits_checkpoint(&self, pages: u64) -> bool {
        self.free_pages() >= pages
    }

    /// The segments of a backend that needs a cleaner.
    fn segments(&self) -> Option<&SegmentTable> {
        None
    }

    /// Segments to which the cleaner may move pages, while a checkpoint of `checkpoint_pages` pages finds room.
    fn segments_for_survivors(&self, _checkpoint_pages: u64) -> u64 {
        0
    }

    /// Sets whether survivors may take one of the segments that are kept for records.
    fn lend_to_survivors(&mut self, _lends: bool) {}

    /// Pages left in the segment to which the cleaner appends.
    fn survivor_rest(&self) -> u32 {
        0
    }

    /// That segment.
    fn survivor_segment(&self) -> Option<u32> {
        None
    }

    /// One of so many pages is kept, for the computation of growth.
    fn kept_one_in(&self) -> u64 {
        50
    }

    /// Marks `run` as owned. `false`, without a change, if a page of it is owned already.
    fn take(&mut self, run: PageRun) -> bool;

    /// Like [`Placement::take`], for an object that may continue there.
    fn take_for(&mut self, run: PageRun, _owner: u64) -> bool {
        self.take(run)
    }

    /// Like [`Placement::take`]; `false` also if a page is not available to every operation.
    fn take_free(&mut self, run: PageRun) -> bool {
        self.take(run)
    }

    /// Page behind the last one.
    fn pages_end(&self) -> u64 {
        self.pages()
    }

    /// Pages that can be taken with [`Placement::take_free`] are multiples of this, at multiples of it.
    fn free_granule(&self) -> u64 {
        1
    }

    /// The pages of `run` that can have an owner.
    fn clip(&self, run: PageRun) -> Option<PageRun>;

    /// Frees `run`.
    fn release(&mut self, run: PageRun);

    /// Frees all of `runs`.
    fn release_all(&mut self, runs: Vec<PageRun>) {
        runs.into_iter().for_each(|run| self.release(run));
    }

    /// Allocates `pages` pages; `None` if fewer are free.
    fn allocate(&mut self, pages: u64, home: PageHome) -> Option<Vec<PageRun>>;

    /// Allocates one run of `pages` pages; with `written`, from space that was written before.
    fn allocate_run(&mut self, pages: u32, home: PageHome, written: bool) -> Option<PageRun>;

    /// The journal.
    fn journal(&self) -> &dyn JournalPlace;

    fn journal_mut(&mut self) -> &mut dyn JournalPlace;

    /// All free pages, ascending, if addresses have an end.
    fn free_ranges(&self) -> Vec<Range<u64>> {
        Vec::new()
    }

    /// The longest run that [`Placement::take_free`] takes; empty if there is none.
    fn longest_free(&self) -> Range<u64> {
        self.free_ranges().into_iter().max_by_key(|range| range.end - range.start).unwrap_or_default()
    }

    /// Hollow pages, ascending.
    fn hollow_ranges(&self) -> Vec<Range<u64>> {
        Vec::new()
    }

    /// Number of hollow pages.
    fn hollow_pages(&self) -> u64 {
        0
    }

    /// Number of runs that [`Placement::hollow_ranges`] returns.
    fn hollow_runs(&self) -> u64 {
        0
    }

    /// Makes the free pages of `range` hollow.
    fn make_hollow(&mut self, _range: Range<u64>) {}

    /// Frees the hollow run `range`, or the first part of one.
    fn fill(&mut self, _range: Range<u64>) {}

    /// Removes pages at the end that have no owner.
    fn cut(&mut self, _to_pages: u64) {}

    /// Adds free pages at the end.
    fn grow(&mut self, _to_pages: u64) {}

    /// From now on the lowest free pages are allocated first.
    fn place_low(&mut self) {}

    /// The next pages for `class` lie half a device away from `page`.
    fn aim_far_from(&mut self, _page: u64, _class: usize) {}

    /// Whether extents that streams give up are kept for streams.
    fn keeps_extents(&self) -> bool {
        false
    }

    /// Notes that every page of `run` has been written.
    fn note_written(&mut self, _run: PageRun) {}

    /// Pages from `first` on count as never written.
    fn forget_written(&mut self, _first: u64) {}

    /// Number of runs of written zones.
    fn zone_runs(&self) -> u64 {
        0
    }

    /// Runs of written zones, for the checkpoint.
    fn written_zones(&self) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// Takes the pages that have no owner any more, for a discard.
    fn take_discardable(&mut self) -> Vec<PageRun> {
        Vec::new()
    }

    /// The discard of a run of [`Placement::take_discardable`] has ended while `epoch` was open; `done`: with
    /// success.
    fn discarded(&mut self, _run: PageRun, _done: bool, _epoch: u64) {}

    /// All epochs up to `epoch` are durable.
    fn flushed(&mut self, _epoch: u64) {}

    /// `owner` continues in a new file.
    fn start_new_file(&mut self, _owner: u64) {}

    /// Queries the host's free space if a query is due. Of that space, `unwritten_bytes` are not written yet.
    fn query_host_when_due(&mut self, _unwritten_bytes: u64) {}

    /// Queries the host's free space.
    fn query_host(&mut self, _unwritten_bytes: u64) {}

    /// Use of segments, if the backend has some.
    fn segment_use(&self) -> Option<LogSegments> {
        None
    }

    /// Free pages that were never written, as far as the backend knows.
    fn unwritten_pages(&self) -> u64 {
        0
    }

    /// Frees those files among `numbers` that no record names.
    fn free_unknown_files(&mut self, _numbers: &[u32]) {}
}
