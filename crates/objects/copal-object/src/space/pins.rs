//! Pins: pages in use outside of the mutex, and freed pages that wait for pins to end.
//!
//! Invariants
//! - A pin names its pages; freed pages that no pin names do not wait.
//! - A held run waits for one pin at a time, and is checked again when that pin ends. If a lasting pin covers
//!   it, it waits for that one.
//! - A pin ends by itself, unless it is a lasting one; no operation waits for pages under a lasting pin.
//!
//! Not here: when freed pages may be reused at all (`space`).

use crate::format::run::{PageRun, pages_of};
use std::collections::{BTreeMap, BTreeSet};

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct PagePins {
    runs: BTreeMap<u64, Vec<PageRun>>,
    next_ticket: u64,
    /// Freed runs, by the pin they wait for.
    pub(crate) held: BTreeMap<u64, Vec<PageRun>>,
    pub(crate) held_pages: u64,
    /// Pins without a bound on their duration, and the part of `held_pages` that waits for them.
    lasting: BTreeSet<u64>,
    pub(crate) lasting_pages: u64,
}

/// All pinned runs at one moment, sorted for fast overlap checks.
#[derive(Debug)]
pub(crate) struct PinnedPages {
    /// Start of each run, with pin and end of the one that reaches farthest among it and its predecessors.
    runs: Vec<(u64, u64, u64)>,
}

impl PinnedPages {
    /// A pin on a page of `run`.
    pub(crate) fn at(&self, run: PageRun) -> Option<u64> {
        let before = self.runs.partition_point(|&(at, ..)| at < run.end());
        let &(_, end, ticket) = self.runs.get(before.checked_sub(1)?)?;
        (end > run.at).then_some(ticket)
    }
}

impl PagePins {
    /// Pins `runs`; returns the ticket.
    pub(crate) fn pin(&mut self, runs: Vec<PageRun>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.runs.insert(ticket, runs);
        ticket
    }

    /// Pages of all pins.
    #[cfg(test)]
    pub(crate) fn pinned(&self) -> u64 {
        self.runs.values().map(|runs| pages_of(runs)).sum()
    }

    /// Like [`PagePins::pin`], without a bound on its duration.
    pub(crate) fn pin_lasting(&mut self, runs: Vec<PageRun>) -> u64 {
        let ticket = self.pin(runs);
        self.lasting.insert(ticket);
        ticket
    }

    /// Ends a pin; returns the runs that waited for it and no longer wait for any.
    pub(crate) fn unpin(&mut self, ticket: u64) -> Vec<PageRun> {
        self.runs.remove(&ticket);
        let lasted = self.lasting.remove(&ticket);
        let Some(waiting) = self.held.remove(&ticket) else {
            return Vec::new();
        };
        self.held_pages -= pages_of(&waiting);
        if lasted {
            self.lasting_pages -= pages_of(&waiting);
        }
        let pinned = self.pinned_pages();
        let mut reusable = Vec::new();
        for run in waiting {
            match pinned.at(run) {
                Some(other) => self.hold(other, run),
                None => reusable.push(run),
            }
        }
        reusable
    }

    /// Holds `run` until `ticket` ends.
    pub(crate) fn hold(&mut self, ticket: u64, run: PageRun) {
        let looks_at_it = |ticket: &&u64| {
            let mut pinned = self.runs.get(*ticket).into_iter().flatten();
            pinned.any(|other| other.overlaps(run))
        };
        let lasting = self.lasting.iter().find(looks_at_it).copied();
        let ticket = lasting.unwrap_or(ticket);
        self.held_pages += u64::from(run.pages);
        if lasting.is_some() {
            self.lasting_pages += u64::from(run.pages);
        }
        self.held.entry(ticket).or_default().push(run);
    }

    /// The currently pinned pages.
    pub(crate) fn pinned_pages(&self) -> PinnedPages {
        let pinned = self.runs.iter();
        let mut runs: Vec<(u64, u64, u64)> = pinned
            .flat_map(|(&ticket, runs)| runs.iter().map(move |run| (run.at, run.end(), ticket)))
            .collect();
        runs.sort_unstable();
        let (mut farthest, mut whose) = (0, 0);
        for (_, end, ticket) in &mut runs {
            if *end > farthest {
                (farthest, whose) = (*end, *ticket);
            }
            (*end, *ticket) = (farthest, whose);
        }
        PinnedPages { runs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_waits_for_its_own_pins_only() {
        let mut pins = PagePins::default();
        let long = pins.pin(vec![PageRun::new(100, 50), PageRun::new(10, 2)]);
        let short = pins.pin(vec![PageRun::new(105, 5)]);
        let pinned = pins.pinned_pages();
        for (run, wanted) in [
            (PageRun::new(0, 10), None),
            (PageRun::new(11, 1), Some(long)),
            (PageRun::new(12, 88), None),
            (PageRun::new(99, 2), Some(long)),
            (PageRun::new(140, 20), Some(long)),
            (PageRun::new(150, 9), None),
        ] {
            assert_eq!(pinned.at(run), wanted, "{run:?}");
        }
        pins.hold(long, PageRun::new(100, 10));
        pins.hold(long, PageRun::new(140, 10));
        assert_eq!(pins.unpin(long), [PageRun::new(140, 10)], "the other run has a second pin");
        assert_eq!(pins.held_pages, 10);
        assert_eq!(pins.unpin(short), [PageRun::new(100, 10)]);
        assert_eq!(pins.held_pages, 0);
    }
    #[test]
    fn pages_under_a_lasting_pin_are_counted_apart_with_other_pins_too() {
        let mut pins = PagePins::default();
        let short = pins.pin(vec![PageRun::new(0, 1000)]);
        let lasting = pins.pin_lasting(vec![PageRun::new(100, 50)]);
        let another = pins.pin_lasting(vec![PageRun::new(100, 50)]);
        for run in [PageRun::new(100, 50), PageRun::new(200, 7)] {
            let ticket = pins.pinned_pages().at(run).unwrap();
            pins.hold(ticket, run);
        }
        assert_eq!((pins.held_pages, pins.lasting_pages), (57, 50));
        assert_eq!(pins.unpin(short), [PageRun::new(200, 7)]);
        assert_eq!((pins.held_pages, pins.lasting_pages), (50, 50));
        assert_eq!(pins.unpin(lasting), []);
        assert_eq!((pins.held_pages, pins.lasting_pages), (50, 50));
        assert_eq!(pins.unpin(another), [PageRun::new(100, 50)]);
        assert_eq!((pins.held_pages, pins.lasting_pages), (0, 0));
    }
}
