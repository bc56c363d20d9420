//! A run of pages: the unit in which space is allocated and freed.

/// Consecutive pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageRun {
    /// Number of the first page.
    pub(crate) at: u64,
    /// Number of pages; never 0 in a stored run.
    pub(crate) pages: u32,
}

impl PageRun {
    pub(crate) fn new(at: u64, pages: u32) -> PageRun {
        PageRun { at, pages }
    }

    pub(crate) fn end(self) -> u64 {
        self.at.saturating_add(u64::from(self.pages))
    }

    pub(crate) fn overlaps(self, other: PageRun) -> bool {
        self.at < other.end() && other.at < self.end()
    }
}

/// Most pages in one run, so that a run packs into 16 bits.
pub(crate) const RUN_PAGES_MAX: u32 = 65_535;

/// Sum of the pages of `runs`.
pub(crate) fn pages_of(runs: &[PageRun]) -> u64 {
    runs.iter().map(|run| u64::from(run.pages)).sum()
}
