//! The way of a read: single look-ups, many at once, iterators.

pub(crate) mod get;
pub(crate) mod iter;
pub(crate) mod multi_get;
pub(crate) mod passed_deletions;
