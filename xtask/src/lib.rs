//! What the chores and the measurements share: programs run under a meter, sparse disk images compared,
//! changed extents written, tables printed.
//!
//! The chores themselves are in the binary (`main.rs`); the suites of measurements in `bench/`.

pub mod changes;
pub mod copal;
pub mod dataset;
pub mod metered;
pub mod sparse;
pub mod table;
