//! Row cache: the newest version of a key, kept whole, so that a hot key costs neither filter nor read.
//!
//! Design: docs/design/kv.md#look-ups KV-15
//! Invariants
//! - A write removes its row, and its sequence is noted in the row's shard, before the sequence becomes
//!   visible. A reader inserts what it found at sequence S only while its shard has noted no write behind S.
//!   So whoever sees a write never sees a row from before it.
//! - What deletes a range (tombstone, purge) notes its sequence in the keyspace, before it becomes visible:
//!   rows read before that are not there any more.
//! - A row answers a reader at S if its version is not newer than S: a snapshot never sees newer rows.
//! - Absence is never cached; filters do that. Neither are pointers: the value they point at may move.
//!
//! Not here: what rows weigh and which give way (`contents`).

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

/// Longest value kept as a row.
pub(crate) const MAX_ROW_BYTES: usize = 16 << 10;
const SHARDS: usize = 256;

/// What writes of one shard left.
#[derive(Debug, Default)]
pub(crate) struct RowShard {
    /// Newest write of a key of this shard.
    last_write: u64,
    /// A row was inserted once; before that there is nothing to remove.
    used: bool,
}

/// A lock around one shard; the model checker brings its own.
pub(crate) trait RowGuard: Default {
    fn with<R>(&self, run: impl FnOnce(&mut RowShard) -> R) -> R;
}

impl RowGuard for Mutex<RowShard> {
    fn with<R>(&self, run: impl FnOnce(&mut RowShard) -> R) -> R {
        run(&mut self.lock())
    }
}

/// Where rows lie.
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
        // One allocation of its own: a slice would keep the block that the value came from.
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

/// The newest range operation of one keyspace, shared with its handles.
#[derive(Debug, Default)]
pub(crate) struct RowEpoch(AtomicU64);

/// See the module.
pub(crate) struct RowCache<S = BudgetShelf, G = Mutex<RowShard>> {
    shelf: S,
    shards: Box<[G]>,
    spaces: RwLock<BTreeMap<KeyspaceId, Arc<RowEpoch>>>,
    /// Some row was inserted since the opening: until then nothing has to be hashed or removed.
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

    /// The stamp of a keyspace, for those who read in it.
    pub(crate) fn space(&self, id: KeyspaceId) -> Arc<RowEpoch> {
        self.spaces.write().entry(id).or_default().clone()
    }

    fn shard(&self, key: &[u8]) -> &G {
        &self.shards[xxh3_64(key) as usize % SHARDS]
    }

    /// A version of `key` with sequence `seq` is on its way; before it becomes visible.
    pub(crate) fn wrote(&self, key: &[u8], seq: u64) {
        self.shard(key).with(|shard| {
            shard.last_write = shard.last_write.max(seq);
            if shard.used {
                self.shelf.remove(key);
            }
        });
    }

    /// As [`RowCache::wrote`] for all keys of `[start, end)`: deleted, purged, or brought by tables made
    /// elsewhere.
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

    /// The value of `key` for a reader at `seq`, if it is known without looking.
    pub(crate) fn get(&self, space: &RowEpoch, key: &[u8], seq: u64) -> Option<Bytes> {
        if !self.used.load(SeqCst) {
            return None;
        }
        let row = self.shelf.get(key)?;
        (row.seq <= seq && row.read_at >= space.0.load(SeqCst)).then_some(row.value)
    }

    /// Keeps the version `seq` of `key`, the newest that a reader at `read_at` found, unless something was
    /// written since.
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
