//! Elastic filters: filter units are loaded and dropped while the store is open, within a memory limit.
//!
//! Paper: elasticbf §3.1-3.3; the rules themselves are pure and live in `copal_filter::rules`.
//!
//! ```text
//! Get ── probe ── unit slot (swapped pointer)        compaction ── predicted units, heat inherited
//!          └─ ring of 64 ── full ── adjuster ── rule ── releases, then loads ──┘
//! ```
//!
//! Invariants
//! - To probe loaded units and to be sampled, a Get takes no lock and touches no shared counter. Only a probe
//!   of a partition without units may take the adjuster's lock, just before it would read from the device.
//! - Units are charged before they are read and returned after they are freed. While no thread moves units,
//!   the charges equal the grants of the rule. The budget is never exceeded.
//! - Merges read no filter pages: the units of their outputs are taken from memory as the pages are written.
//! - Time is the number of Gets.
//!
//! The adjuster belongs to the memory budget, not to a store: partitions of all stores that share it compete.
//! Not here: which partition gets which units (`copal_filter::rules`), reading pages (`table::filter`),
//! inheritance of heat (`inheritance`), reports by run (`filter_report`).

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
