//! LSM key-value engine on `copal-object`: an ordered map larger than memory, under one memory budget.
//!
//! ```text
//! Store ── commit ── log (stream) ── memtable ── flush ── runs of tables ── merges ── bottom
//!             └──── value objects (large values, one object per group of keys) ────┘
//! ```
//!
//! Formats: docs/formats/kv-log.md, kv-page-cache-log.md, kv-manifest.md, kv-values.md, kv-table.md,
//! kv-filter-page.md Invariants
//! - Acknowledged with [`Durability::Device`] means it survives power loss; after any crash the store is a
//!   prefix of commit order, batches whole.
//! - A full store refuses puts, never deletes, and is not harmed by being full (KV-10).
//! - After a failed write the store is read-only until it is opened again.
//!
//! What it is not: no network, no async runtime, no custom key order, one process at a time.
//!
//! Begin with [`Store::open`], [`Store::keyspace`], [`Keyspace::get`] and [`Keyspace::put`]; the README of
//! the crate has a whole program and what happens when a disk is full, slow or wrong. Every call blocks, on
//! the device or on other writers, unless its documentation says otherwise; every handle may be shared
//! between threads.
//!
//! Promised to libraries, though nothing above this crate calls it: snapshots ([`Store::snapshot`]), look-ups
//! of many keys ([`Keyspace::multi_get`]), walks over heads of values ([`Iter::heads`]),
//! [`Keyspace::approximate_bytes`], and [`Durability::Process`], which is what LevelDB and RocksDB do by
//! default.
//!
//! Modules that are open ([`table`], [`cache`], [`cursor`], [`merge`], [`entry`]) are the parts of the engine
//! for those who measure them or build another; [`dump`] shows what the objects of a store hold.

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

/// The programs of the README run as tests.
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
pub use care::verify::VerifyReport;
pub use copal_filter::{Kind as FilterKind, rules::RuleKind as FilterRule};
pub use format::{entry, entry_cursor as cursor, merge};
pub use memory::cache;
pub use memory::shared::{MemoryBudget, MemoryBytes};
pub use read::iter::Iter;
pub use session::error::Error;
pub use session::options::{CacheMode, Durability, FilterMemory, FilterOptions, KeyspaceOptions, Options};
pub use tree::filter_report::{FilterClass, Filters, HeatCell, RunFilters};
