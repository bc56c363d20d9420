//! A run of pages: the unit in which space is taken and given back.

/// Pages that lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageRun {
    /// Number of the first page.
    pub(crate) at: u64,
    /// How many; never 0 in a run that is kept.
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
