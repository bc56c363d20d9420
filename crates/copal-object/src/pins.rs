//! Pins: pages that somebody looks at outside of the mutex, and freed pages that wait for such a look to end.
//!
//! Invariants
//! - A pin names the pages it looks at; freed pages that no pin names wait for none.
//! - A held run waits for one pin at a time, and is asked about again when that one ends.
//!
//! Not here: when freed pages may be reused at all (`space`).

use crate::run::{Run, pages_of};
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    runs: BTreeMap<u64, Vec<Run>>,
    next_ticket: u64,
    /// Freed runs, by the pin they wait for.
    pub(crate) held: BTreeMap<u64, Vec<Run>>,
    pub(crate) held_pages: u64,
}

/// All pinned runs at one moment, sorted, to find out quickly whether one of them touches another run.
#[derive(Debug)]
pub(crate) struct Looks {
    /// Each with the pin and end of that among it and those before it that reaches farthest.
    runs: Vec<(u64, u64, u64)>,
}

impl Looks {
    /// A pin that looks at a page of `run`.
    pub(crate) fn at(&self, run: Run) -> Option<u64> {
        let before = self.runs.partition_point(|&(at, ..)| at < run.end());
        let &(_, end, ticket) = self.runs.get(before.checked_sub(1)?)?;
        (end > run.at).then_some(ticket)
    }
}

impl Pins {
    /// A look at `runs` begins.
    pub(crate) fn pin(&mut self, runs: Vec<Run>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.runs.insert(ticket, runs);
        ticket
    }

    /// The look has ended; returns the runs that waited for it and wait for none any more.
    pub(crate) fn unpin(&mut self, ticket: u64) -> Vec<Run> {
        self.runs.remove(&ticket);
        let Some(waiting) = self.held.remove(&ticket) else {
            return Vec::new();
        };
        self.held_pages -= pages_of(&waiting);
        let looks = self.looks();
        let mut reusable = Vec::new();
        for run in waiting {
            match looks.at(run) {
                Some(other) => self.hold(other, run),
                None => reusable.push(run),
            }
        }
        reusable
    }

    /// `run` is not reused before `ticket` ends.
    pub(crate) fn hold(&mut self, ticket: u64, run: Run) {
        self.held_pages += u64::from(run.pages);
        self.held.entry(ticket).or_default().push(run);
    }

    /// What is looked at now.
    pub(crate) fn looks(&self) -> Looks {
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
        Looks { runs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_waits_for_those_who_look_at_it_and_for_nobody_else() {
        let mut pins = Pins::default();
        let long = pins.pin(vec![Run::new(100, 50), Run::new(10, 2)]);
        let short = pins.pin(vec![Run::new(105, 5)]);
        let looks = pins.looks();
        for (run, wanted) in [
            (Run::new(0, 10), None),
            (Run::new(11, 1), Some(long)),
            (Run::new(12, 88), None),
            (Run::new(99, 2), Some(long)),
            (Run::new(140, 20), Some(long)),
            (Run::new(150, 9), None),
        ] {
            assert_eq!(looks.at(run), wanted, "{run:?}");
        }
        pins.hold(long, Run::new(100, 10));
        pins.hold(long, Run::new(140, 10));
        assert_eq!(
            pins.unpin(long),
            [Run::new(140, 10)],
            "the other is looked at twice"
        );
        assert_eq!(pins.held_pages, 10);
        assert_eq!(pins.unpin(short), [Run::new(100, 10)]);
        assert_eq!(pins.held_pages, 0);
    }
}
