//! Freeing space: marking, pruning, summary vectors.

pub(crate) mod dead_search;
pub(crate) mod mark;
pub(crate) mod prune;
pub(crate) mod references;
pub mod summary;
