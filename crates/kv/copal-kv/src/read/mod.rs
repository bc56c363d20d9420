//! Read path: look-ups of one or many keys, iterators.

pub(crate) mod get;
pub(crate) mod iter;
pub(crate) mod key_search;
pub(crate) mod multi_get;
pub(crate) mod passed_deletions;
pub(crate) mod value_ranges;
