//! Sizes that several parts of the engine must agree on.

/// Most operation bytes in one batch.
pub(crate) const MAX_GROUP_BYTES: usize = 64 << 20;
/// Runs of a tier that make it merge.
pub(crate) const TIER_RUNS: usize = 4;
/// Tiers above the bottom.
pub(crate) const TIERS: u8 = 3;
/// Longest head of a separated value.
pub(crate) const MAX_HEAD: usize = 4096;
