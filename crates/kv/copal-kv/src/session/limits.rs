//! Sizes and times that several parts of the engine must agree on.

use std::time::Duration;

/// Most operation bytes in one batch.
pub(crate) const MAX_GROUP_BYTES: usize = 64 << 20;
/// Runs of a tier that make it merge.
pub(crate) const TIER_RUNS: usize = 4;
/// Tiers above the bottom.
pub(crate) const TIERS: u8 = 3;
/// Longest head of a separated value.
pub(crate) const MAX_HEAD: usize = 4096;
/// Longest time a `Deferred` write stays unlogged, and the first pause after a failure.
pub(crate) const TICK: Duration = Duration::from_millis(100);
