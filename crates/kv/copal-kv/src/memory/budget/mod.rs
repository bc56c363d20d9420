//! The accounts of a memory budget: one number for all memory that grows with the data, and who has taken how
//! much of it.
//!
//! Design: docs/design/kv.md#memory KV-11
//! Invariants
//! - What is charged never exceeds the total: pages and rows give way before a charge returns, and what
//!   cannot give way is refused ([`crate::Error::OverBudget`]) before it is allocated.
//! - A fixed part counts in full from the beginning, used or not; beyond it a class counts what it uses.
//! - Bytes are charged before they are allocated and given back after they are freed.
//!
//! Outside the budget: what belongs to the caller (the value handed to a put, the values a get returned), one
//! value or batch longer than a fixed part while it is moved (caches give way for it, as far as they can),
//! the object store below, threads and handles. What a batch leaves in the memtable has room before it is
//! moved.
//! Not here: what gives way (`memory`), how the total is divided (`plan`).

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

/// What takes whatever room charges leave: pages and rows, and filters.
pub(crate) trait GivesWay: Send + Sync {
    /// Pages and rows take at most `bytes` when this returns.
    fn set_cache_capacity(&self, bytes: u64);

    /// Most bytes that filters were told to take.
    fn filter_limit(&self) -> u64;

    /// Filters may take `bytes` from now on; what is beyond them goes when the adjuster runs next.
    fn set_filter_limit(&self, bytes: u64);
}

/// See the module; cheap to clone.
#[derive(Clone)]
pub(crate) struct MemoryAccounts {
    shared: Arc<AccountBook>,
}

struct AccountBook {
    plan: BudgetPlan,
    used: [AtomicU64; MemoryClass::ALL.len()],
    /// Sum over the classes of what they use, or of their reserve where that is more.
    charged: AtomicU64,
    /// The most that was charged at a time.
    #[cfg(test)]
    peak: AtomicU64,
    /// What pages and rows may take now.
    capacity: AtomicU64,
    resize: Mutex<()>,
    gives_way: Arc<dyn GivesWay>,
    /// Bytes of each memtable, there until they are freed.
    memtables: Mutex<Vec<Weak<AtomicU64>>>,
    stores: AtomicU64,
    _kept: Option<KeptLimit>,
}

impl MemoryAccounts {
    /// Accounts in which nothing is used. `gives_way` has what the reserves of `plan` leave.
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

    /// The number that is kept.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.shared.plan.total
    }

    /// Bytes that a class uses now, memtables as they were counted last.
    pub(crate) fn used(&self, class: MemoryClass) -> u64 {
        self.shared.used[class as usize].load(SeqCst)
    }

    /// The most that was charged at a time since this was asked last, reserves in full.
    #[cfg(test)]
    pub(crate) fn take_peak(&self) -> u64 {
        let now = self.shared.charged.load(SeqCst);
        self.shared.peak.swap(now, SeqCst)
    }

    /// Everything charged, reserves in full.
    #[cfg(test)]
    pub(crate) fn charged(&self) -> u64 {
        self.shared.charged.load(SeqCst)
    }

    #[cfg(test)]
    /// Everything charged, reserves in full, and what pages and rows may take.
    pub(crate) fn committed(&self) -> u64 {
        self.shared.charged.load(SeqCst) + self.shared.capacity.load(SeqCst)
    }

    /// Bytes that flush and merge of one store may take.
    pub(crate) fn merge_bytes(&self) -> u64 {
        self.shared.plan.merges / self.stores()
    }

    /// Bytes that the object store below one store may have on their way to the device.
    pub(crate) fn write_bytes(&self) -> u64 {
        self.shared.plan.writes / self.stores()
    }

    /// Bytes that one store may take on their way into the log.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.shared.plan.log / self.stores()
    }

    /// Bytes that one store may gather for its log: writes whose turn has not come. A group takes several
    /// times its bytes on its way, and the next one gathers meanwhile.
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

    /// Counts a store in until the guard is dropped.
    pub(crate) fn enter_store(&self) -> StoreCount {
        self.shared.stores.fetch_add(1, SeqCst);
        StoreCount(self.clone())
    }

    /// Charges what must be there. Pages and rows have given way when this returns.
    pub(crate) fn charge(&self, class: MemoryClass, bytes: u64) -> MemoryCharge {
        self.shared.add(class, bytes);
        MemoryCharge { budget: self.clone(), class, bytes }
    }

    /// Whether everything that cannot give way has room.
    /// # Errors
    /// `OverBudget`.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let (needed, total_bytes) = (self.shared.charged.load(SeqCst), self.total_bytes());
        if needed > total_bytes {
            return Err(Error::OverBudget { needed, total_bytes });
        }
        Ok(())
    }

    /// Whether what is there now has room, beside nothing that is only kept for later or moved through the
    /// log: what an opening asks, for all that writers may leave behind is less than that.
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

    /// What a class may be charged with now: what is left of its reserve, and of the budget.
    pub(crate) fn room_for(&self, class: MemoryClass) -> u64 {
        let reserved = self.shared.plan.reserve(class).saturating_sub(self.used(class));
        let charged = self.shared.charged.load(SeqCst);
        reserved + self.total_bytes().saturating_sub(charged)
    }

    /// Whether open iterators keep to their part, or the budget has room for what they take beyond it. A
    /// sixteenth of it stays free, for they read other blocks later.
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

    /// Charges something one can do without: filters and read-ahead of scans, up to their part.
    pub(crate) fn try_charge(&self, class: MemoryClass, bytes: u64) -> Option<MemoryCharge> {
        let limit = match class {
            MemoryClass::Filters => self.filter_limit(),
            class => self.shared.plan.limit(class),
        };
        let charge = self.charge(class, bytes);
        let fits = self.used(class) <= limit && self.shared.charged.load(SeqCst) <= self.total_bytes();
        fits.then_some(charge)
    }

    /// Makes something of `bytes` that one can do without, charged before it is made; `None`: the budget is
    /// full, or it could not be made.
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

    /// Most bytes of filters beside everything else that is charged now.
    pub(crate) fn filter_limit(&self) -> u64 {
        self.shared.filter_limit()
    }

    /// Notes what slots of the cache that hold nothing take.
    pub(crate) fn set_empty_slots(&self, bytes: u64) {
        self.shared.set(MemoryClass::Slots, bytes);
    }

    /// Counts `bytes` of a memtable for as long as anybody holds the number.
    pub(crate) fn watch_bytes(&self, bytes: &Arc<AtomicU64>) {
        self.shared.memtables.lock().push(Arc::downgrade(bytes));
        self.count_memtables();
    }

    /// Looks at how much the memtables hold now.
    pub(crate) fn count_memtables(&self) -> u64 {
        let mut memtables = self.shared.memtables.lock();
        memtables.retain(|memtable| memtable.strong_count() > 0);
        let live = memtables.iter().filter_map(Weak::upgrade);
        let bytes = live.map(|charged| charged.load(SeqCst)).sum();
        self.shared.set(MemoryClass::Memtables, bytes);
        bytes
    }

    /// Whether one more memtable has room beside everything that cannot give way: those that old readers pin,
    /// and what every table costs for as long as it is open.
    /// # Errors
    /// `OverBudget`.
    pub(crate) fn room_for_memtable(&self) -> Result<(), Error> {
        self.room_beside(0, self.memtable_bytes())
    }

    /// Whether memtables have room for `bytes` more, as [`MemoryAccounts::room_for_memtable`].
    /// # Errors
    /// `OverBudget`.
    pub(crate) fn room_for_writes(&self, bytes: u64) -> Result<(), Error> {
        self.room_beside(0, bytes)
    }

    /// What is missing where [`MemoryAccounts::room_for_writes`] finds no room.
    pub(crate) fn missing_for_writes(&self, bytes: u64) -> u64 {
        match self.room_for_writes(bytes) {
            Err(Error::OverBudget { needed, total_bytes }) => needed - total_bytes,
            _ => 0,
        }
    }

    /// Most bytes that one batch may leave in a memtable: a store has room for them that keeps little else in
    /// memory, and so has its next opening.
    pub(crate) fn batch_bytes(&self) -> u64 {
        (self.shared.plan.batch() / self.stores()).min(MAX_GROUP_BYTES as u64)
    }

    /// As [`MemoryAccounts::room_for_memtable`], whatever tables and manifest take beyond half of what the fixed
    /// parts leave: for what makes them take less, which only readers of old memtables stop.
    /// # Errors
    /// `OverBudget`.
    pub(crate) fn room_beside_readers(&self) -> Result<(), Error> {
        self.room_beside(self.overlooked(), self.memtable_bytes())
    }

    /// As [`MemoryAccounts::check`], overlooking what [`MemoryAccounts::room_beside_readers`] does.
    /// # Errors
    /// `OverBudget`.
    pub(crate) fn check_beside_tables(&self) -> Result<(), Error> {
        let (needed, total_bytes) = (self.lasting(), self.total_bytes());
        if needed.saturating_sub(self.overlooked()) > total_bytes {
            return Err(Error::OverBudget { needed, total_bytes });
        }
        Ok(())
    }

    /// What tables and manifest take beyond half of what the fixed parts leave.
    fn overlooked(&self) -> u64 {
        const STAY: [MemoryClass; 4] =
            [MemoryClass::Tables, MemoryClass::RangeTombstones, MemoryClass::Manifest, MemoryClass::Versions];
        let plan = &self.shared.plan;
        let fixed = plan.reserved();
        let stays: u64 = STAY.iter().map(|class| self.used(*class)).sum();
        stays.saturating_sub((self.total_bytes() - fixed) / 2)
    }

    /// What is charged, but for what only moves through the log.
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

    /// The counted bytes of a class follow its use; pages and rows follow the sum.
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

    /// Brings the limit of filters and the capacity of pages and rows to what is left: the capacity down at
    /// once, up when a few grains are free.
    fn fit(&self) {
        // Whoever charges meanwhile is seen by the next round, or looks again himself.
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
        // Whoever charges meanwhile either sees the new capacity or is seen by the next round.
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

/// Charged bytes, given back on drop.
#[derive(Debug)]
#[must_use = "the bytes are given back when this is dropped"]
pub(crate) struct MemoryCharge {
    budget: MemoryAccounts,
    class: MemoryClass,
    bytes: u64,
}

impl MemoryCharge {
    /// Charges more or gives some back, so that `bytes` are charged.
    pub(crate) fn set(&mut self, bytes: u64) {
        if bytes > self.bytes {
            self.budget.shared.add(self.class, bytes - self.bytes);
        } else {
            self.budget.shared.sub(self.class, self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// Takes over what another has charged to the same class.
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

/// A value and what was charged for it, given back after it is freed.
pub(crate) struct ChargedValue<T> {
    value: T,
    _charge: MemoryCharge,
}

impl<T> ChargedValue<T> {
    /// Hands the value over; its charge is given back when that is done.
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

/// One store that shares the budget.
pub(crate) struct StoreCount(MemoryAccounts);

impl Drop for StoreCount {
    fn drop(&mut self) {
        self.0.shared.stores.fetch_sub(1, SeqCst);
    }
}
