//! Runs of dirty bytes, in bounded memory.
//!
//! A bitmap of a large disk can have more runs than fit into memory. Then adjacent runs are merged across the
//! gap between them. Reading unchanged bytes is never wrong, leaving out changed bytes would be.

use super::{ChangeKind, ChangedExtent};
use std::ops::Range;

/// Maximum number of runs: 4 MiB, and as much again while they are converted.
const MAX_RUNS: usize = 1 << 18;
/// First gap that is merged.
const FIRST_GAP_BYTES: u64 = 4096;

/// Dirty runs in ascending order.
#[derive(Debug, Default)]
pub(super) struct DirtyRuns {
    runs: Vec<Range<u64>>,
    /// Gaps up to this length are merged into a run.
    gap_bytes: u64,
    /// Dirty bytes, without the gaps.
    pub(super) bytes: u64,
}

impl DirtyRuns {
    /// Adds the next run, which begins after the end of the last one.
    pub(super) fn push(&mut self, run: Range<u64>) {
        self.bytes += run.end - run.start;
        self.join(run);
        while self.runs.len() > MAX_RUNS {
            self.gap_bytes = (self.gap_bytes * 2).max(FIRST_GAP_BYTES);
            let runs = std::mem::take(&mut self.runs);
            runs.into_iter().for_each(|run| self.join(run));
        }
    }

    fn join(&mut self, run: Range<u64>) {
        match self.runs.last_mut() {
            Some(last) if run.start <= last.end.saturating_add(self.gap_bytes) => last.end = run.end,
            _ => self.runs.push(run),
        }
    }

    /// The runs as changed extents.
    pub(super) fn extents(self) -> Vec<ChangedExtent> {
        let extent = |run: Range<u64>| ChangedExtent {
            offset: run.start,
            length: run.end - run.start,
            kind: ChangeKind::Dirty,
        };
        self.runs.into_iter().map(extent).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_do_not_fit_are_merged_and_cover_the_same_bytes() {
        let mut runs = DirtyRuns::default();
        let count = 3 * MAX_RUNS as u64;
        // Groups of four adjacent runs.
        let run = |at: u64| {
            let start = at / 4 * 1_000_000 + at % 4 * 10_000;
            start..start + 512
        };
        (0..count).for_each(|at| runs.push(run(at)));
        assert_eq!(runs.bytes, count * 512);
        let extents = runs.extents();
        assert!(extents.len() <= MAX_RUNS && extents.len() > MAX_RUNS / 4, "{}", extents.len());
        let mut covering = extents.iter().peekable();
        for at in 0..count {
            let run = run(at);
            while covering.peek().is_some_and(|extent| extent.offset + extent.length < run.end) {
                covering.next();
            }
            assert!(covering.peek().is_some_and(|extent| extent.offset <= run.start), "{run:?}");
        }
    }

    #[test]
    fn touching_runs_are_merged_and_others_stay_apart() {
        let mut runs = DirtyRuns::default();
        [0..512, 512..1024, 1536..2048].into_iter().for_each(|run| runs.push(run));
        let extents: Vec<_> = runs.extents().iter().map(|extent| (extent.offset, extent.length)).collect();
        assert_eq!(extents, [(0, 1024), (1536, 512)]);
    }
}
