//! Sorted table: an immutable object of sorted entries.
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
//! - A damaged filter page means "no filter", and a damaged index page is rebuilt from the blocks. A damaged
//!   block is an error that names it, never an absent key.
//!
//! Not here: choosing tables (versions, compaction), visibility of versions, value objects.

mod builder;
mod cursor;
pub(crate) mod damage;
pub(crate) mod dump;
mod filter;
mod io;
mod lookup;
mod readahead;
mod reader;
mod scan;
mod typical_scan;
mod verify;

pub use crate::format::error::{Damage, DamageAt, TableError};
pub use crate::format::meta::{TableMeta, ValueUse};
pub use crate::format::{entry, entry_cursor, merge};
pub use crate::session::read_counters::ReadCounts;
pub(crate) use builder::{NewPartition, PartitionObserver};
pub use builder::{TableBuilder, TableOptions};
pub use cursor::TableCursor;
pub(crate) use io::ReadSizes;
pub use io::Sink;
pub use lookup::TableHit;
pub(crate) use lookup::{KeepPolicy, LookupPlace, TakenBlock};
pub use reader::{ReadOptions, Table};
pub use scan::Scan;
pub use verify::{DamagedKeys, TableVerifier, VerifyReport};

#[cfg(test)]
mod tests;
