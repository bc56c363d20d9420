//! Memory of one store's read path: its tables' pages and filters within the budget, and its read counters.
//!
//! Invariants
//! - A filter is charged before it is allocated; after a refused charge the partition works without it.
//! - Pages are keyed by a number allocated per open table, never by object. So several stores may share a
//!   budget, and a reused object number never reaches old pages.
//!
//! Not here: which partition gets which units (rules), how the budget is divided and enforced (`budget`).

pub(crate) use crate::memory::contents::{CachedPage as Page, PageKey};
use crate::{
    format::block::DataBlock,
    memory::{
        budget::{BudgetPlan, MemoryAccounts, MemoryCharge, MemoryClass},
        contents::CacheKey,
        elastic::ElasticFilters,
        recent_blocks::RecentBlocks,
        shared::MemoryBudget,
    },
    session::{
        options::FilterOptions,
        read_counters::{ReadCount, ReadCounters, ReadCounts},
    },
};
use std::sync::Arc;

/// Index pages, blocks and filters of all tables of a store.
pub struct TableCache {
    memory: MemoryBudget,
    recent: RecentBlocks,
    counters: ReadCounters,
}

/// Bytes in use by class, of all stores that share the budget.
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

/// Charges of one open table.
pub(crate) struct TableCharge {
    _resident: MemoryCharge,
    _tombstones: MemoryCharge,
}

impl TableCache {
    /// A cache of `page_bytes` for index pages and blocks, and at most `filter_bytes` for filter units, which
    /// the rule of `filters` moves between partitions.
    pub fn new(page_bytes: u64, filter_bytes: u64, filters: FilterOptions) -> Arc<TableCache> {
        let plan = BudgetPlan::of_tables(page_bytes, filter_bytes);
        TableCache::of(&MemoryBudget::with_plan(plan, filters))
    }

    /// The tables of one store, within a shared budget.
    pub(crate) fn of(memory: &MemoryBudget) -> Arc<TableCache> {
        let memory = memory.clone();
        Arc::new(TableCache { memory, recent: RecentBlocks::default(), counters: ReadCounters::default() })
    }

    /// Read counters of all tables that use this cache.
    pub fn counts(&self) -> ReadCounts {
        self.counters.sums()
    }

    /// Bytes in use.
    pub fn bytes(&self) -> CacheBytes {
        let bytes = self.memory.bytes();
        CacheBytes {
            pages: bytes.index_pages + bytes.blocks,
            filters: bytes.filters,
            resident: bytes.tables + bytes.range_tombstones,
        }
    }

    /// The budget that this cache belongs to.
    pub(crate) fn memory(&self) -> &MemoryBudget {
        &self.memory
    }

    pub(crate) fn budget(&self) -> &MemoryAccounts {
        self.memory.accounts()
    }

    pub(crate) fn count(&self, what: ReadCount) {
        self.counters.add(what);
    }

    /// A number that no other open table has.
    pub(crate) fn new_table(&self) -> u64 {
        self.memory.new_number()
    }

    /// Charges the resident memory of an open table.
    pub(crate) fn charge_table(&self, resident_bytes: u64, tombstone_bytes: u64) -> TableCharge {
        TableCharge {
            _resident: self.budget().charge(MemoryClass::Tables, resident_bytes),
            _tombstones: self.budget().charge(MemoryClass::RangeTombstones, tombstone_bytes),
        }
    }

    /// Filters of all tables that share the budget.
    pub(crate) fn elastic(&self) -> &Arc<ElasticFilters> {
        self.memory.elastic()
    }

    /// Drains the samples of the calling thread and of full rings, and moves filter units, as the background
    /// thread does on its own. Blocks on reads.
    pub fn adjust_filters(&self) {
        self.elastic().adjust_now();
    }

    pub(crate) fn get(&self, key: PageKey) -> Option<Page> {
        self.memory.cached(&key)
    }

    pub(crate) fn holds(&self, key: PageKey) -> bool {
        self.memory.is_cached(&key)
    }

    pub(crate) fn insert(&self, key: PageKey, page: Page) {
        self.memory.keep(CacheKey::Page(key), page);
    }

    /// A block that the cache does not keep, if it was read lately.
    pub(crate) fn recent(&self, key: PageKey) -> Option<DataBlock> {
        self.recent.get(key)
    }

    /// Keeps a block until some others were read.
    pub(crate) fn keep_recent(&self, key: PageKey, block: &DataBlock) {
        self.recent.put(self.budget(), key, block);
    }

    /// An account for the filter units of one table.
    pub(crate) fn filter_charge(&self) -> FilterCharge {
        FilterCharge { budget: self.budget().clone(), charge: self.budget().charge(MemoryClass::Filters, 0) }
    }
}

/// Bytes of filter units charged to the budget until dropped.
pub(crate) struct FilterCharge {
    budget: MemoryAccounts,
    charge: MemoryCharge,
}

impl FilterCharge {
    /// Charges `bytes` more, before they are allocated; `false`: they do not fit and nothing was charged.
    pub(crate) fn grow(&mut self, bytes: u64) -> bool {
        match self.budget.try_charge(MemoryClass::Filters, bytes) {
            Some(more) => {
                self.charge.join(more);
                true
            }
            None => false,
        }
    }

    /// Returns `bytes` that were freed.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let charged = self.charge.bytes();
        assert!(bytes <= charged, "{bytes} of {charged} charged bytes given back");
        self.charge.set(charged - bytes);
    }
}
