//! Space that snapshots no longer need: marking, pruning, summary vectors.

pub(crate) mod freeing;
pub(crate) mod mark;
pub(crate) mod prune;
pub(crate) mod references;
pub mod summary;
