//! Shared parts of an open store: options, limits, counters, errors, wake-ups.

pub(crate) mod counters;
pub(crate) mod error;
pub(crate) mod get_recorder;
pub(crate) mod inline_work;
pub(crate) mod limits;
pub(crate) mod options;
pub(crate) mod poison;
pub(crate) mod read_counters;
pub(crate) mod signal;
