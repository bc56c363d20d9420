//! How far the last clean mark reaches (`commit::clean_mark`).

/// What the last clean mark covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CleanMark {
    /// Its own position.
    pub(crate) lsn: u64,
    /// Everything before it was durable when it was written.
    pub(crate) complete: bool,
}

impl CleanMark {
    /// A store just opened has nothing that a clean mark would protect: what recovery read is covered by the
    /// flush before.
    pub(crate) fn at_open(last_lsn: u64) -> CleanMark {
        CleanMark { lsn: last_lsn, complete: true }
    }
}
