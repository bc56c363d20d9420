//! What the leader knows of clocks: its own, the reference, since when.
//!
//! Not here: what follows from it (`clocks`), clocks of servers (`watch`).

/// The clocks of a reign.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    /// How far the leader's own clock is ahead of the ruler, once it was looked at.
    pub(crate) leader_ahead_ms: Option<i64>,
    /// How far the reference is ahead of the ruler.
    pub(crate) reference_ms: i64,
    pub(crate) is_leader_wrong: bool,
    /// When the reign began, ms of the reference.
    pub(crate) began_ms: Option<u64>,
    /// Whether any server's clock has been heard.
    pub(crate) has_heard: bool,
}
