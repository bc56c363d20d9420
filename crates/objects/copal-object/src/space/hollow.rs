//! Hollow runs: pages without an owner whose blocks went back to the file system.
//!
//! They count as taken: a write there might find the host full, so [`copal_device::Device::reserve`] comes
//! first.
//! Design: docs/design/object.md#shrinking
//! Invariants
//! - Runs neither overlap nor touch.
//! - A run is in a durable checkpoint before its blocks go back (OBJ-18). A checkpoint may list pages that
//!   have been filled and given to an object since: an owned page is not hollow.
//!
//! Not here: which pages become hollow, and when they are filled (`shrink`).

use std::{collections::BTreeMap, ops::Range};

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub(crate) struct HollowRanges {
    /// End of each run, by its first page.
    runs: BTreeMap<u64, u64>,
    pages: u64,
}

impl HollowRanges {
    /// Number of hollow pages.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Number of runs.
    pub(crate) fn runs(&self) -> u64 {
        self.runs.len() as u64
    }

    /// All runs, ascending, in pages.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> {
        self.runs.iter().map(|(&at, &end)| at..end)
    }

    /// Makes pages hollow that were not.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        let (mut at, mut end) = (range.start, range.end);
        self.pages += end - at;
        if let Some((&before, &upto)) = self.runs.range(..=at).next_back()
            && upto == at
        {
            at = before;
        }
        if let Some(upto) = self.runs.remove(&end) {
            end = upto;
        }
        self.runs.insert(at, end);
    }

    /// The first pages of a run, or all of it, are no longer hollow.
    ///
    /// # Panics
    /// When no run begins there, or it is shorter.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        let end = self.runs.remove(&range.start);
        let left = end
            .filter(|&end| end >= range.end)
            .map(|end| range.end..end)
            .unwrap_or_else(|| panic!("pages {range:?} are not hollow"));
        if !left.is_empty() {
            self.runs.insert(left.start, left.end);
        }
        self.pages -= range.end - range.start;
    }

    /// Drops hollow pages from page `first` on.
    pub(crate) fn cut(&mut self, first: u64) {
        while let Some((&at, &end)) = self.runs.last_key_value()
            && end > first
        {
            self.runs.remove(&at);
            self.pages -= end - at;
            if at < first {
                self.insert(at..first);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_runs_are_one_and_cut_runs_are_removed() {
        let mut hollow = HollowRanges::default();
        for range in [10..20, 30..40, 20..30, 50..60] {
            hollow.insert(range);
        }
        assert_eq!(hollow.iter().collect::<Vec<_>>(), [10..40, 50..60]);
        hollow.remove(10..25);
        assert_eq!((hollow.pages(), hollow.runs()), (25, 2));
        hollow.cut(30);
        assert_eq!((hollow.iter().next(), hollow.pages()), (Some(25..30), 5));
        hollow.remove(25..30);
        assert_eq!((hollow.pages(), hollow.runs()), (0, 0));
    }
}
