//! LSM key-value engine on `copal-object`.
#![allow(missing_docs, unused_variables, clippy::todo)]
pub mod cache;
pub mod cursor;
pub mod entry;
pub mod merge;
pub mod table;

use bytes::Bytes;
use std::{
    ops::{Bound, Range},
    sync::Arc,
};

#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Object(#[from] copal_object::StoreError),
    #[error("damaged: {what}")]
    Corrupt { what: String },
    #[error("the store is full")]
    NoSpace,
    #[error("the store is read-only until reopened: {reason}")]
    Poisoned { reason: String },
    #[error("the store is open read-only")]
    ReadOnly,
    #[error("keyspace {0} does not exist")]
    NoKeyspace(String),
    #[error("key of {0} bytes is longer than 65535")]
    KeyTooLong(usize),
    #[error("value of {0} bytes is longer than 1 GiB")]
    ValueTooLong(usize),
}
impl Error {
    pub fn is_corruption(&self) -> bool {
        todo!()
    }
    pub fn is_no_space(&self) -> bool {
        todo!()
    }
}

/// `Device`: survives power loss. `Process`: survives a kill. `Deferred`: logged within 100 ms or 1 MB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    #[default]
    Device,
    Process,
    Deferred,
}

#[derive(Clone, Debug)]
pub struct Options {
    pub memory_bytes: u64,
    pub read_only: bool,
    pub table_bytes: u64,
    pub worker_threads: usize,
    pub filter_columns: u8,
}
impl Default for Options {
    fn default() -> Options {
        Options {
            memory_bytes: 32 << 20,
            read_only: false,
            table_bytes: 32 << 20,
            worker_threads: 1,
            filter_columns: 6,
        }
    }
}

#[derive(Clone, Debug)]
pub struct KeyspaceOptions {
    /// Keys sharing this many first bytes share value objects and no one else's; 0 = one group.
    pub group_prefix_len: u8,
    /// Values from this size leave the tables at flush.
    pub separate_from_bytes: u32,
    /// Values from this size go straight to a value object, written once, never through the log.
    pub direct_from_bytes: u32,
    /// Keep data blocks as they are, or lz4.
    pub compress: bool,
}
impl Default for KeyspaceOptions {
    fn default() -> KeyspaceOptions {
        KeyspaceOptions {
            group_prefix_len: 0,
            separate_from_bytes: 4096,
            direct_from_bytes: 65536,
            compress: false,
        }
    }
}

/// Open engine; cheap to clone, safe to share between threads.
#[derive(Clone)]
pub struct Store {
    _p: Arc<()>,
}
/// Named ordered map inside a store; cheap to clone.
#[derive(Clone)]
pub struct Keyspace {
    _p: Arc<()>,
}
/// Writes that happen together or not at all, over any keyspaces.
pub struct Batch {
    _p: (),
}
/// Repeatable view of all keyspaces.
#[derive(Clone)]
pub struct Snapshot {
    _p: Arc<()>,
}
/// Both-way iterator over a key range: `next()` ascending, `next_back()` descending.
pub struct Iter {
    _p: (),
}

impl Store {
    pub fn open(objects: copal_object::Store, options: Options) -> Result<Store, Error> {
        todo!()
    }
    /// Opens the keyspace, creating it durably when new. Options are kept from creation.
    pub fn keyspace(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace, Error> {
        todo!()
    }
    pub fn open_keyspace(&self, name: &str) -> Result<Option<Keyspace>, Error> {
        todo!()
    }
    pub fn drop_keyspace(&self, name: &str) -> Result<(), Error> {
        todo!()
    }
    pub fn batch(&self) -> Batch {
        todo!()
    }
    pub fn snapshot(&self) -> Snapshot {
        todo!()
    }
    /// Writes the memtables to tables. Blocks.
    pub fn flush(&self) -> Result<(), Error> {
        todo!()
    }
    /// Everything logged so far survives power loss when this returns.
    pub fn sync(&self) -> Result<(), Error> {
        todo!()
    }
    pub fn objects(&self) -> &copal_object::Store {
        todo!()
    }
    pub fn stats(&self) -> Stats {
        todo!()
    }
    pub fn close(&self) -> Result<(), Error> {
        todo!()
    }
}
impl Keyspace {
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        todo!()
    }
    /// `range` of the value; short at its end. Reads only those bytes of a separated value.
    pub fn get_range(&self, key: &[u8], range: Range<u64>) -> Result<Option<Bytes>, Error> {
        todo!()
    }
    pub fn contains(&self, key: &[u8]) -> Result<bool, Error> {
        todo!()
    }
    pub fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<(), Error> {
        todo!()
    }
    pub fn delete(&self, key: &[u8], durability: Durability) -> Result<(), Error> {
        todo!()
    }
    pub fn iter(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Iter {
        todo!()
    }
    pub fn prefix(&self, prefix: &[u8]) -> Iter {
        todo!()
    }
    /// Deletes all keys with the prefix at once; value objects wholly inside go unread.
    pub fn purge_prefix(&self, prefix: &[u8], durability: Durability) -> Result<(), Error> {
        todo!()
    }
    /// Merges everything in the range to the bottom and frees what is stale. Blocks.
    pub fn compact_range(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<(), Error> {
        todo!()
    }
}
impl Batch {
    pub fn put(&mut self, keyspace: &Keyspace, key: &[u8], value: Bytes) -> &mut Batch {
        todo!()
    }
    pub fn delete(&mut self, keyspace: &Keyspace, key: &[u8]) -> &mut Batch {
        todo!()
    }
    /// Deletes keys in [start, end).
    pub fn delete_range(&mut self, keyspace: &Keyspace, start: &[u8], end: &[u8]) -> &mut Batch {
        todo!()
    }
    pub fn commit(self, durability: Durability) -> Result<(), Error> {
        todo!()
    }
}
impl Snapshot {
    pub fn get(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Bytes>, Error> {
        todo!()
    }
    pub fn iter(&self, keyspace: &Keyspace, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Iter {
        todo!()
    }
}
impl Iter {
    /// Keys only: separated values are not read; the value is empty.
    pub fn keys_only(self) -> Iter {
        todo!()
    }
}
impl Iterator for Iter {
    type Item = Result<(Bytes, Bytes), Error>;
    fn next(&mut self) -> Option<Self::Item> {
        todo!()
    }
}
impl DoubleEndedIterator for Iter {
    fn next_back(&mut self) -> Option<Self::Item> {
        todo!()
    }
}

/// Counters in units, not rates.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub gets: u64,
    pub filter_probes: u64,
    pub filter_negatives: u64,
    pub false_positives: u64,
    pub data_block_reads: u64,
    pub index_page_reads: u64,
    pub flushes: u64,
    pub merges: u64,
    pub write_bytes: u64,
    pub user_bytes: u64,
    pub memory_bytes: u64,
}
