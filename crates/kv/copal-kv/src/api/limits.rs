//! Sizes that several parts of the engine must agree on.

/// Most operation bytes in one batch.
pub(crate) const MAX_GROUP_BYTES: usize = 64 << 20;
