//! How far the last idle seal reaches (`seal`).

/// What the last seal covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sealed {
    /// Its own position.
    pub(crate) lsn: u64,
    /// Everything before it was durable when it was written.
    pub(crate) complete: bool,
}

impl Sealed {
    /// A store just opened has nothing that a seal would protect: what recovery read is covered by the flush before.
    pub(crate) fn at_open(last_lsn: u64) -> Sealed {
        Sealed {
            lsn: last_lsn,
            complete: true,
        }
    }
}
