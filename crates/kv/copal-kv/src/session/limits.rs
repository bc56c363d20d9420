//! Sizes and times on which several parts of the engine must agree.

use std::time::Duration;

/// Most bytes of operations in one batch.
pub(crate) const MAX_GROUP_BYTES: usize = 64 << 20;
/// Number of runs at which a tier is merged.
pub(crate) const TIER_RUNS: usize = 4;
/// Tiers above the bottom.
pub(crate) const TIERS: u8 = 3;
/// Longest head of a separated value.
pub(crate) const MAX_HEAD: usize = 4096;
/// Longest time for which a `Deferred` write stays unlogged, and the first pause after a failure.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Threads that one merge may use: half of the processors, since flushes and callers need the others.
pub(crate) fn default_merge_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (processors / 2).max(1)
}
