//! Write path: group commit, the log, the memtable, and throttling of writers.

pub(crate) mod admission;
pub(crate) mod commit;
pub(crate) mod log;
pub(crate) mod page_cache_log;
pub(crate) mod path;
pub(crate) mod pressure;
pub(crate) mod reserve;
pub(crate) mod throttle;
