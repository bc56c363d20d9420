//! Memory of the read path as one store sees it: pages and filters of the budget, and its own read counters.
//!
//! Invariants
//! - A filter is charged before it is allocated; a refused charge means "go without".
//! - Pages are keyed by a number given out per open table, never by object: several stores may share a budget,
//!   and an object number used again cannot reach old pages.
//!
//! Not here: which partition deserves its units (rules), how the budget is divided and kept (`budget`).

use crate::budget::Key;
pub(crate) use crate::budget::{Cached as Page, PageKey};
use crate::{
    budget::{Charge, Class, MemoryBudget, Plan},
    table::{
        ReadCounts,
        counters::{Count, ReadCounters},
    },
};
use std::sync::Arc;

/// Index pages, blocks and filters of all tables of a store.
pub struct TableCache {
    budget: MemoryBudget,
    counters: ReadCounters,
}

/// Bytes in use, by class; of all stores that share the budget.
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

/// What an open table is charged for.
pub(crate) struct TableCharge {
    cache: Arc<TableCache>,
    one_unit_bytes: u64,
    _resident: Charge,
    _tombstones: Charge,
}

impl Drop for TableCharge {
    fn drop(&mut self) {
        self.cache.budget.count_units(self.one_unit_bytes, false);
    }
}

impl TableCache {
    /// A cache of `page_bytes` for index pages and blocks, and at most `filter_bytes` for filter units.
    pub fn new(page_bytes: u64, filter_bytes: u64) -> Arc<TableCache> {
        TableCache::of(&MemoryBudget::with_plan(Plan::of_tables(
            page_bytes,
            filter_bytes,
        )))
    }

    /// The part of a budget that one store's tables use.
    pub(crate) fn of(budget: &MemoryBudget) -> Arc<TableCache> {
        Arc::new(TableCache {
            budget: budget.clone(),
            counters: ReadCounters::default(),
        })
    }

    /// Read counters of all tables that use this cache.
    pub fn counts(&self) -> ReadCounts {
        self.counters.sums()
    }

    /// Bytes in use.
    pub fn bytes(&self) -> CacheBytes {
        let bytes = self.budget.bytes();
        CacheBytes {
            pages: bytes.index_pages + bytes.blocks,
            filters: bytes.filters,
            resident: bytes.tables + bytes.range_tombstones,
        }
    }

    pub(crate) fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    pub(crate) fn count(&self, what: Count) {
        self.counters.add(what);
    }

    /// A number no other open table has.
    pub(crate) fn new_table(&self) -> u64 {
        self.budget.new_number()
    }

    /// Charges what an open table keeps. `one_unit_bytes`: one filter unit of each of its partitions.
    pub(crate) fn charge_table(
        self: &Arc<Self>,
        resident_bytes: u64,
        tombstone_bytes: u64,
        one_unit_bytes: u64,
    ) -> TableCharge {
        self.budget.count_units(one_unit_bytes, true);
        TableCharge {
            cache: self.clone(),
            one_unit_bytes,
            _resident: self.budget.charge(Class::Tables, resident_bytes),
            _tombstones: self.budget.charge(Class::RangeTombstones, tombstone_bytes),
        }
    }

    /// Units per partition that the budget holds if all partitions take the same, at least one: a store that
    /// outgrows its budget gets weaker filters everywhere before some partitions get none.
    pub(crate) fn fair_units(&self) -> u8 {
        self.budget.fair_units().clamp(1, u64::from(u8::MAX)) as u8
    }

    pub(crate) fn get(&self, key: PageKey) -> Option<Page> {
        self.budget.cached(&key)
    }

    pub(crate) fn insert(&self, key: PageKey, page: Page) {
        self.budget.keep(Key::Page(key), page);
    }

    /// Charges filter units before they are allocated; `None`: the budget is used up.
    pub(crate) fn charge_filter(&self, bytes: u64) -> Option<FilterCharge> {
        let charge = self.budget.try_charge(Class::Filters, bytes)?;
        Some(FilterCharge { _charge: charge })
    }
}

/// Bytes charged to the filter budget until dropped.
pub(crate) struct FilterCharge {
    _charge: Charge,
}
