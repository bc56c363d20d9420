//! Shared parts of the chores and the measurements: metered programs, comparison of sparse images, changed
//! extents, tables.
//!
//! Not here: the chores themselves (`main.rs`), the suites of measurements (`bench/`).

pub mod changes;
pub mod copal;
pub mod dataset;
pub mod metered;
pub mod sparse;
pub mod table;
