//! The page and row cache: index pages, data blocks and rows in one S3-FIFO.
//!
//! Design: docs/design/kv.md#memory
//! Invariants
//! - The contents, keys and slots included, never weigh more than the capacity: others are evicted before an
//!   insertion.
//! - Slots allocated for many small items remain after a few large items replace these. The bytes of slots
//!   beyond the present items are reported, so that they are charged.
//!
//! Not here: whether a row may be cached or is still valid (`rows`).

use crate::format::{block::DataBlock, index::IndexPage};
use bytes::Bytes;
use quick_cache::{DefaultHashBuilder, Equivalent, Lifecycle, OptionsBuilder, Weighter};
use std::{
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a slot, its links and its place in the hash table; doubled, since vectors grow by doubling.
const SLOT_BYTES: u64 = 2 * (size_of::<(CacheKey, CachedPage)>() as u64 + 24) + 16;
/// Bytes that the reference count adds to shared bytes.
const SHARED_BYTES: u64 = 32;
/// Least bytes of a shard: it must hold many pages, or large blocks never fit.
const SHARD_BYTES: u64 = 1 << 20;
const MAX_SHARDS: u64 = 16;
/// Insertions between two measurements of the empty slots.
const MEASURE_EVERY: u64 = 1024;

/// One page of one open table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageKey {
    pub(crate) table: u64,
    pub(crate) partition: u32,
    /// Block number, or [`PageKey::INDEX`].
    pub(crate) block: u32,
}

impl PageKey {
    /// Block number of the index page.
    pub(crate) const INDEX: u32 = u32::MAX;
}

/// The row of an internal key in an open store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowName<'a> {
    pub(crate) store: u64,
    pub(crate) key: &'a [u8],
}

/// Key of a cached item.
#[derive(Clone, Debug)]
pub(crate) enum CacheKey {
    Page(PageKey),
    Row { store: u64, key: Bytes },
}

/// A key by reference, so that a look-up allocates nothing.
pub(crate) trait CacheName: Hash + Equivalent<CacheKey> {}
impl CacheName for PageKey {}
impl CacheName for RowName<'_> {}

impl Hash for PageKey {
    fn hash<H: Hasher>(&self, to: &mut H) {
        to.write_u64(self.table);
        to.write_u64(u64::from(self.partition) << 32 | u64::from(self.block));
    }
}
impl Hash for RowName<'_> {
    fn hash<H: Hasher>(&self, to: &mut H) {
        to.write_u64(xxh3_64_with_seed(self.key, self.store));
    }
}
impl CacheKey {
    fn row(&self) -> Option<RowName<'_>> {
        match self {
            CacheKey::Page(_) => None,
            CacheKey::Row { store, key } => Some(RowName { store: *store, key }),
        }
    }
}
impl Hash for CacheKey {
    fn hash<H: Hasher>(&self, to: &mut H) {
        match self {
            CacheKey::Page(page) => page.hash(to),
            CacheKey::Row { store, key } => RowName { store: *store, key }.hash(to),
        }
    }
}
impl Equivalent<CacheKey> for PageKey {
    fn equivalent(&self, key: &CacheKey) -> bool {
        matches!(key, CacheKey::Page(page) if page == self)
    }
}
impl Equivalent<CacheKey> for RowName<'_> {
    fn equivalent(&self, key: &CacheKey) -> bool {
        key.row().is_some_and(|row| row.store == self.store && row.key == self.key)
    }
}
impl PartialEq for CacheKey {
    fn eq(&self, other: &CacheKey) -> bool {
        match other {
            CacheKey::Page(page) => page.equivalent(self),
            CacheKey::Row { store, key } => RowName { store: *store, key }.equivalent(self),
        }
    }
}
impl Eq for CacheKey {}

/// The newest version of a key, as a reader at `read_at` found it.
#[derive(Clone, Debug)]
pub(crate) struct CachedRow {
    pub(crate) value: Bytes,
    /// Sequence of the version.
    pub(crate) seq: u64,
    /// Sequence at which it was the newest.
    pub(crate) read_at: u64,
}

/// A cached item.
#[derive(Clone)]
pub(crate) enum CachedPage {
    Index(Arc<IndexPage>),
    Block(DataBlock),
    Row(CachedRow),
}

#[derive(Clone)]
struct PageWeight;

impl Weighter<CacheKey, CachedPage> for PageWeight {
    fn weight(&self, key: &CacheKey, value: &CachedPage) -> u64 {
        let bytes = match (value, key) {
            (CachedPage::Index(page), _) => page.heap_bytes() + size_of::<IndexPage>(),
            (CachedPage::Block(block), _) => block.heap_bytes(),
            // Key and value are one allocation.
            (CachedPage::Row(row), CacheKey::Row { key, .. }) => key.len() + row.value.len(),
            (CachedPage::Row(row), CacheKey::Page(_)) => row.value.len(),
        };
        bytes as u64 + SHARED_BYTES + SLOT_BYTES
    }
}

/// Bytes by kind of item.
#[derive(Clone, Default)]
struct ClassSums(Arc<[AtomicU64; 3]>);

impl ClassSums {
    fn of(&self, value: &CachedPage) -> &AtomicU64 {
        match value {
            CachedPage::Index(_) => &self.0[0],
            CachedPage::Block(_) => &self.0[1],
            CachedPage::Row(_) => &self.0[2],
        }
    }

    fn left(&self, key: &CacheKey, value: &CachedPage) {
        self.of(value).fetch_sub(PageWeight.weight(key, value), Relaxed);
    }
}

impl Lifecycle<CacheKey, CachedPage> for ClassSums {
    type RequestState = ();

    fn on_evict(&self, (): &mut (), key: CacheKey, value: CachedPage) {
        self.left(&key, &value);
    }
}

type Cache = quick_cache::sync::Cache<CacheKey, CachedPage, PageWeight, DefaultHashBuilder, ClassSums>;

/// The page and row cache; see the module.
pub(crate) struct CacheContents {
    cache: Cache,
    sums: ClassSums,
    inserted: AtomicU64,
}

impl CacheContents {
    pub(crate) fn new(capacity: u64) -> CacheContents {
        let shards = (capacity / SHARD_BYTES).clamp(1, MAX_SHARDS);
        let mut options = OptionsBuilder::new();
        options
            .shards(shards as usize)
            .weight_capacity(capacity / shards * shards)
            .estimated_items_capacity((capacity / 4096).max(16) as usize);
        let options = options.build().expect("both capacities are set, all else has defaults");
        let sums = ClassSums::default();
        CacheContents {
            cache: Cache::with_options(options, PageWeight, DefaultHashBuilder::default(), sums.clone()),
            sums,
            inserted: AtomicU64::new(0),
        }
    }

    pub(crate) fn get(&self, key: &impl CacheName) -> Option<CachedPage> {
        self.cache.get(key)
    }

    pub(crate) fn holds(&self, key: &impl CacheName) -> bool {
        self.cache.contains_key(key)
    }

    /// Inserts an item. Every [`MEASURE_EVERY`] insertions, returns the bytes of empty slots.
    pub(crate) fn insert(&self, key: CacheKey, value: CachedPage) -> Option<u64> {
        // Counted before, since a refused item is reported as evicted.
        let weight = PageWeight.weight(&key, &value);
        self.sums.of(&value).fetch_add(weight, Relaxed);
        self.cache.insert(key, value);
        let inserted = self.inserted.fetch_add(1, Relaxed);
        inserted.is_multiple_of(MEASURE_EVERY).then(|| self.empty_slots())
    }

    fn empty_slots(&self) -> u64 {
        let slots = 2 * self.cache.memory_used().total() as u64;
        slots.saturating_sub(self.cache.len() as u64 * SLOT_BYTES)
    }

    pub(crate) fn remove(&self, key: &impl CacheName) {
        if let Some((key, value)) = self.cache.remove(key) {
            self.sums.left(&key, &value);
        }
    }

    pub(crate) fn set_capacity(&self, capacity: u64) {
        let shards = self.cache.num_shards() as u64;
        self.cache.set_capacity(capacity / shards * shards);
    }

    /// Bytes of index pages, blocks, rows.
    pub(crate) fn bytes(&self) -> (u64, u64, u64) {
        let sum = |at: usize| self.sums.0[at].load(Relaxed);
        (sum(0), sum(1), sum(2))
    }
}
