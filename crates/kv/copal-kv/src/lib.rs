//! LSM key-value engine on `copal-object`: an ordered map larger than memory, under one memory budget.
//!
//! ```text
//! Store ── commit ── log (stream) ── memtable ── flush ── runs of tables ── merges ── bottom
//!             └──── value objects (large values, one object per group of keys) ────┘
//! ```
//!
//! Formats: docs/formats/kv-log.md, kv-page-cache-log.md, kv-manifest.md, kv-values.md, kv-table.md,
//! kv-filter-page.md
//!
//! Invariants
//! - A write acknowledged with [`Durability::Device`] survives power loss.
//! - After any crash the store holds a prefix of the commit order, with every batch complete or absent.
//! - A full store refuses puts but never deletes, and being full does not damage it (KV-10).
//! - After a failed write the store is read-only until it is reopened.
//!
//! Not here: network, async runtime, custom key order, access by several processes.
//!
//! Begin with [`Store::open`], [`Store::keyspace`], [`Keyspace::get`] and [`Keyspace::put`]. The crate's
//! README has a complete program and describes full and damaged stores. Every call blocks on the device or on
//! other writers unless its documentation says otherwise. Every handle may be shared between threads.
//!
//! Nothing above this crate calls these functions, but they are promised to users of the library:
//! - snapshots ([`Store::snapshot`]);
//! - look-ups of many keys ([`Keyspace::multi_get`]);
//! - scans of value heads ([`Iter::heads`]);
//! - [`Keyspace::approximate_bytes`];
//! - [`Durability::Process`], the default durability of LevelDB and RocksDB.
//!
//! The public modules [`table`], [`cache`], [`cursor`], [`merge`] and [`entry`] are parts of the engine for
//! measurements and for other engines. [`dump`] shows the contents of a store's objects.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

mod api;
mod broken;
mod care;
mod compact;
#[cfg(test)]
mod crashes;
mod engine;
mod format;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod memory;
mod open;
mod read;
mod session;
pub mod table;
mod tree;
mod write;

/// Runs the programs of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use api::keyspace::{Batch, Keyspace, Snapshot};
pub use api::repair::RepairReport;
pub use api::stats::{LevelStats, Stats};
pub use api::store::Store;
pub use care::dump;
pub use care::quarantine::DamagedRange;
pub use care::scrub::{Scrub, ScrubProgress};
pub use care::verify::{VerifyDepth, VerifyReport};
pub use copal_filter::{Kind as FilterKind, rules::RuleKind as FilterRule};
pub use format::{entry, entry_cursor as cursor, merge};
pub use memory::cache;
pub use memory::shared::{MemoryBudget, MemoryBytes};
pub use read::iter::Iter;
pub use read::value_ranges::{ValuePart, ValuePartSink};
pub use session::error::Error;
pub use session::options::{CacheMode, Durability, FilterMemory, FilterOptions, KeyspaceOptions, Options};
pub use tree::filter_report::{FilterClass, Filters, HeatCell, RunFilters};
