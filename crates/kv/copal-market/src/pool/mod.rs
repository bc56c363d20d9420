//! One pool of cached things: S3-FIFO, with measures of the worth of its memory.
//!
//! New entries pass a short queue of a tenth of the bytes. Those that were asked for while they passed it,
//! and those that
//! left lately, enter the long queue; the rest leave. The long queue gives an entry another turn for each
//! time that it was asked.
//! A hit writes only to its entry: it moves nothing and takes no lock.
//! Source of the queues: Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023).
//!
//! Measured for a window `q` of bytes:
//! - *tail hits*: first hits of entries that would have left by now, were the pool smaller by `q`;
//! - *ghost hits*: reads of names that left lately, and would still be here, were the pool larger by `q`.
//!
//! Of `q` each queue has the share that it has of the pool, for both.
//!
//! Invariants
//! - Bytes are the sum of the entries' bytes and of the ghost's table.
//! - An entry is in exactly one queue.
//! - Equal calls give equal states: no clock, no randomness.
//!
//! Not here: how many bytes a pool may have (`market`), locks and shards.

mod ghost;
mod queue;
#[cfg(test)]
mod tests;

use ghost::GhostTable;
use hashbrown::HashTable;
use queue::{APART, FifoQueue, LinkedSlots, QueueLinks};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// Hits that an entry remembers.
const MOST_HITS: u8 = 3;
/// The short queue has one part in this many of the bytes.
const SHORT_PART: u64 = 10;
/// Hits in the short queue that an entry needs for the long one.
const PROVEN: u8 = 1;

/// Events since they were last taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolEvents {
    /// Hits that a pool smaller by the window would have missed.
    pub tail_hits: u64,
    /// Reads that a pool larger by the window would have saved.
    pub ghost_hits: u64,
}

/// Bytes of the pool for each entry beside its own: slot, hash index.
pub const ENTRY_BYTES: u64 = (size_of::<PoolSlot<()>>() + size_of::<u32>() * 2) as u64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum QueueKind {
    Short,
    Long,
}

struct PoolSlot<V> {
    hash: u64,
    links: QueueLinks,
    bytes: u32,
    turn: QueueKind,
    hits: AtomicU8,
    value: Option<V>,
}

struct SlotList<V>(Vec<PoolSlot<V>>);

impl<V> LinkedSlots for SlotList<V> {
    fn links(&self, slot: u32) -> QueueLinks {
        self.0[slot as usize].links
    }

    fn links_mut(&mut self, slot: u32) -> &mut QueueLinks {
        &mut self.0[slot as usize].links
    }
}

/// A pool; see the module. Entries are found by a hash and a comparison of the caller.
pub struct CachePool<V> {
    table: HashTable<u32>,
    slots: SlotList<V>,
    free: Vec<u32>,
    short: FifoQueue,
    long: FifoQueue,
    ghost: GhostTable,
    window: u64,
    entries: u64,
    tail_hits: AtomicU64,
    ghost_hits: AtomicU64,
}

/// An entry that left.
#[derive(Debug, PartialEq, Eq)]
pub struct EvictedEntry<V> {
    /// Its value.
    pub value: V,
    /// Its bytes, as it was inserted with.
    pub bytes: u64,
}

impl<V> CachePool<V> {
    /// An empty pool that measures the worth of `window` bytes.
    pub fn new(window: u64) -> CachePool<V> {
        CachePool {
            table: HashTable::new(),
            slots: SlotList(Vec::new()),
            free: Vec::new(),
            short: FifoQueue::new(),
            long: FifoQueue::new(),
            ghost: GhostTable::new(),
            window,
            entries: 0,
            tail_hits: AtomicU64::new(0),
            ghost_hits: AtomicU64::new(0),
        }
    }

    /// Bytes of all entries, and of the ghost.
    pub fn bytes(&self) -> u64 {
        self.entry_bytes() + self.ghost.bytes()
    }

    /// Bytes of the table of names that left.
    pub fn ghost_bytes(&self) -> u64 {
        self.ghost.bytes()
    }

    /// Bytes of all entries.
    pub fn entry_bytes(&self) -> u64 {
        self.short.bytes() + self.long.bytes()
    }

    /// Number of entries.
    pub fn len(&self) -> u64 {
        self.entries
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Finds an entry, and records the hit.
    pub fn get(&self, hash: u64, eq: impl Fn(&V) -> bool) -> Option<&V> {
        self.get_unless(hash, eq, |_| false)
    }

    /// Like [`CachePool::get`]; `is_elsewhere`: another pool would answer, were the entry not here.
    pub fn get_unless(
        &self,
        hash: u64,
        eq: impl Fn(&V) -> bool,
        is_elsewhere: impl Fn(&V) -> bool,
    ) -> Option<&V> {
        let slot = self.find(hash, eq)?;
        let entry = &self.slots.0[slot as usize];
        let hits = entry.hits.load(Relaxed);
        if hits < MOST_HITS {
            entry.hits.store(hits + 1, Relaxed);
            if hits == 0
                && self.leaves_soon(slot, entry.turn)
                && !entry.value.as_ref().is_some_and(is_elsewhere)
            {
                self.tail_hits.fetch_add(1, Relaxed);
            }
        }
        entry.value.as_ref()
    }

    /// Finds an entry without a trace.
    pub fn peek(&self, hash: u64, eq: impl Fn(&V) -> bool) -> Option<&V> {
        let slot = self.find(hash, eq)?;
        self.slots.0[slot as usize].value.as_ref()
    }

    /// Like [`CachePool::peek`], to change the value; its bytes stay.
    pub fn peek_mut(&mut self, hash: u64, eq: impl Fn(&V) -> bool) -> Option<&mut V> {
        let slot = self.find(hash, eq)?;
        self.slots.0[slot as usize].value.as_mut()
    }

    fn find(&self, hash: u64, eq: impl Fn(&V) -> bool) -> Option<u32> {
        let is_it = |&slot: &u32| {
            let entry = &self.slots.0[slot as usize];
            entry.hash == hash && entry.value.as_ref().is_some_and(&eq)
        };
        self.table.find(hash, is_it).copied()
    }

    /// Whether a smaller pool would not have this entry any more.
    fn leaves_soon(&self, slot: u32, turn: QueueKind) -> bool {
        let queue = match turn {
            QueueKind::Short => &self.short,
            QueueKind::Long => &self.long,
        };
        queue.is_near_end(&self.slots, slot, self.window_of(turn).max(1))
    }

    /// Records that a read of the device was needed for a name that is not here.
    pub fn missed(&self, hash: u64) {
        if self.ghost.age(hash).is_some_and(|(turn, age)| age <= self.window_of(turn)) {
            self.ghost_hits.fetch_add(1, Relaxed);
        }
    }

    /// Share of the window that a queue has.
    fn window_of(&self, turn: QueueKind) -> u64 {
        let all = self.entry_bytes();
        let bytes = match turn {
            _ if all < self.window => return self.window,
            QueueKind::Short => self.short.bytes().max(all / SHORT_PART),
            QueueKind::Long => self.long.bytes(),
        };
        (u128::from(self.window) * u128::from(bytes) / u128::from(all.max(1))) as u64
    }

    /// Inserts an entry; the caller has removed one of the same name, and has made room.
    ///
    /// `is_hot`: it was asked for before, so it does not have to prove itself.
    pub fn insert(&mut self, hash: u64, value: V, bytes: u32, is_hot: bool) {
        let came_back =
            self.ghost.age(hash).is_some_and(|(_, age)| age <= self.entry_bytes().max(self.window));
        if came_back {
            self.ghost.forget(hash);
        }
        let turn = if came_back || is_hot { QueueKind::Long } else { QueueKind::Short };
        let entry = PoolSlot { hash, links: APART, bytes, turn, hits: AtomicU8::new(0), value: Some(value) };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots.0[slot as usize] = entry;
                slot
            }
            None => {
                self.slots.0.push(entry);
                (self.slots.0.len() - 1) as u32
            }
        };
        let slots = &self.slots.0;
        self.table.insert_unique(hash, slot, |&slot| slots[slot as usize].hash);
        self.entries += 1;
        self.push(slot, turn);
    }

    fn push(&mut self, slot: u32, turn: QueueKind) {
        let entry = &mut self.slots.0[slot as usize];
        entry.turn = turn;
        let bytes = u64::from(entry.bytes);
        match turn {
            QueueKind::Short => self.short.push(&mut self.slots, slot, bytes),
            QueueKind::Long => self.long.push(&mut self.slots, slot, bytes),
        }
    }

    fn unlink(&mut self, slot: u32) -> u64 {
        let entry = &self.slots.0[slot as usize];
        let bytes = u64::from(entry.bytes);
        match entry.turn {
            QueueKind::Short => self.short.remove(&mut self.slots, slot, bytes),
            QueueKind::Long => self.long.remove(&mut self.slots, slot, bytes),
        }
        bytes
    }

    /// Removes an entry whose content is no longer right. Its name is not remembered.
    pub fn remove(&mut self, hash: u64, eq: impl Fn(&V) -> bool) -> Option<EvictedEntry<V>> {
        let slot = self.find(hash, eq)?;
        self.take(slot)
    }

    fn take(&mut self, slot: u32) -> Option<EvictedEntry<V>> {
        let bytes = self.unlink(slot);
        let hash = self.slots.0[slot as usize].hash;
        if let Ok(found) = self.table.find_entry(hash, |&other| other == slot) {
            found.remove();
        }
        self.free.push(slot);
        self.entries -= 1;
        self.slots.0[slot as usize].value.take().map(|value| EvictedEntry { value, bytes })
    }

    /// Evicts the entry that is worth least; `None`: there is none.
    pub fn evict(&mut self) -> Option<EvictedEntry<V>> {
        loop {
            let all = self.entry_bytes();
            let from_short = self.short.bytes() * SHORT_PART >= all || self.long.oldest().is_none();
            let slot = match from_short {
                true => self.short.oldest().or(self.long.oldest()),
                false => self.long.oldest(),
            }?;
            let entry = &self.slots.0[slot as usize];
            let (turn, hits) = (entry.turn, entry.hits.load(Relaxed));
            let left = match turn {
                QueueKind::Short if hits >= PROVEN => 0,
                QueueKind::Long if hits > 0 => hits - 1,
                _ => {
                    let (hash, bytes) = (entry.hash, u64::from(entry.bytes));
                    let window = all.max(self.window);
                    self.ghost.record(hash, turn, bytes, window);
                    return self.take(slot);
                }
            };
            self.unlink(slot);
            self.slots.0[slot as usize].hits.store(left, Relaxed);
            self.push(slot, QueueKind::Long);
        }
    }

    /// Records a name that found no room.
    pub fn refuse(&mut self, hash: u64, bytes: u64) {
        let window = self.entry_bytes().max(self.window);
        self.ghost.record(hash, QueueKind::Short, bytes, window);
    }

    /// Takes the events.
    pub fn take_events(&self) -> PoolEvents {
        PoolEvents {
            tail_hits: self.tail_hits.swap(0, Relaxed),
            ghost_hits: self.ghost_hits.swap(0, Relaxed),
        }
    }

    /// All values, in no order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.slots.0.iter().filter_map(|entry| entry.value.as_ref())
    }
}
