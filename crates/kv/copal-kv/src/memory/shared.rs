//! Memory budget of one or several stores, with the caches and filters that use the memory left by other
//! charges.
//!
//! Design: docs/design/kv.md#memory KV-11
//! Invariants
//! - When a charge returns, pages and rows have been evicted as needed. Filters only get a lower limit, and
//!   are released at the next adjustment.
//! - The thread that adjusts filters ends with the last store, table or charge.
//!
//! Not here: accounts (`budget`), pages and rows (`contents`), filters (`elastic`).

use crate::{
    memory::{
        budget::{BudgetPlan, GivesWay, MemoryAccounts, MemoryClass},
        contents::{CacheContents, CacheKey, CacheName, CachedPage},
        elastic::ElasticFilters,
    },
    session::{limits::default_merge_threads, options::FilterOptions},
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

/// Bytes in use, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryBytes {
    /// Memtables, including those that only iterators still pin.
    pub memtables: u64,
    /// Groups on their way into the log.
    pub log: u64,
    /// Read-ahead and output of flush and merge.
    pub merges: u64,
    /// Reads in progress.
    pub reads: u64,
    /// Blocks and read-ahead of open iterators.
    pub scans: u64,
    /// Loaded filter units.
    pub filters: u64,
    /// Index pages.
    pub index_pages: u64,
    /// Data blocks.
    pub blocks: u64,
    /// Rows.
    pub rows: u64,
    /// Empty slots of the cache.
    pub slots: u64,
    /// Descriptors and fences of open tables.
    pub tables: u64,
    /// Range tombstones of open tables.
    pub range_tombstones: u64,
    /// State of the manifest: tables, value objects and their dead ranges.
    pub manifest: u64,
    /// Lists of runs, including those of versions that only iterators still pin.
    pub versions: u64,
}

impl MemoryBytes {
    /// All classes together.
    #[must_use]
    pub fn total(&self) -> u64 {
        let fixed = self.memtables + self.log + self.merges + self.reads;
        let cached = self.filters + self.index_pages + self.blocks + self.rows + self.slots;
        fixed + cached + self.scans + self.tables + self.range_tombstones + self.manifest + self.versions
    }
}

/// Memory budget of one store, or of several that share it; cheap to clone.
///
/// ```
/// use copal_kv::{Error, MemoryBudget, Options, Store};
/// # fn two(first: copal_object::Store, second: copal_object::Store) -> Result<(), Error> {
/// let budget = MemoryBudget::new(64 << 20);
/// let first = Store::open_within(first, Options::default(), &budget)?;
/// let second = Store::open_within(second, Options::default(), &budget)?;
/// assert_eq!(budget.total_bytes(), 64 << 20);
/// # drop((first, second));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryBudget {
    accounts: MemoryAccounts,
    held: Arc<HeldMemory>,
}

/// Memory that shrinks when other classes are charged.
struct HeldMemory {
    contents: CacheContents,
    /// Filters of all tables.
    elastic: Arc<ElasticFilters>,
    /// Next number for a table or store.
    next_number: AtomicU64,
}

impl GivesWay for HeldMemory {
    fn set_cache_capacity(&self, bytes: u64) {
        self.contents.set_capacity(bytes);
    }

    fn filter_limit(&self) -> u64 {
        self.elastic.limit_bytes()
    }

    fn set_filter_limit(&self, bytes: u64) {
        self.elastic.set_limit(bytes);
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        self.elastic.stop();
    }
}

impl MemoryBudget {
    /// A budget of `total_bytes`, at least 4 MiB.
    #[must_use]
    pub fn new(total_bytes: u64) -> MemoryBudget {
        MemoryBudget::with_filters(total_bytes, FilterOptions::default())
    }

    /// Like [`MemoryBudget::new`], with the memory and rule of `filters` for the partitions of all stores.
    /// Each store chooses the kind of its new filters itself.
    #[must_use]
    pub fn with_filters(total_bytes: u64, filters: FilterOptions) -> MemoryBudget {
        MemoryBudget::with_plan(BudgetPlan::of(total_bytes, default_merge_threads() as u64), filters)
    }

    pub(crate) fn with_plan(plan: BudgetPlan, filters: FilterOptions) -> MemoryBudget {
        let charged = plan.reserved();
        let held = Arc::new(HeldMemory {
            contents: CacheContents::new(plan.cache_capacity(charged)),
            elastic: ElasticFilters::new(filters, plan.filter_limit(charged)),
            next_number: AtomicU64::new(0),
        });
        MemoryBudget { accounts: MemoryAccounts::new(plan, held.clone()), held }
    }

    /// The enforced limit.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.accounts.total_bytes()
    }

    /// Bytes in use by class, of all stores that share the budget.
    #[must_use]
    pub fn bytes(&self) -> MemoryBytes {
        self.accounts.count_memtables();
        let used = |class: MemoryClass| self.accounts.used(class);
        let (index_pages, blocks, rows) = self.held.contents.bytes();
        MemoryBytes {
            memtables: used(MemoryClass::Memtables),
            log: used(MemoryClass::Log),
            merges: used(MemoryClass::Merges),
            reads: used(MemoryClass::Reads),
            scans: used(MemoryClass::Scans),
            filters: used(MemoryClass::Filters),
            index_pages,
            blocks,
            rows,
            slots: used(MemoryClass::Slots),
            tables: used(MemoryClass::Tables),
            range_tombstones: used(MemoryClass::RangeTombstones),
            manifest: used(MemoryClass::Manifest),
            versions: used(MemoryClass::Versions),
        }
    }

    /// The accounts: usage by class, and charges.
    pub(crate) fn accounts(&self) -> &MemoryAccounts {
        &self.accounts
    }

    pub(crate) fn elastic(&self) -> &Arc<ElasticFilters> {
        &self.held.elastic
    }

    /// The cached index page, block or row with that key.
    pub(crate) fn cached(&self, key: &impl CacheName) -> Option<CachedPage> {
        self.held.contents.get(key)
    }

    /// Whether an item with that key is cached; does not count as an access.
    pub(crate) fn is_cached(&self, key: &impl CacheName) -> bool {
        self.held.contents.holds(key)
    }

    /// Caches an index page, block or row until other items displace it.
    pub(crate) fn keep(&self, key: CacheKey, value: CachedPage) {
        if let Some(empty_slots) = self.held.contents.insert(key, value) {
            self.accounts.set_empty_slots(empty_slots);
        }
    }

    pub(crate) fn forget(&self, key: &impl CacheName) {
        self.held.contents.remove(key);
    }

    /// A number that no other table or store of this budget has.
    pub(crate) fn new_number(&self) -> u64 {
        self.held.next_number.fetch_add(1, SeqCst)
    }
}

impl std::fmt::Debug for MemoryBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryBudget").field("total_bytes", &self.total_bytes()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
