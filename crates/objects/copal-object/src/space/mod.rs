//! Space: free pages, quarantine and reserves, and the pages available to each kind of operation.
//!
//! Design: docs/design/object.md#space OBJ-3, OBJ-5
//! Invariants
//! - owned = reachable + staged + quarantine; the rest is free.
//! - Freed pages are reused only when a durable record or checkpoint says that the freeing epoch is flushed.
//!   Until then recovery may still verify their content, or fall back to it.
//! - Pinned pages are not reused either (`pins`); freed pages without a pin do not wait for the pins of
//!   others.

pub(crate) mod allocator;
pub(crate) mod discards;
mod freed_extents;
pub(crate) mod hollow;
pub(crate) mod home;
pub(crate) mod journal_place;
pub(crate) mod pins;
pub(crate) mod placement;
pub(crate) mod recent;
mod run_index;
pub(crate) mod segment_table;

use crate::{
    format::run::{PageRun, pages_of},
    space::home::PageHome,
    space::{
        allocator::ZONE_PAGES,
        discards::{DeviceLoad, SpaceDiscards},
        freed_extents::FreedExtents,
        pins::PagePins,
        placement::Placement,
        recent::RecentPages,
    },
};
use std::{collections::VecDeque, sync::Arc};

/// Pages freed by the records of one epoch.
#[derive(Debug)]
struct FreedPages {
    epoch: u64,
    runs: Vec<PageRun>,
}

/// Free, quarantined, staged and reserved pages.
#[derive(Debug)]
pub(crate) struct SpaceState {
    placement: Box<dyn Placement>,
    quarantine: VecDeque<FreedPages>,
    quarantine_pages: u64,
    /// Epoch up to which the quarantine must be drained.
    drain_epoch: u64,
    /// Written or prepared pages that are in no record yet.
    staged_pages: u64,
    /// Prepared stream extents: written space, owned, in no record.
    spare_extents: Vec<PageRun>,
    freed_extents: FreedExtents,
    discards: SpaceDiscards,
    /// Reserved by callers of `reserve`.
    reserved_pages: u64,
    /// Pages that must be free for a checkpoint of the present tables, for any layout of free space;
    /// recomputed with every operation.
    checkpoint_pages: u64,
    /// Number of callers that may use the reserve, except the part for the next checkpoint.
    loans: u32,
    pins: PagePins,
    recent: RecentPages,
    /// The device's length or its hollow runs are being changed: one change at a time.
    resizing: bool,
    /// The host has refused the last growth.
    growth_refused: bool,
}

/// If more freed pages wait (128 MiB of 4 KiB), they are made reusable at once. That costs an empty record
/// and a flush, little compared with writing as much data.
const QUARANTINE_PAGES_MAX: u64 = 32 << 10;

impl SpaceState {
    /// Freed stream extents of at least `extent_pages` pages are kept for streams.
    pub(crate) fn new(
        placement: Box<dyn Placement>,
        extent_pages: u64,
        discards: SpaceDiscards,
    ) -> SpaceState {
        let keeps = placement.keeps_extents();
        SpaceState {
            placement,
            freed_extents: FreedExtents::new(keeps.then_some(extent_pages)),
            discards,
            quarantine: VecDeque::new(),
            quarantine_pages: 0,
            drain_epoch: 0,
            staged_pages: 0,
            spare_extents: Vec::new(),
            reserved_pages: 0,
            checkpoint_pages: 1,
            loans: 0,
            pins: PagePins::default(),
            recent: RecentPages::default(),
            resizing: false,
            growth_refused: false,
        }
    }

    /// Free and owned pages, and the journal's place.
    pub(crate) fn placement(&self) -> &dyn Placement {
        self.placement.as_ref()
    }

    pub(crate) fn placement_mut(&mut self) -> &mut dyn Placement {
        self.placement.as_mut()
    }

    /// Free pages, also those that are kept for streams.
    pub(crate) fn free_pages(&self) -> u64 {
        self.placement.free_pages() + self.freed_extents.pages()
    }

    /// Pages without an owner, also those that cannot be allocated yet or are kept for streams.
    pub(crate) fn ownerless_pages(&self) -> u64 {
        self.placement.ownerless_pages() + self.freed_extents.pages()
    }

    pub(crate) fn staged_pages(&self) -> u64 {
        self.staged_pages
    }

    pub(crate) fn reserved_pages(&self) -> u64 {
        self.reserved_pages
    }

    /// Pages that must be free for the next checkpoint.
    pub(crate) fn checkpoint_pages(&self) -> u64 {
        self.checkpoint_pages
    }

    pub(crate) fn keep_for_checkpoint(&mut self, pages: u64) {
        self.checkpoint_pages = pages;
    }

    /// Pages kept for deletes, trims and checkpoints: 2 % (in a directory, a part of its reserve), and room
    /// for the next checkpoint.
    pub(crate) fn system_pages(&self) -> u64 {
        let for_checkpoint =
            SpaceState::checkpoint_reserve(self.checkpoint_pages) + self.placement.kept_always();
        match self.loans {
            0 => self.placement.kept_pages().max(for_checkpoint),
            _ => for_checkpoint,
        }
    }

    /// Pages kept, as in [`SpaceState::system_pages`], on a device with `pages` pages besides them.
    pub(crate) fn system_pages_of(&self, pages: u64) -> u64 {
        (pages / (self.placement.kept_one_in() - 1) + 1)
            .max(SpaceState::checkpoint_reserve(self.checkpoint_pages) + self.placement.kept_always())
    }

    /// Pages that ordinary operations leave free for a checkpoint whose copies take `pages` each. They cover
    /// both copies, half of one for growth of tables where nothing can be refused (a mount cuts streams), and
    /// a few pages for operations that free space but need some.
    pub(crate) fn checkpoint_reserve(pages: u64) -> u64 {
        2 * pages + pages / 2 + 16
    }

    /// Whether one copy of the next checkpoint fits.
    pub(crate) fn fits_checkpoint(&self) -> bool {
        let kept = self.freed_extents.pages();
        self.placement.fits_checkpoint(self.checkpoint_pages.saturating_sub(kept))
    }

    /// Pages available to an operation that frees space.
    pub(crate) fn releasable_pages(&self) -> u64 {
        let kept = self.checkpoint_pages + self.placement.kept_from_releases();
        self.free_pages().saturating_sub(kept)
    }

    /// Pages available to an ordinary operation.
    pub(crate) fn available_pages(&self) -> u64 {
        self.available_pages_with(0)
    }

    /// Pages available to an ordinary operation that may spend `spendable` reserved pages.
    pub(crate) fn available_pages_with(&self, spendable: u64) -> u64 {
        let reserved = self.reserved_pages - spendable;
        self.free_pages().saturating_sub(self.system_pages()).saturating_sub(reserved)
    }

    /// Pages that an ordinary operation can get now, perhaps after it has waited for the cleaner.
    pub(crate) fn reachable_pages(&self) -> u64 {
        self.without_kept(self.placement.reachable_pages())
    }

    /// Pages that ordinary operations will get, perhaps after they have waited for the cleaner.
    pub(crate) fn writable_pages(&self) -> u64 {
        self.without_kept(self.placement.lasting_pages())
    }

    fn without_kept(&self, pages: u64) -> u64 {
        let pages = pages + self.freed_extents.pages();
        pages.saturating_sub(self.system_pages()).saturating_sub(self.reserved_pages)
    }

    /// Freed pages that are not reusable yet, for any reason.
    pub(crate) fn quarantine_pages(&self) -> u64 {
        self.quarantine_pages + self.pins.held_pages + self.discards.pending_pages()
    }

    /// Those of [`SpaceState::quarantine_pages`] that wait for the end of a discard.
    pub(crate) fn discarding_pages(&self) -> u64 {
        self.discards.pending_pages()
    }

    pub(crate) fn discards(&self) -> &SpaceDiscards {
        &self.discards
    }

    /// Takes the pages of the next discard, if one is due: half of the available pages stay.
    pub(crate) fn begin_discard(&mut self, load: DeviceLoad) -> Option<PageRun> {
        let room = self.available_pages() / 2;
        self.discards.begin(load, room, self.placement.as_mut())
    }

    /// The discard of `run` has ended while `epoch` was open; `done`: with success.
    pub(crate) fn discarded(&mut self, run: PageRun, done: bool, epoch: u64, load: DeviceLoad) {
        if self.discards.end(run, done, load) {
            self.placement.release(run);
        } else {
            self.placement.discarded(run, done, epoch);
        }
    }

    /// Those of [`SpaceState::quarantine_pages`] that wait only for pins.
    pub(crate) fn held_pages(&self) -> u64 {
        self.pins.held_pages
    }

    /// Those of [`SpaceState::held_pages`] that wait for a lasting pin.
    pub(crate) fn lasting_pages(&self) -> u64 {
        self.pins.lasting_pages
    }

    /// Runs in quarantine.
    pub(crate) fn quarantined(&self) -> impl Iterator<Item = &PageRun> {
        let held = self.pins.held.values().flatten();
        self.quarantine.iter().flat_map(|freed| &freed.runs).chain(held)
    }

    /// Runs without an owner that cannot be taken now: in quarantine, under a discard, or kept for streams.
    pub(crate) fn ownerless_runs(&self) -> impl Iterator<Item = PageRun> + '_ {
        self.quarantined().chain(self.spare_extents()).copied().chain(self.discards.pending())
    }

    /// Epoch that must be flushed, and durably recorded as flushed, to empty the quarantine.
    pub(crate) fn quarantine_epoch(&self) -> Option<u64> {
        self.quarantine.back().map(|freed| freed.epoch)
    }

    /// The epoch of [`SpaceState::quarantine_epoch`], if too much waits to leave it to the next checkpoint.
    /// Checkpoints depend on the length of the journal, and publishing and deleting a long table takes only a
    /// few bytes there.
    pub(crate) fn overdue_quarantine(&self) -> Option<u64> {
        let overdue = self.quarantine_pages > QUARANTINE_PAGES_MAX;
        self.quarantine_epoch().filter(|_| overdue)
    }

    /// Whether pages freed by a record of an epoch up to `epoch` are not reusable yet.
    pub(crate) fn is_quarantined(&self, epoch: u64) -> bool {
        self.quarantine.front().is_some_and(|freed| freed.epoch <= epoch)
    }

    /// Adds pages freed by a record of `epoch` to the quarantine.
    pub(crate) fn quarantine(&mut self, epoch: u64, runs: Vec<PageRun>) {
        if runs.is_empty() {
            return;
        }
        self.quarantine_pages += pages_of(&runs);
        match self.quarantine.back_mut() {
            Some(freed) if freed.epoch == epoch => freed.runs.extend(runs),
            _ => self.quarantine.push_back(FreedPages { epoch, runs }),
        }
    }

    /// Makes unpinned pages reusable that were freed in epochs up to `durable_flushed`.
    pub(crate) fn drain(&mut self, durable_flushed: u64) {
        let mut pinned = None;
        let mut reusable = Vec::new();
        while let Some(freed) = self.quarantine.pop_front_if(|freed| freed.epoch <= durable_flushed) {
            self.quarantine_pages -= pages_of(&freed.runs);
            let pinned = pinned.get_or_insert_with(|| self.pins.pinned_pages());
            for run in freed.runs {
                match pinned.at(run) {
                    Some(ticket) => self.pins.hold(ticket, run),
                    None => {
                        self.recent.forget(run);
                        // A kept extent counts as free, and stays taken for others.
                        if !self.freed_extents.keep(run) {
                            self.discards.note_free(run);
                            reusable.push(run);
                        }
                    }
                }
            }
        }
        self.placement.release_all(reusable);
    }

    /// A stream gives up `run`: once it is reusable, streams have it before others.
    pub(crate) fn note_freed_extent(&mut self, run: PageRun) {
        self.freed_extents.note(run);
    }

    /// Frees the extents that are kept for streams.
    pub(crate) fn release_extents(&mut self) {
        for run in self.freed_extents.take_all() {
            self.discards.note_free(run);
            self.placement.release(run);
        }
    }

    /// Requests a drain of the quarantine up to `epoch`.
    pub(crate) fn want_drain(&mut self, epoch: u64) {
        self.drain_epoch = self.drain_epoch.max(epoch);
    }

    /// Epoch up to which the quarantine must be drained.
    pub(crate) fn drain_epoch(&self) -> u64 {
        self.drain_epoch
    }

    /// Pins `runs`: they are not reused until [`SpaceState::unpin`], even if they are freed meanwhile.
    pub(crate) fn pin(&mut self, runs: Vec<PageRun>) -> u64 {
        self.pins.pin(runs)
    }

    /// Pages that are pinned now, each pin by itself.
    #[cfg(test)]
    pub(crate) fn pinned(&self) -> u64 {
        self.pins.pinned()
    }

    /// Like [`SpaceState::pin`], without a bound on its duration.
    pub(crate) fn pin_lasting(&mut self, runs: Vec<PageRun>) -> u64 {
        self.pins.pin_lasting(runs)
    }

    /// Ends a pin; `true` if pages that waited for it are free now.
    pub(crate) fn unpin(&mut self, ticket: u64) -> bool {
        let reusable = self.pins.unpin(ticket);
        for &run in &reusable {
            self.recent.forget(run);
            if !self.freed_extents.keep(run) {
                self.discards.note_free(run);
                self.placement.release(run);
            }
        }
        !reusable.is_empty()
    }

    /// Allocates `pages` pages; `None` if fewer are free.
    pub(crate) fn allocate(&mut self, pages: u64, home: PageHome) -> Option<Vec<PageRun>> {
        if pages > self.placement.free_pages() {
            self.release_extents();
        }
        self.placement.allocate(pages, home)
    }

    /// Allocates one run of `pages` pages; with `written`, from written space only.
    pub(crate) fn allocate_run(&mut self, pages: u32, home: PageHome, written: bool) -> Option<PageRun> {
        if u64::from(pages) > self.placement.free_pages() {
            self.release_extents();
        }
        self.placement.allocate_run(pages, home, written)
    }

    /// Allocates a stream extent of `wanted` pages, or at least `least`, from one that a stream gave up.
    pub(crate) fn take_freed_extent(&mut self, wanted: u32, least: u32) -> Option<PageRun> {
        self.freed_extents.take(wanted, least)
    }

    /// Marks `run` as owned. `false`, without a change, if a page of it is owned already.
    pub(crate) fn take(&mut self, run: PageRun) -> bool {
        self.release_extents();
        self.placement.take(run)
    }

    /// Frees pages that no durable record names.
    pub(crate) fn release(&mut self, run: PageRun) {
        self.placement.release(run);
    }

    /// Counts pages as staged: written or prepared, in no record yet.
    pub(crate) fn stage(&mut self, pages: u64) {
        self.staged_pages += pages;
    }

    /// Staged pages are in a record now.
    pub(crate) fn publish(&mut self, pages: u64) {
        self.staged_pages -= pages;
    }

    /// Keeps `run`, which holds zeros, for a stream.
    pub(crate) fn add_spare_extent(&mut self, run: PageRun) {
        self.placement.note_written(run);
        self.spare_extents.push(run);
    }

    /// A prepared extent of at least `pages` pages.
    pub(crate) fn take_spare_extent(&mut self, pages: u32) -> Option<PageRun> {
        let index = self.spare_extents.iter().position(|run| run.pages >= pages)?;
        let run = self.spare_extents.swap_remove(index);
        self.publish(run.pages.into());
        Some(run)
    }

    /// Prepared stream extents, and those kept for streams.
    pub(crate) fn spare_extents(&self) -> impl Iterator<Item = &PageRun> {
        self.spare_extents.iter().chain(self.freed_extents.kept())
    }

    pub(crate) fn reserve(&mut self, pages: u64) {
        self.reserved_pages += pages;
    }

    pub(crate) fn end_reservation(&mut self, pages: u64) {
        self.reserved_pages -= pages;
    }

    /// Lets one more caller use the reserve.
    pub(crate) fn lend(&mut self) {
        self.loans += 1;
    }

    pub(crate) fn end_loan(&mut self) {
        self.loans -= 1;
    }

    /// Content of a recently written page that ends inside an object.
    pub(crate) fn recent_page(&self, page: u64) -> Option<Arc<[u8]>> {
        self.recent.get(page)
    }

    pub(crate) fn keep_recent(&mut self, page: u64, bytes: Arc<[u8]>) {
        self.recent.put(page, bytes);
    }

    /// Frees staged pages that will never be published. They were in no record, so they are free at once.
    pub(crate) fn unstage(&mut self, runs: &[PageRun]) {
        self.staged_pages -= pages_of(runs);
        for &run in runs {
            self.discards.note_free(run);
            self.placement.release(run);
        }
    }

    pub(crate) fn is_resizing(&self) -> bool {
        self.resizing
    }

    pub(crate) fn begin_resize(&mut self) {
        self.resizing = true;
    }

    pub(crate) fn end_resize(&mut self) {
        self.resizing = false;
    }

    pub(crate) fn is_growth_refused(&self) -> bool {
        self.growth_refused
    }

    /// Notes whether the host refuses growth; returns the previous note.
    pub(crate) fn refuse_growth(&mut self, refused: bool) -> bool {
        std::mem::replace(&mut self.growth_refused, refused)
    }

    /// From now on the lowest free pages of a device are allocated first, and no extent is kept for streams.
    pub(crate) fn place_low(&mut self) {
        self.release_extents();
        self.freed_extents = FreedExtents::new(None);
        self.placement.place_low();
    }
}

/// Step by which a store of `size_bytes` grows.
pub(crate) fn growth_step_bytes(size_bytes: u64) -> u64 {
    (size_bytes / 8).clamp(32 << 20, 8 << 30).next_multiple_of(1 << 20)
}

/// Pages of the next extent of a stream that holds `held` pages: 1 MiB to 64 MiB, so that extents double, and
/// at least `smallest`. It leaves seven eighths of `available` to others.
pub(crate) fn stream_extent_pages(
    held: u64,
    available: u64,
    expected_log2: u8,
    smallest: u64,
    page_bytes: usize,
) -> u64 {
    let largest = ((64 << 20) / page_bytes as u64).min(available / 8);
    let expected = if expected_log2 == 0 { 0 } else { (1u64 << expected_log2.min(40)) / page_bytes as u64 };
    (held + smallest).max(expected).clamp(smallest, largest.max(smallest))
}

/// Pages of the smallest stream extent while free space has longer runs.
pub(crate) fn stream_extent_smallest(page_bytes: usize) -> u64 {
    ((1 << 20) / page_bytes as u64).max(ZONE_PAGES.min(64))
}

/// Pages to which a stream extent is halved before new space is prepared for streams. An append into an extent
/// changes no metadata, so a short one costs a record for each few appends.
pub(crate) fn stream_extent_least(page_bytes: usize) -> u64 {
    (64 << 10) / page_bytes as u64
}
