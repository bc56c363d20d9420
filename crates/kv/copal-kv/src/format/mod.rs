//! Byte formats of a sorted table: entries, blocks, index pages, fences, footer. Pure; no device, no cache.

pub(crate) mod block;
pub(crate) mod block_cursor;
pub mod entry;
pub mod entry_cursor;
pub(crate) mod error;
pub(crate) mod fences;
pub(crate) mod footer;
pub(crate) mod index;
pub mod merge;
pub(crate) mod meta;
pub(crate) mod range_tombstones;
pub(crate) mod stripes;
pub(crate) mod tombstones;
