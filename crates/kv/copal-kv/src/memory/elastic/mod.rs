//! Elastic filters: units of filters that are loaded and dropped while the store is open, under a fixed
//! memory.
//!
//! Paper: elasticbf §3.1-3.3; the rules themselves are pure and live in `copal_filter::rules`.
//!
//! ```text
//! Get ── probe ── unit slot (swapped pointer)        compaction ── predicted units, heat inherited
//!          └─ ring of 64 ── full ── adjuster ── rule ── releases, then loads ──┘
//! ```
//!
//! Invariants
//! - A Get takes no lock and touches no shared counter to probe loaded units or to be sampled. Only a probe
//!   of a partition without units may take the adjuster's lock, when it is about to read from the device
//!   anyway.
//! - Units are charged before they are read and given back after they are freed; what is charged equals what
//!   the rule has granted whenever nobody moves units. The budget is never exceeded.
//! - Merges read no filter pages: units of their outputs are taken from memory as the pages are written.
//! - Time is the number of Gets.
//!
//! The adjuster belongs to the memory, not to a store: partitions of all stores that share it compete.
//! Not here: which partition deserves what (`copal_filter::rules`), reading pages (`table::filter`), what new
//! partitions inherit (`inheritance`), reports by run (`filter_report`).

mod adjust;
mod filtered;
mod look;
mod moves;
mod predicted;
mod sample;
mod slot;
mod state;
mod sync;
mod thread;
mod wake;

pub(crate) use adjust::ElasticFilters;
pub(crate) use filtered::{FilterSlot, FilteredTable, LoadFailure};
pub(crate) use look::PartitionLook;
pub(crate) use predicted::{AtHand, PredictedPartition};
pub(crate) use state::SeenProbes;

#[cfg(test)]
mod model;
#[cfg(test)]
mod races;
#[cfg(test)]
mod tests;
