//! A run of pages: the unit in which space is allocated and freed.

use copal_codec::{DecodeError, Put, Reader};

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

/// Bytes of a run.
pub(crate) const RUN_LEN: u64 = 12;

pub(crate) fn put_run(out: &mut impl Put, run: PageRun) {
    out.put_u64(run.at);
    out.put_u32(run.pages);
}

/// A run of at least one page whose end does not overflow.
pub(crate) fn take_run(input: &mut Reader<'_>) -> Result<PageRun, DecodeError> {
    let at = input.position();
    let run = PageRun::new(input.u64()?, input.u32()?);
    if run.pages == 0 || run.at >= 1 << 48 {
        let what = "run, of at least one page below 2^48,";
        return Err(DecodeError::Invalid { at, what });
    }
    Ok(run)
}
