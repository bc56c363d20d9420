//! Sorted table: an immutable object of the entries of one keyspace.
//!
//! ```text
//! [partition: data blocks | index page | filter page] ... [range tombstones] [fences] [properties] [footer x 2]
//! ```
//!
//! Format: docs/formats/kv-table.md v1, docs/formats/kv-filter-page.md v1
//! Paper:  elasticbf §3.1
//! Invariants
//! - Entries ascend strictly by (user key, newest first); all versions of a key are in one partition.
//! - No length read from disk is used before it is bounded by its enclosing part.
//! - A damaged filter page means "no filter", a damaged index page is rebuilt from the blocks; a damaged
//!   block is an error that names it, never an absent key.
//!
//! Not here: choosing tables (versions, compaction), visibility of versions, value objects.

pub(crate) mod block;
pub(crate) mod block_cursor;
mod builder;
mod cursor;
pub(crate) mod damage;
pub(crate) mod dump;
pub mod entry;
pub mod entry_cursor;
mod error;
pub(crate) mod fences;
mod filter;
pub(crate) mod footer;
pub(crate) mod index;
mod io;
pub(crate) mod key;
mod lookup;
pub mod merge;
pub(crate) mod meta;
mod open;
mod opened;
mod pages;
pub(crate) mod range_tombstones;
mod read;
mod readahead;
mod scan;
pub(crate) mod stripes;
pub(crate) mod tombstones;
mod typical_scan;
mod verify;

pub use crate::session::read_counters::ReadCounts;
pub(crate) use builder::{NewPartition, PartitionObserver};
pub use builder::{TableBuilder, TableOptions};
pub use cursor::TableCursor;
pub use error::{Damage, DamageAt, TableError};
pub use io::Sink;
pub use lookup::Found;
pub(crate) use lookup::{Asked, Keep, Taken};
pub use meta::{TableMeta, ValueUse};
pub use opened::{ReadOptions, Table};
pub use scan::Scan;
pub use verify::{Damaged, VerifyReport};

#[cfg(test)]
mod tests;
