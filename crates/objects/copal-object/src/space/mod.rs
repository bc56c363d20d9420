//! Space: free pages, quarantine, reserves; who may take what.
//!
//! Design: docs/design/object.md#space OBJ-3, OBJ-5
//! Invariants
//! - owned = reachable + staged + quarantine; the rest is free.
//! - Freed pages are reused only when a durable record or checkpoint says that the freeing epoch is flushed:
//!   until then recovery may still verify what they held, or fall back to it.
//! - They are not reused either while somebody looks at them (`pins`); what nobody looks at does not wait for
//!   that.

pub(crate) mod allocator;
pub(crate) mod hollow;
pub(crate) mod pins;
pub(crate) mod placement;
pub(crate) mod recent;

use crate::{
    format::run::{Run, pages_of},
    space::{allocator::ZONE_PAGES, pins::Pins, placement::Placement},
};
use std::collections::VecDeque;

/// Pages freed by one record.
#[derive(Debug)]
struct Freed {
    epoch: u64,
    runs: Vec<Run>,
}

/// Free, quarantined, staged and reserved pages.
#[derive(Debug)]
pub(crate) struct SpaceMap {
    pub(crate) allocator: Placement,
    quarantine: VecDeque<Freed>,
    quarantine_pages: u64,
    /// Written or prepared, in no record yet.
    pub(crate) staged_pages: u64,
    /// Kept by callers of `reserve`.
    pub(crate) reserved_pages: u64,
    /// What has to be free for a checkpoint of the present tables, however free space lies; reckoned anew
    /// with every operation.
    pub(crate) checkpoint_pages: u64,
    /// Callers that may use what is kept, but for the next checkpoint.
    pub(crate) loans: u32,
    pins: Pins,
}

/// More freed pages than these (128 MiB of 4 KiB) are made reusable at once. That costs an empty record and a
/// flush, little beside writing as much.
const QUARANTINE_PAGES_MAX: u64 = 32 << 10;

impl SpaceMap {
    pub(crate) fn new(allocator: Placement) -> SpaceMap {
        SpaceMap {
            allocator,
            quarantine: VecDeque::new(),
            quarantine_pages: 0,
            staged_pages: 0,
            reserved_pages: 0,
            checkpoint_pages: 1,
            loans: 0,
            pins: Pins::default(),
        }
    }

    /// Pages kept for deletes, trims, checkpoints: 2 % (of a directory's file system a part of its reserve),
    /// and room for the next checkpoint.
    pub(crate) fn system_pages(&self) -> u64 {
        let for_checkpoint = SpaceMap::checkpoint_reserve(self.checkpoint_pages);
        match self.loans {
            0 => self.allocator.kept_pages().max(for_checkpoint),
            _ => for_checkpoint,
        }
    }

    /// What [`SpaceMap::system_pages`] is of a device that has `pages` pages and these besides.
    pub(crate) fn system_pages_of(&self, pages: u64) -> u64 {
        (pages / (Placement::KEPT_ONE_IN - 1) + 1).max(SpaceMap::checkpoint_reserve(self.checkpoint_pages))
    }

    /// Pages that ordinary operations leave free for a checkpoint whose copies take `pages` each: both
    /// copies, half of one for what tables grow by where nothing can be refused (a mount cuts streams), and a
    /// few for what releases space and takes some for it.
    pub(crate) fn checkpoint_reserve(pages: u64) -> u64 {
        2 * pages + pages / 2 + 16
    }

    /// Whether the next checkpoint has room, once.
    pub(crate) fn fits_checkpoint(&self) -> bool {
        self.allocator.free_pages() >= self.checkpoint_pages
    }

    /// Pages that an operation may take that gives space back.
    pub(crate) fn releasable_pages(&self) -> u64 {
        self.allocator.free_pages().saturating_sub(self.checkpoint_pages)
    }

    /// Pages an ordinary operation may take.
    pub(crate) fn available_pages(&self) -> u64 {
        self.allocator.free_pages().saturating_sub(self.system_pages()).saturating_sub(self.reserved_pages)
    }

    /// Freed and not reusable yet, for whatever reason.
    pub(crate) fn quarantine_pages(&self) -> u64 {
        self.quarantine_pages + self.pins.held_pages
    }

    /// Of [`SpaceMap::quarantine_pages`], those that only wait for looks at them to end.
    pub(crate) fn held_pages(&self) -> u64 {
        self.pins.held_pages
    }

    /// Of [`SpaceMap::held_pages`], those that wait for a look that may last for ever.
    pub(crate) fn lasting_pages(&self) -> u64 {
        self.pins.lasting_pages
    }

    /// Runs in quarantine.
    pub(crate) fn quarantined(&self) -> impl Iterator<Item = &Run> {
        let held = self.pins.held.values().flatten();
        self.quarantine.iter().flat_map(|freed| &freed.runs).chain(held)
    }

    /// Epoch that has to be flushed, and known as flushed, to empty the quarantine.
    pub(crate) fn quarantine_epoch(&self) -> Option<u64> {
        self.quarantine.back().map(|freed| freed.epoch)
    }

    /// The epoch of [`SpaceMap::quarantine_epoch`] when so much waits that it is not left to the next
    /// checkpoint, which comes by the length of the journal: tables are long, and publishing and deleting one
    /// takes a few bytes there.
    pub(crate) fn overdue_quarantine(&self) -> Option<u64> {
        let overdue = self.quarantine_pages > QUARANTINE_PAGES_MAX;
        self.quarantine_epoch().filter(|_| overdue)
    }

    /// Whether anything freed by a record of an epoch up to `epoch` is not reusable yet.
    pub(crate) fn is_quarantined(&self, epoch: u64) -> bool {
        self.quarantine.front().is_some_and(|freed| freed.epoch <= epoch)
    }

    /// Pages freed by a record of `epoch`.
    pub(crate) fn quarantine(&mut self, epoch: u64, runs: Vec<Run>) {
        if runs.is_empty() {
            return;
        }
        self.quarantine_pages += pages_of(&runs);
        self.quarantine.push_back(Freed { epoch, runs });
    }

    /// Makes reusable what was freed in epochs up to `durable_flushed` and nobody looks at; calls `reused`
    /// with each run.
    pub(crate) fn drain(&mut self, durable_flushed: u64, mut reused: impl FnMut(Run)) {
        let mut looks = None;
        while let Some(freed) = self.quarantine.pop_front_if(|freed| freed.epoch <= durable_flushed) {
            self.quarantine_pages -= pages_of(&freed.runs);
            let looks = looks.get_or_insert_with(|| self.pins.looks());
            for run in freed.runs {
                match looks.at(run) {
                    Some(ticket) => self.pins.hold(ticket, run),
                    None => {
                        self.allocator.release(run);
                        reused(run);
                    }
                }
            }
        }
    }

    /// A look at `runs` begins: they are not reused until [`SpaceMap::unpin`], even if they are freed
    /// meanwhile.
    pub(crate) fn pin(&mut self, runs: Vec<Run>) -> u64 {
        self.pins.pin(runs)
    }

    /// As [`SpaceMap::pin`], for a look that lasts as long as its owner likes.
    pub(crate) fn pin_lasting(&mut self, runs: Vec<Run>) -> u64 {
        self.pins.pin_lasting(runs)
    }

    /// The look has ended. Returns what waited for it and is reusable now: [`SpaceMap::drain`] would have
    /// said so.
    pub(crate) fn unpin(&mut self, ticket: u64) -> Vec<Run> {
        let reusable = self.pins.unpin(ticket);
        reusable.iter().for_each(|&run| self.allocator.release(run));
        reusable
    }

    /// Staged pages that will never be published. They were in no record, so they are free at once.
    pub(crate) fn unstage(&mut self, runs: &[Run]) {
        self.staged_pages -= pages_of(runs);
        runs.iter().for_each(|&run| self.allocator.release(run));
    }
}

/// Step by which a store of `size_bytes` grows.
pub(crate) fn growth_step_bytes(size_bytes: u64) -> u64 {
    (size_bytes / 8).clamp(32 << 20, 8 << 30).next_multiple_of(1 << 20)
}

/// Pages of the next extent of a stream that holds `held` pages: 1 MiB to 64 MiB, so that extents double, at
/// least `smallest`. It leaves seven eighths of `available` to others.
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

/// Pages of the smallest stream extent in normal use.
pub(crate) fn stream_extent_smallest(page_bytes: usize) -> u64 {
    ((1 << 20) / page_bytes as u64).max(ZONE_PAGES.min(64))
}
