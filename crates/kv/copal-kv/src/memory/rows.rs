//! Row cache: the newest version of a key with its value, so that a hot key costs neither filter probe nor
//! read.
//!
//! Design: docs/design/kv.md#look-ups KV-15
//! Invariants
//! - Before a write's sequence becomes visible, the write removes its row and records the sequence in the
//!   row's shard. A reader inserts a row found at sequence S only if its shard has recorded no write after S.
//!   So a reader that sees a write never sees an older row.
//! - Before a range deletion (tombstone, purge) becomes visible, it records its sequence in the keyspace;
//!   rows read before that sequence are invalid.
//! - A row answers a reader at S only if its version is not newer than S: a snapshot never sees newer rows.
//! - Absence is never cached, since filters serve that. Value pointers are never cached, since a value may
//!   move.
//!
//! Not here: weights of rows and eviction (`contents`).

use crate::{
    format::entry::{KeyspaceId, keyspace_of},
    memory::{
        contents::{CacheKey, CachedPage, CachedRow, RowName},
        shared::MemoryBudget,
    },
};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};
use xxhash_rust::xxh3::xxh3_64;

/// Longest value cached as a row.
pub(crate) const MAX_ROW_BYTES: usize = 16 << 10;
const SHARDS: usize = 256;

/// Record of the writes of one shard.
#[derive(Debug, Default)]
pub(crate) struct RowShard {
    /// Sequence of the newest write of a key in this shard.
    last_write: u64,
    /// A row was inserted at least once; before that no write has to remove one.
    used: bool,
}

/// Lock of one shard; the model checker substitutes its own.
pub(crate) trait RowGuard: Default {
    fn with<R>(&self, run: impl FnOnce(&mut RowShard) -> R) -> R;
}

impl RowGuard for Mutex<RowShard> {
    fn with<R>(&self, run: impl FnOnce(&mut RowShard) -> R) -> R {
        run(&mut self.lock())
    }
}

/// Storage of rows.
pub(crate) trait RowShelf {
    fn get(&self, key: &[u8]) -> Option<CachedRow>;
    fn put(&self, key: &[u8], value: &[u8], seq: u64, read_at: u64);
    fn remove(&self, key: &[u8]);
}

/// The rows of one store in the budget's cache.
pub(crate) struct BudgetShelf {
    memory: MemoryBudget,
    store: u64,
}

impl RowShelf for BudgetShelf {
    fn get(&self, key: &[u8]) -> Option<CachedRow> {
        let store = self.store;
        match self.memory.cached(&RowName { store, key })? {
            CachedPage::Row(row) => Some(row),
            CachedPage::Index(_) | CachedPage::Block(_) => None,
        }
    }

    fn put(&self, key: &[u8], value: &[u8], seq: u64, read_at: u64) {
        // Copied into one allocation: a slice would keep the block that the value came from.
        let mut both = Vec::with_capacity(key.len() + value.len());
        both.extend_from_slice(key);
        both.extend_from_slice(value);
        let both = Bytes::from(both);
        let name = CacheKey::Row { store: self.store, key: both.slice(..key.len()) };
        let value = both.slice(key.len()..);
        self.memory.keep(name, CachedPage::Row(CachedRow { value, seq, read_at }));
    }

    fn remove(&self, key: &[u8]) {
        let store = self.store;
        self.memory.forget(&RowName { store, key });
    }
}

/// Sequence of the newest range operation of one keyspace, shared with its handles.
#[derive(Debug, Default)]
pub(crate) struct RowEpoch(AtomicU64);

/// Row cache of one store; see the module.
pub(crate) struct RowCache<S = BudgetShelf, G = Mutex<RowShard>> {
    shelf: S,
    shards: Box<[G]>,
    spaces: RwLock<BTreeMap<KeyspaceId, Arc<RowEpoch>>>,
    /// A row was inserted since the opening; until then writes neither hash keys nor remove rows.
    used: AtomicBool,
}

impl RowCache {
    pub(crate) fn new(memory: &MemoryBudget) -> RowCache {
        RowCache::on(BudgetShelf { memory: memory.clone(), store: memory.new_number() })
    }
}

impl<S: RowShelf, G: RowGuard> RowCache<S, G> {
    pub(crate) fn on(shelf: S) -> RowCache<S, G> {
        RowCache {
            shelf,
            shards: (0..SHARDS).map(|_| G::default()).collect(),
            spaces: RwLock::default(),
            used: AtomicBool::new(false),
        }
    }

    /// The row epoch of a keyspace, for its readers.
    pub(crate) fn space(&self, id: KeyspaceId) -> Arc<RowEpoch> {
        self.spaces.write().entry(id).or_default().clone()
    }

    fn shard(&self, key: &[u8]) -> &G {
        &self.shards[xxh3_64(key) as usize % SHARDS]
    }

    /// Must be called before the version `seq` of `key` becomes visible.
    pub(crate) fn wrote(&self, key: &[u8], seq: u64) {
        self.shard(key).with(|shard| {
            shard.last_write = shard.last_write.max(seq);
            if shard.used {
                self.shelf.remove(key);
            }
        });
    }

    /// Like [`RowCache::wrote`] for all keys of `[start, end)`: a deletion or a purge of them.
    pub(crate) fn wrote_range(&self, start: &[u8], end: &[u8], seq: u64) {
        let last = KeyspaceId(u32::MAX);
        let (from, to) = (keyspace_of(start), keyspace_of(end).unwrap_or(last));
        let Some(from) = from.filter(|from| *from <= to) else {
            return;
        };
        for stamp in self.spaces.read().range(from..=to).map(|(_, stamp)| stamp) {
            stamp.0.fetch_max(seq, SeqCst);
        }
    }

    /// The cached value of `key` for a reader at `seq`.
    pub(crate) fn get(&self, space: &RowEpoch, key: &[u8], seq: u64) -> Option<Bytes> {
        if !self.used.load(SeqCst) {
            return None;
        }
        let row = self.shelf.get(key)?;
        (row.seq <= seq && row.read_at >= space.0.load(SeqCst)).then_some(row.value)
    }

    /// Caches the version `seq` of `key`, the newest that a reader at `read_at` found, unless a write came
    /// since.
    pub(crate) fn insert(&self, space: &RowEpoch, key: &[u8], value: &[u8], seq: u64, read_at: u64) {
        if value.len() > MAX_ROW_BYTES || read_at < space.0.load(SeqCst) {
            return;
        }
        self.used.store(true, SeqCst);
        self.shard(key).with(|shard| {
            if shard.last_write <= read_at {
                shard.used = true;
                self.shelf.put(key, value, seq, read_at);
            }
        });
    }
}

#[cfg(test)]
mod tests;
