//! Flush and compaction: turn memtables into tables and keep the tree in shape, on a thread each.
//!
//! Shape: lazy leveling.
//! - A flush makes a run at the top tier.
//! - Four runs of a tier merge into one run of the next tier, or into the bottom once they hold a tenth of
//!   its bytes. The bottom is one run.
//! - While nothing is written, the runs above the bottom are merged into one as soon as look-ups have paid
//!   for it.
//! - Deleted data is merged away where that frees as much as it writes, or where scans have paid for it.
//!
//! Invariants
//! - A merge handles the keys one output table at a time; each step is one object transaction.
//! - Only the worker changes existing runs, so a step never meets another's changes: steps side by side have
//!   disjoint key ranges. A flush may add a run at the top at any time.
//!
//! Not here: which entries survive (`version_gc`), placement of separated values (`value_separation`).

pub(crate) mod compactor;
pub(crate) mod deletions;
pub(crate) mod flusher;
pub(crate) mod install;
pub(crate) mod merge;
pub(crate) mod merge_benefit;
pub(crate) mod output;
mod parallel_merge;
mod pause;
pub(crate) mod picker;
pub(crate) mod release;
pub(crate) mod sweep;
pub(crate) mod value_separation;
pub(crate) mod version_gc;
pub(crate) mod worker;
