//! Checks of an open store, and the ranges that a check covers.

pub(crate) mod coverage;
pub(crate) mod fsck;
