//! Memory of one store, or of several that share it: a budget, and what lives in the room that its charges
//! leave.
//!
//! Design: docs/design/kv.md#memory KV-11
//! Invariants
//! - Pages and rows have given way when a charge returns; filters are told to, and go when the adjuster runs
//!   next.
//! - The thread that adjusts filters ends with the last store, table or charge.
//!
//! Not here: who has taken how much (`budget`), pages and rows (`contents`), filters (`elastic`).

use crate::{
    memory::{
        budget::{BudgetPlan, GivesWay, MemoryAccounts, MemoryClass},
        contents::{CacheContents, CacheKey, CacheName, CachedPage},
        elastic::ElasticFilters,
    },
    session::options::FilterOptions,
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

/// Bytes in use, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryBytes {
    /// Memtables, those that iterators still pin too.
    pub memtables: u64,
    /// Groups on their way into the log.
    pub log: u64,
    /// Read-ahead and output of flush and merge.
    pub merges: u64,
    /// Reads under way.
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
    /// Slots of the cache that hold nothing.
    pub slots: u64,
    /// Descriptors and fences of open tables.
    pub tables: u64,
    /// Range tombstones of open tables.
    pub range_tombstones: u64,
    /// What the manifest says: tables, value objects and their dead ranges.
    pub manifest: u64,
    /// Lists of runs, of the versions that iterators still pin too.
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

/// Memory of one store, or of several that share it; cheap to clone.
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

/// What gives way to charges.
struct HeldMemory {
    contents: CacheContents,
    /// Filters of all tables.
    elastic: Arc<ElasticFilters>,
    /// Numbers given out to tables and stores.
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
    /// A budget of `total_bytes`; at least 4 MiB are used.
    #[must_use]
    pub fn new(total_bytes: u64) -> MemoryBudget {
        MemoryBudget::with_filters(total_bytes, FilterOptions::default())
    }

    /// As [`MemoryBudget::new`], with filters moved between the partitions of all its stores as `filters`
    /// says. The kind of new filters is each store's own choice.
    #[must_use]
    pub fn with_filters(total_bytes: u64, filters: FilterOptions) -> MemoryBudget {
        MemoryBudget::with_plan(BudgetPlan::of(total_bytes), filters)
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

    /// The number that is kept.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.accounts.total_bytes()
    }

    /// Bytes in use now, by class: of all stores that share the budget.
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

    /// Who has taken how much, and what is charged.
    pub(crate) fn accounts(&self) -> &MemoryAccounts {
        &self.accounts
    }

    pub(crate) fn elastic(&self) -> &Arc<ElasticFilters> {
        &self.held.elastic
    }

    /// The index page, block or row of that name.
    pub(crate) fn cached(&self, key: &impl CacheName) -> Option<CachedPage> {
        self.held.contents.get(key)
    }

    /// Whether something of that name is there, without a sign of interest in it.
    pub(crate) fn is_cached(&self, key: &impl CacheName) -> bool {
        self.held.contents.holds(key)
    }

    /// Keeps an index page, block or row for as long as it is worth more than others.
    pub(crate) fn keep(&self, key: CacheKey, value: CachedPage) {
        if let Some(empty_slots) = self.held.contents.insert(key, value) {
            self.accounts.set_empty_slots(empty_slots);
        }
    }

    pub(crate) fn forget(&self, key: &impl CacheName) {
        self.held.contents.remove(key);
    }

    /// A number nobody else has.
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
