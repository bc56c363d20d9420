//! Coverage of the last clean mark (`commit::clean_mark`).

/// Coverage of the last clean mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CleanMark {
    /// Its own position.
    pub(crate) lsn: u64,
    /// Everything before it was durable when it was written.
    pub(crate) complete: bool,
}

impl CleanMark {
    /// After an opening there is nothing for a clean mark to protect: the flush before recovery covers all
    /// data.
    pub(crate) fn at_open(last_lsn: u64) -> CleanMark {
        CleanMark { lsn: last_lsn, complete: true }
    }
}
