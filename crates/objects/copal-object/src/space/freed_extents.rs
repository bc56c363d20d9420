//! Extents that streams gave up, kept for the next streams.
//!
//! They are written space in long runs, so a stream that gets one needs no zeros, and its appends need no
//! metadata for long.
//! Design: docs/design/object.md#streams
//! Invariants
//! - A kept extent is free for every count of pages, but its pages are taken: only an operation that finds no
//!   other space gets them.
//! - Bounded: more extents than that become free for all.
//!
//! Not here: when freed pages may be reused at all (`space`, OBJ-5).

use crate::format::run::PageRun;
use std::collections::VecDeque;

const EXTENTS_MAX: usize = 8;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct FreedExtents {
    /// Pages of the shortest extent that is kept; `None`: none is kept.
    shortest: Option<u64>,
    /// Given up, and not reusable yet.
    noted: VecDeque<PageRun>,
    kept: VecDeque<PageRun>,
}

impl FreedExtents {
    pub(super) fn new(shortest: Option<u64>) -> FreedExtents {
        FreedExtents { shortest, ..FreedExtents::default() }
    }

    pub(super) fn kept(&self) -> impl Iterator<Item = &PageRun> {
        self.kept.iter()
    }

    /// Pages of the kept extents.
    pub(super) fn pages(&self) -> u64 {
        self.kept.iter().map(|run| u64::from(run.pages)).sum()
    }

    /// A stream gives up `run`.
    pub(super) fn note(&mut self, run: PageRun) {
        if self.shortest.is_some_and(|shortest| u64::from(run.pages) >= shortest) {
            if self.noted.len() == EXTENTS_MAX {
                self.noted.pop_front();
            }
            self.noted.push_back(run);
        }
    }

    /// Keeps `run`, which is reusable now, if a stream gave it up.
    pub(super) fn keep(&mut self, run: PageRun) -> bool {
        let Some(index) = self.noted.iter().position(|noted| *noted == run) else {
            return false;
        };
        self.noted.remove(index);
        let keeps = self.kept.len() < EXTENTS_MAX;
        if keeps {
            self.kept.push_back(run);
        }
        keeps
    }

    /// The first `wanted` pages of a kept extent, or an extent of at least `least` pages. The rest of a longer
    /// one stays.
    pub(super) fn take(&mut self, wanted: u32, least: u32) -> Option<PageRun> {
        let long = self.kept.iter().position(|run| run.pages >= wanted);
        let longest = || {
            let (index, run) = self.kept.iter().enumerate().max_by_key(|(_, run)| run.pages)?;
            (run.pages >= least).then_some(index)
        };
        let run = self.kept.remove(long.or_else(longest)?)?;
        let taken = PageRun::new(run.at, run.pages.min(wanted));
        if run.pages > wanted {
            self.kept.push_front(PageRun::new(taken.end(), run.pages - wanted));
        }
        Some(taken)
    }

    pub(super) fn take_all(&mut self) -> VecDeque<PageRun> {
        std::mem::take(&mut self.kept)
    }
}
