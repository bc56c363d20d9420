//! Flush and compaction: what turns memtables into tables and keeps the tree in shape, on a thread each.
//!
//! Shape: lazy leveling. A flush makes a run at the top tier; four runs of a tier merge into one run of the
//! next, or into the bottom once they hold a tenth of it. The bottom is one run. While nothing is written,
//! runs above the bottom become one as soon as look-ups have paid for it. What is deleted is merged away
//! where that frees what it writes, or where walks have paid for it.
//! Invariants
//! - A merge goes through the keys one output table at a time; each step is one object transaction.
//! - Only the worker changes what is in the tree, so a step never meets another's changes; a flush adds a run
//!   at the top at any time.
//!
//! Not here: which entries survive (`version_gc`), where separated values go (`value_separation`).

pub(crate) mod compactor;
pub(crate) mod deletions;
pub(crate) mod flusher;
pub(crate) mod install;
pub(crate) mod merge;
pub(crate) mod merge_benefit;
pub(crate) mod output;
mod pause;
pub(crate) mod picker;
pub(crate) mod release;
pub(crate) mod sweep;
pub(crate) mod value_separation;
pub(crate) mod version_gc;
pub(crate) mod worker;
