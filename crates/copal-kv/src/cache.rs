//! Memory of the read path: index pages and data blocks under one byte budget, filter units under another.
//!
//! Invariants
//! - A filter is charged before it is allocated; a refused charge means "go without".
//! - What the cache holds never weighs more than its capacity, keys and slots included.
//! - Pages are keyed by a number given out per open table, never by object: several stores may share a cache,
//!   and an object number used again cannot reach old pages.
//!
//! Not here: which partition deserves its units (rules), memtables and buffers.

use crate::table::{
    ReadCounts,
    block::Block,
    counters::{Count, ReadCounters},
    index::IndexPage,
};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter, sync::DefaultLifecycle};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Estimated bytes of slot, hash table and pointers beside each cached page.
const SLOT_BYTES: u64 = 96;
/// A shard must hold many pages, or large blocks never fit.
const SHARD_BYTES: u64 = 1 << 20;
const MAX_SHARDS: u64 = 16;

/// Index pages, blocks and filters of all tables of a store; shared.
pub struct TableCache {
    pages: quick_cache::sync::Cache<PageKey, Page, PageWeight>,
    filter_bytes: AtomicU64,
    filter_limit_bytes: u64,
    resident_bytes: AtomicU64,
    /// One filter unit of every partition of the open tables, bytes.
    one_unit_bytes: AtomicU64,
    next_table: AtomicU64,
    counters: ReadCounters,
}

/// Which page of which open table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PageKey {
    pub(crate) table: u64,
    pub(crate) partition: u32,
    /// Block number, or [`PageKey::INDEX`].
    pub(crate) block: u32,
}

impl PageKey {
    /// Stands for the index page.
    pub(crate) const INDEX: u32 = u32::MAX;
}

/// What is cached.
#[derive(Clone)]
pub(crate) enum Page {
    Index(Arc<IndexPage>),
    Block(Block),
}

#[derive(Clone)]
struct PageWeight;

impl Weighter<PageKey, Page> for PageWeight {
    fn weight(&self, _: &PageKey, page: &Page) -> u64 {
        let bytes = match page {
            Page::Index(page) => page.heap_bytes() + size_of::<IndexPage>(),
            Page::Block(block) => block.heap_bytes(),
        };
        bytes as u64 + size_of::<(PageKey, Page)>() as u64 + SLOT_BYTES
    }
}

/// Bytes in use, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheBytes {
    /// Index pages and data blocks.
    pub pages: u64,
    /// Loaded filter units.
    pub filters: u64,
    /// Fences, descriptors, range tombstones of open tables: always resident.
    pub resident: u64,
}

impl CacheBytes {
    /// All classes together.
    pub fn total(&self) -> u64 {
        self.pages + self.filters + self.resident
    }
}

impl TableCache {
    /// A cache of `page_bytes` for index pages and blocks, and at most `filter_bytes` for filter units.
    pub fn new(page_bytes: u64, filter_bytes: u64) -> Arc<TableCache> {
        let shards = (page_bytes / SHARD_BYTES).clamp(1, MAX_SHARDS);
        let mut options = OptionsBuilder::new();
        options
            .shards(shards as usize)
            .weight_capacity(page_bytes)
            .estimated_items_capacity((page_bytes / 4096).max(16) as usize);
        let options = options
            .build()
            .expect("both capacities are set, all else has defaults");
        let pages = quick_cache::sync::Cache::with_options(
            options,
            PageWeight,
            DefaultHashBuilder::default(),
            DefaultLifecycle::default(),
        );
        Arc::new(TableCache {
            pages,
            filter_bytes: AtomicU64::new(0),
            filter_limit_bytes: filter_bytes,
            resident_bytes: AtomicU64::new(0),
            one_unit_bytes: AtomicU64::new(0),
            next_table: AtomicU64::new(0),
            counters: ReadCounters::default(),
        })
    }

    /// Read counters of all tables that use this cache.
    pub fn counts(&self) -> ReadCounts {
        self.counters.sums()
    }

    /// Bytes in use.
    pub fn bytes(&self) -> CacheBytes {
        CacheBytes {
            pages: self.pages.weight(),
            filters: self.filter_bytes.load(Ordering::Relaxed),
            resident: self.resident_bytes.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn count(&self, what: Count) {
        self.counters.add(what);
    }

    /// A number no other open table has. `one_unit_bytes`: one filter unit of each of its partitions.
    pub(crate) fn register_table(&self, resident_bytes: u64, one_unit_bytes: u64) -> u64 {
        self.resident_bytes.fetch_add(resident_bytes, Ordering::Relaxed);
        self.one_unit_bytes.fetch_add(one_unit_bytes, Ordering::Relaxed);
        self.next_table.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn release_table(&self, resident_bytes: u64, one_unit_bytes: u64) {
        self.resident_bytes.fetch_sub(resident_bytes, Ordering::Relaxed);
        self.one_unit_bytes.fetch_sub(one_unit_bytes, Ordering::Relaxed);
    }

    /// Units per partition that the budget holds if all partitions take the same, at least one: a store that
    /// outgrows its budget gets weaker filters everywhere before some partitions get none.
    pub(crate) fn fair_units(&self) -> u8 {
        let one = self.one_unit_bytes.load(Ordering::Relaxed).max(1);
        (self.filter_limit_bytes / one).clamp(1, u64::from(u8::MAX)) as u8
    }

    pub(crate) fn get(&self, key: PageKey) -> Option<Page> {
        self.pages.get(&key)
    }

    pub(crate) fn insert(&self, key: PageKey, page: Page) {
        self.pages.insert(key, page);
    }

    /// Charges filter units before they are allocated; `None`: the budget is used up.
    pub(crate) fn charge_filter(self: &Arc<Self>, bytes: u64) -> Option<FilterCharge> {
        let limit = self.filter_limit_bytes;
        let grow = |used: u64| used.checked_add(bytes).filter(|&used| used <= limit);
        self.filter_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow)
            .ok()?;
        Some(FilterCharge {
            cache: self.clone(),
            bytes,
        })
    }
}

/// Bytes charged to the filter budget until dropped.
pub(crate) struct FilterCharge {
    cache: Arc<TableCache>,
    bytes: u64,
}

impl Drop for FilterCharge {
    fn drop(&mut self) {
        self.cache.filter_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
