//! Clocks of one term: the leader's own clock and the reference.
//!
//! Not here: the rules for clocks (`membership::clocks`), clocks of data servers (`server_activity`).

/// The leader's clock and the reference, both measured against the ruler.
#[derive(Debug, Default)]
pub(crate) struct ClusterClocks {
    /// How far the leader's own clock is ahead of the ruler, once it was measured.
    pub(crate) leader_ahead_ms: Option<i64>,
    /// How far the reference is ahead of the ruler.
    pub(crate) reference_ms: i64,
    pub(crate) is_leader_wrong: bool,
    /// Begin of the term, ms of the reference.
    pub(crate) began_ms: Option<u64>,
    /// The clock of at least one data server was measured.
    pub(crate) has_server_clock: bool,
}
