//! Write path: group commit, admission, the log, the page-cache log, the reserve, and throttling of writers.
//!
//! Not here: the memtable (`tree`).

pub(crate) mod admission;
pub(crate) mod commit;
pub(crate) mod log;
pub(crate) mod page_cache_log;
pub(crate) mod path;
pub(crate) mod pressure;
pub(crate) mod reserve;
pub(crate) mod throttle;
