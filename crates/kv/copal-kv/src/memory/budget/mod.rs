//! Accounts of a memory budget: one limit for all memory that grows with the data, and its use by class.
//!
//! Design: docs/design/kv.md#memory KV-11
//! Invariants
//! - Charges never exceed the total. Pages and rows are evicted before a charge returns; memory that cannot
//!   be evicted is refused ([`crate::Error::OverBudget`]) before it is allocated.
//! - A reserve counts in full from the beginning, used or not; beyond it a class counts its use.
//! - Bytes are charged before they are allocated and returned after they are freed.
//!
//! Outside the budget:
//! - memory of the caller: the value given to a put, the values returned by a get;
//! - one value or batch longer than a reserve while it is moved. Caches are evicted for it as far as
//!   possible, and the memtable has room for its entries before it is moved;
//! - the object store below, threads and handles.
//!
//! Not here: eviction (`memory`), division of the total (`plan`).

mod class;
mod plan;

use crate::{Error, session::limits::MAX_GROUP_BYTES};
pub(crate) use class::MemoryClass;
use copal_device::KeptLimit;
use parking_lot::Mutex;
pub(crate) use plan::BudgetPlan;
use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering::SeqCst},
};

/// Memory that uses the room left by charges: pages and rows, and filters.
pub(crate) trait GivesWay: Send + Sync {
    /// Sets the limit of pages and rows. Evicts down to `bytes` before it returns.
    fn set_cache_capacity(&self, bytes: u64);

    /// Limit of filters, as last set.
    fn filter_limit(&self) -> u64;

    /// Sets the limit of filters; the next adjustment releases the units beyond it.
    fn set_filter_limit(&self, bytes: u64);
}

/// Accounts of one budget; see the module. Cheap to clone.
#[derive(Clone)]
pub(crate) struct MemoryAccounts {
    shared: Arc<AccountBook>,
}

struct AccountBook {
    plan: BudgetPlan,
    used: [AtomicU64; MemoryClass::ALL.len()],
    /// Sum over the classes of the larger of use and reserve.
    charged: AtomicU64,
    /// Highest value of `charged`.
    #[cfg(test)]
    peak: AtomicU64,
    /// Current limit of pages and rows.
    capacity: AtomicU64,
    resize: Mutex<()>,
    gives_way: Arc<dyn GivesWay>,
    /// Bytes of each memtable, kept until the memtable is freed.
    memtables: Mutex<Vec<Weak<AtomicU64>>>,
    stores: AtomicU64,
    _kept: Option<KeptLimit>,
}

impl MemoryAccounts {
    /// Accounts with nothing in use. `gives_way` gets the memory that the reserves of `plan` leave.
    pub(crate) fn new(plan: BudgetPlan, gives_way: Arc<dyn GivesWay>) -> MemoryAccounts {
        let charged = plan.reserved();
        MemoryAccounts {
            shared: Arc::new(AccountBook {
                plan,
                used: Default::default(),
                charged: AtomicU64::new(charged),
                #[cfg(test)]
                peak: AtomicU64::new(charged),
                capacity: AtomicU64::new(plan.cache_capacity(charged)),
                resize: Mutex::new(()),
                gives_way,
                memtables: Mutex::default(),
                stores: AtomicU64::new(0),
                _kept: plan.kept().map(|bytes| KeptLimit::new(bytes as usize)),
            }),
        }
    }

    /// The enforced limit.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.shared.plan.total
    }

    /// Bytes that a class uses now; memtables as of the last count.
    pub(crate) fn used(&self, class: MemoryClass) -> u64 {
        self.shared.used[class as usize].load(SeqCst)
    }

    /// Highest sum of charges, reserves in full, since the last call.
    #[cfg(test)]
    pub(crate) fn take_peak(&self) -> u64 {
        let now = self.shared.charged.load(SeqCst);
        self.shared.peak.swap(now, SeqCst)
    }

    /// Sum of all charges, reserves in full.
    #[cfg(test)]
    pub(crate) fn charged(&self) -> u64 {
        self.shared.charged.load(SeqCst)
    }

    #[cfg(test)]
    /// Sum of all charges, reserves in full, and the limit of pages and rows.
    pub(crate) fn committed(&self) -> u64 {
        self.shared.charged.load(SeqCst) + self.shared.capacity.load(SeqCst)
    }

    /// Bytes that flush and merge of one store may take.
    pub(crate) fn merge_bytes(&self) -> u64 {
        self.shared.plan.merges / self.stores()
    }

    /// Bytes of writes that the object store below one store may have in flight to the device.
    pub(crate) fn write_bytes(&self) -> u64 {
        self.shared.plan.writes / self.stores()
    }

    /// Bytes of groups of one store on their way into the log.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.shared.plan.log / self.stores()
    }

    /// Bytes that one store may queue for its log. It is a quarter, since a group takes several times its
    /// bytes while it is logged, and the next one gathers meanwhile.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.log_bytes() / 4
    }

    /// Bytes at which a memtable of one store is full.
    pub(crate) fn memtable_bytes(&self) -> u64 {
        const LEAST: u64 = 64 << 10;
        (self.shared.plan.memtable / self.stores()).max(LEAST)
    }

    fn stores(&self) -> u64 {
        self.shared.stores.load(SeqCst).max(1)
    }

    /// Counts a store as a user of the budget until the guard is dropped.
    pub(crate) fn enter_store(&self) -> StoreCount {
        self.shared.stores.fetch_add(1, SeqCst);
        StoreCount(self.clone())
    }

    /// Charges memory that is required. Pages and rows have been evicted as needed when this returns; the sum
    /// may exceed the total, so the caller checks.
    pub(crate) fn charge(&self, class: MemoryClass, bytes: u64) -> MemoryCharge {
        self.shared.add(class, bytes);
        MemoryCharge { budget: self.clone(), class, bytes }
    }

    /// Checks that the charges do not exceed the total.
    /// # Errors
    /// `OverBudget`.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let (needed, total_bytes) = (self.shared.charged.load(SeqCst), self.total_bytes());
        if needed > total_bytes {
            return Err(Error::OverBudget { needed, total_bytes });
        }
        Ok(())
    }

    /// Checks that present use fits the total, without reserves, evictable memory and groups on their way
    /// into the log. An opening checks this: everything that writers may leave behind is less than that.
    /// # Errors
    /// `OverBudget`.
    pub(crate) fn check_used(&self) -> Result<(), Error> {
        let gives_way = |class: &&MemoryClass| {
            matches!(class, MemoryClass::Filters | MemoryClass::Slots | MemoryClass::Log)
        };
        let classes = MemoryClass::ALL.iter().filter(|class| !gives_way(class));
        let (needed, total_bytes) = (classes.map(|class| self.used(*class)).sum(), self.total_bytes());
        if needed > total_bytes {
            return Err(Error::OverBudget { needed, total_bytes });
        }
        Ok(())
    }

    /// Bytes that a class may still charge: the rest of its reserve, and of the total.
    pub(crate) fn room_for(&self, class: MemoryClass) -> u64 {
        let reserved = self.shared.plan.reserve(class).saturating_sub(self.used(class));
        let charged = self.shared.charged.load(SeqCst);
        reserved + self.total_bytes().saturating_sub(charged)
    }

    /// Checks that open iterators stay within their share, or that the total has room for the excess. A
    /// sixteenth of the total must stay free, since iterators read other blocks later.
    /// # Errors
    /// `OverBudget`.
    pub(crate) fn check_scans(&self) -> Result<(), Error> {
        const STAYS_FREE: u64 = 16;
        if self.used(MemoryClass::Scans) <= self.shared.plan.limit(MemoryClass::Scans) {
            return Ok(());
        }
        let total_bytes = self.total_bytes();
        let needed = self.shared.charged.load(SeqCst) + total_bytes / STAYS_FREE;
        if needed > total_bytes {
            return Err(Error::OverBudget { needed, total_bytes });
        }
        Ok(())
    }

    /// Charges optional memory, up to the limit of its class: filters and read-ahead of scans.
    pub(crate) fn try_charge(&self, class: MemoryClass, bytes: u64) -> Option<MemoryCharge> {
        let limit = match class {
            MemoryClass::Filters => self.filter_limit(),
            class => self.shared.plan.limit(class),
        };
        let charge = self.charge(class, bytes);
        let fits = self.used(class) <= limit && self.shared.charged.load(SeqCst) <= self.total_bytes();
        fits.then_some(charge)
    }

    /// Charges `bytes`, then makes an optional value of that size. `None`: the budget is full, or `make`
    /// failed.
    pub(crate) fn hold<T>(
        &self,
        class: MemoryClass,
        bytes: u64,
        make: impl FnOnce() -> Option<T>,
    ) -> Option<ChargedValue<T>> {
        let charge = self.charge(class, bytes);
        self.check().ok()?;
        Some(ChargedValue { value: make()?, _charge: charge })
    }

    /// Limit of filters beside all other present charges.
    pub(crate) fn filter_limit(&self) -> u64 {
        self.shared.filter_limit()
    }

    /// Records the bytes of empty cache slots.
    pub(crate) fn set_empty_slots(&self, bytes: u64) {
        self.shared.set(MemoryClass::Slots, bytes);
    }

    /// Counts `bytes` of a memtable as long as the number has a holder.
    pub(crate) fn watch_bytes(&self, bytes: &Arc<AtomicU64>) {
        self.shared.memtables.lock().push(Arc::downgrade(bytes));
        self.count_memtables();
    }

    /// Counts the bytes of the memtables now.
    pub(crate) fn count_memtables(&self) -> u64 {
        let mut memtables = self.shared.memtables.lock();
        memtables.retain(|memtable| memtable.strong_count() > 0);
        let live = memtables.iter().filter_map(Weak::upgrade);
        let bytes = live.map(|charged| charged.load(SeqCst)).sum();
        self.shared.set(MemoryClass::Memtables, bytes);
        bytes
    }

    /// Checks that one more memtable fits beside all memory that cannot be evicted: memtables that old
    /// readers pin, and the resident memory of open tables.
    /// # Errors
    /// `OverBudget`.
    pub(crate) fn room_for_memtable(&self) -> Result<(), Error> {
        self.room_beside(0, self.memtable_bytes())
    }

    /// Like [`MemoryAccounts::room_for_memtable`], for `bytes` more in memtables.
    /// # Errors
    /// `OverBudget`.
    pub(crate) fn room_for_writes(&self, bytes: u64) -> Result<(), Error> {
        self.room_beside(0, bytes)
    }

    /// Bytes missing for [`MemoryAccounts::room_for_writes`]; 0 when they fit.
    pub(crate) fn missing_for_writes(&self, bytes: u64) -> u64 {
        match self.room_for_writes(bytes) {
            Err(Error::OverBudget { needed, total_bytes }) => needed - total_bytes,
            _ => 0,
        }
    }

    /// Limit of the bytes that one batch may leave in a memtable. A store that keeps little else in memory
    /// has room for them, and so has its next opening.
    pub(crate) fn batch_bytes(&self) -> u64 {
        (self.shared.plan.batch() / self.stores()).min(MAX_GROUP_BYTES as u64)
    }

    /// Like [`MemoryAccounts::room_for_memtable`], but ignores the memory of tables and manifest beyond half
    /// of the unreserved bytes. It is for work that reduces that memory, so that only readers of old
    /// memtables stop such work.
    /// # Errors
    /// `OverBudget`.
    pub(crate) fn room_beside_readers(&self) -> Result<(), Error> {
        self.room_beside(self.overlooked(), self.memtable_bytes())
    }

    /// Like [`MemoryAccounts::check`], without the bytes that [`MemoryAccounts::room_beside_readers`]
    /// ignores.
    /// # Errors
    /// `OverBudget`.
    pub(crate) fn check_beside_tables(&self) -> Result<(), Error> {
        let (needed, total_bytes) = (self.lasting(), self.total_bytes());
        if needed.saturating_sub(self.overlooked()) > total_bytes {
            return Err(Error::OverBudget { needed, total_bytes });
        }
        Ok(())
    }

    /// Bytes of tables and manifest beyond half of the unreserved bytes.
    fn overlooked(&self) -> u64 {
        const STAY: [MemoryClass; 4] =
            [MemoryClass::Tables, MemoryClass::RangeTombstones, MemoryClass::Manifest, MemoryClass::Versions];
        let plan = &self.shared.plan;
        let fixed = plan.reserved();
        let stays: u64 = STAY.iter().map(|class| self.used(*class)).sum();
        stays.saturating_sub((self.total_bytes() - fixed) / 2)
    }

    /// Sum of charges without groups on their way into the log.
    fn lasting(&self) -> u64 {
        let moved = self.used(MemoryClass::Log);
        let counted = moved.saturating_sub(self.shared.plan.reserve(MemoryClass::Log));
        self.shared.charged.load(SeqCst).saturating_sub(counted)
    }

    fn room_beside(&self, overlooked: u64, bytes: u64) -> Result<(), Error> {
        let growth = self.count_memtables() + bytes;
        let more = growth.saturating_sub(self.shared.plan.reserve(MemoryClass::Memtables));
        let over = self.used(MemoryClass::Memtables);
        let counted = over.saturating_sub(self.shared.plan.reserve(MemoryClass::Memtables));
        let needed = self.lasting().saturating_sub(counted) + more;
        let total_bytes = self.total_bytes();
        if needed.saturating_sub(overlooked) > total_bytes {
            return Err(Error::OverBudget { needed, total_bytes });
        }
        Ok(())
    }
}

impl std::fmt::Debug for MemoryAccounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accounts").field("total_bytes", &self.total_bytes()).finish_non_exhaustive()
    }
}

impl AccountBook {
    fn add(&self, class: MemoryClass, bytes: u64) {
        let old = self.used[class as usize].fetch_add(bytes, SeqCst);
        self.moved(class, old, old + bytes);
    }

    fn sub(&self, class: MemoryClass, bytes: u64) {
        let old = self.used[class as usize].fetch_sub(bytes, SeqCst);
        self.moved(class, old, old - bytes);
    }

    fn set(&self, class: MemoryClass, bytes: u64) {
        let old = self.used[class as usize].swap(bytes, SeqCst);
        self.moved(class, old, bytes);
    }

    /// Updates the sum of charges after a class changed its use, then the limits of pages, rows and filters.
    fn moved(&self, class: MemoryClass, old: u64, new: u64) {
        let reserve = self.plan.reserve(class);
        let (old, new) = (old.max(reserve), new.max(reserve));
        if new > old {
            let _before = self.charged.fetch_add(new - old, SeqCst);
            #[cfg(test)]
            self.peak.fetch_max(_before + new - old, SeqCst);
        } else if new < old {
            self.charged.fetch_sub(old - new, SeqCst);
        } else {
            return;
        }
        self.fit();
    }

    fn filter_limit(&self) -> u64 {
        let filters = self.used[MemoryClass::Filters as usize].load(SeqCst);
        let others = self.charged.load(SeqCst).saturating_sub(filters);
        self.plan.filter_limit(others)
    }

    /// Adjusts the limits of filters, and of pages and rows, to the memory left: the latter down at once, up
    /// only once a few grains are free.
    fn fit(&self) {
        // A concurrent charge is seen by the next iteration, or adjusts the limit itself.
        while self.gives_way.filter_limit() != self.filter_limit() {
            self.gives_way.set_filter_limit(self.filter_limit());
        }
        let off = || {
            let (capacity, room) =
                (self.capacity.load(SeqCst), self.plan.cache_capacity(self.charged.load(SeqCst)));
            capacity > room || room - capacity > 4 * self.plan.grain()
        };
        if !off() {
            return;
        }
        let _resize = self.resize.lock();
        // A concurrent charge sees the new capacity, or the next iteration sees the charge.
        while off() {
            let room = self.plan.cache_capacity(self.charged.load(SeqCst));
            if room < self.capacity.load(SeqCst) {
                self.gives_way.set_cache_capacity(room);
                self.capacity.store(room, SeqCst);
            } else {
                self.capacity.store(room, SeqCst);
                self.gives_way.set_cache_capacity(room);
            }
        }
    }
}

/// Charged bytes, returned on drop.
#[derive(Debug)]
#[must_use = "the bytes are given back when this is dropped"]
pub(crate) struct MemoryCharge {
    budget: MemoryAccounts,
    class: MemoryClass,
    bytes: u64,
}

impl MemoryCharge {
    /// Changes the charge to `bytes`.
    pub(crate) fn set(&mut self, bytes: u64) {
        if bytes > self.bytes {
            self.budget.shared.add(self.class, bytes - self.bytes);
        } else {
            self.budget.shared.sub(self.class, self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// Merges another charge of the same class into this one.
    pub(crate) fn join(&mut self, mut other: MemoryCharge) {
        debug_assert_eq!(self.class, other.class);
        self.bytes += std::mem::take(&mut other.bytes);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.budget.shared.sub(self.class, self.bytes);
    }
}

/// A value and its charge, which is returned after the value is freed.
pub(crate) struct ChargedValue<T> {
    value: T,
    _charge: MemoryCharge,
}

impl<T> ChargedValue<T> {
    /// Passes the value to `to`; returns its charge afterwards.
    pub(crate) fn hand_over(self, to: impl FnOnce(T)) {
        let ChargedValue { value, _charge } = self;
        to(value);
    }
}

impl<T> std::ops::Deref for ChargedValue<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// Registration of one store that shares the budget.
pub(crate) struct StoreCount(MemoryAccounts);

impl Drop for StoreCount {
    fn drop(&mut self) {
        self.0.shared.stores.fetch_sub(1, SeqCst);
    }
}
