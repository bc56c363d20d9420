//! The market: grants of memory, and the pools that pay for them.
//!
//! - Idle memory is lent: while anything is free, each asker gets it.
//! - When nothing is free, the pool with the least loss pays, if the gain of the asker is more than
//!   [`FACTOR`] times that
//!   loss. Otherwise the asker pays from its own end. Nothing is traded in advance, and no pool has a share.
//! - Claims (memtables, logs, merges) are charged when used. They take from the pool with the least loss at
//!   once.
//! - Filter columns know their own worth. They are offered free bytes and the price at each look, and give at
//!   each look.
//!
//! Worth is measured between *looks*. A look is due when a quantum of bytes was read from the device. So time
//! is work: without reads
//! nothing moves.
//!
//! Invariants
//! - Claims and pools together never exceed the total, at any moment.
//! - Between two looks all prices stand still.
//!
//! Not here: entries and their order (`pool`), threads, locks.

use crate::{
    pool::PoolEvents,
    worth::{ByteWorth, ColumnOffer, FACTOR},
};

/// Share of the total that is measured and moved at a time.
const QUANTA: u64 = 64;
/// Quanta whose hits and misses are measured: the events of one quantum are few.
const WINDOW: u64 = 8;
const LEAST_QUANTUM: u64 = 8 << 10;
/// Share of the sums that stays at each look.
const KEEP: f64 = 0.96875;

/// Standard deviations by which a count of events is taken to be too high or too low.
const DOUBT: f64 = 0.5;

/// A pool of the market.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolKind {
    /// Newest versions of keys with their values.
    Rows,
    /// Data blocks.
    Blocks,
    /// Index pages of partitions.
    IndexPages,
    /// Filter columns.
    Columns,
}

impl PoolKind {
    /// All pools.
    pub const ALL: [PoolKind; 4] =
        [PoolKind::Rows, PoolKind::Blocks, PoolKind::IndexPages, PoolKind::Columns];
    /// Pools with entries that can be evicted one by one.
    pub const CACHES: [PoolKind; 3] = [PoolKind::Rows, PoolKind::Blocks, PoolKind::IndexPages];
}

/// Answer to a request for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarketAnswer {
    /// The bytes are charged.
    Granted,
    /// Evict an entry of this pool, report it with [`MemoryMarket::give_back`], and ask again.
    Evict(PoolKind),
    /// No pool pays.
    Refused,
}

/// Decayed sums of one cache.
#[derive(Clone, Copy, Debug, Default)]
struct EventSums {
    tail_hits: f64,
    ghost_hits: f64,
}

/// State of one budget; see the module.
#[derive(Clone, Debug)]
pub struct MemoryMarket {
    total: u64,
    quantum: u64,
    claimed: u64,
    used: [u64; PoolKind::ALL.len()],
    worth: [ByteWorth; PoolKind::ALL.len()],
    sums: [EventSums; PoolKind::CACHES.len()],
    gets: f64,
    /// Gets of the store at the last look.
    seen_gets: u64,
    /// Bytes read since the last look.
    read: u64,
    looks: u64,
    /// Bytes in use at the last look.
    used_before: [u64; PoolKind::ALL.len()],
    /// Sum over all looks of the bytes by which pools grew between two looks.
    grown: u64,
}

impl MemoryMarket {
    /// A market with `total` bytes, of which none is used.
    pub fn new(total: u64) -> MemoryMarket {
        MemoryMarket {
            total,
            quantum: (total / QUANTA).max(LEAST_QUANTUM),
            claimed: 0,
            used: [0; 4],
            worth: [ByteWorth::default(); 4],
            sums: [EventSums::default(); 3],
            gets: 0.0,
            seen_gets: 0,
            read: 0,
            looks: 0,
            used_before: [0; 4],
            grown: 0,
        }
    }

    /// Bytes that are measured, and moved at most, between two looks.
    pub fn quantum(&self) -> u64 {
        self.quantum
    }

    /// Bytes whose hits and misses the pools measure.
    pub fn window(&self) -> u64 {
        self.quantum * WINDOW
    }

    /// Bytes of a pool.
    pub fn used(&self, pool: PoolKind) -> u64 {
        self.used[pool as usize]
    }

    /// Bytes of claims.
    pub fn claimed(&self) -> u64 {
        self.claimed
    }

    /// Worth of a pool, as of the last look.
    pub fn worth(&self, pool: PoolKind) -> ByteWorth {
        self.worth[pool as usize]
    }

    /// Number of looks.
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// Sum over all looks of the bytes by which pools grew between two looks.
    pub fn grown_bytes(&self) -> u64 {
        self.grown
    }

    /// Unused bytes.
    pub fn free_bytes(&self) -> u64 {
        self.total - self.claimed - self.used.iter().sum::<u64>()
    }

    /// A pool asks for bytes for one entry.
    pub fn ask(&mut self, asker: PoolKind, bytes: u64) -> MarketAnswer {
        if bytes <= self.free_bytes() {
            self.used[asker as usize] += bytes;
            return MarketAnswer::Granted;
        }
        let gain = self.worth(asker).gain;
        match self.payer(Some(asker)) {
            Some(payer) if gain > FACTOR * self.worth(payer).loss => MarketAnswer::Evict(payer),
            _ if self.used(asker) >= bytes && asker != PoolKind::Columns => MarketAnswer::Evict(asker),
            _ => MarketAnswer::Refused,
        }
    }

    /// Filter columns that are worth more than [`FACTOR`] times the price of [`MemoryMarket::offer`], as
    /// their rule found.
    pub fn buy(&mut self, bytes: u64) -> MarketAnswer {
        if bytes <= self.free_bytes() {
            self.used[PoolKind::Columns as usize] += bytes;
            return MarketAnswer::Granted;
        }
        self.payer(None).map_or(MarketAnswer::Refused, MarketAnswer::Evict)
    }

    /// Memory of writers and readers that has to be there.
    pub fn claim(&mut self, bytes: u64) -> MarketAnswer {
        if bytes <= self.free_bytes() {
            self.claimed += bytes;
            return MarketAnswer::Granted;
        }
        match self.payer(None) {
            Some(payer) => MarketAnswer::Evict(payer),
            None if self.used(PoolKind::Columns) > 0 => MarketAnswer::Evict(PoolKind::Columns),
            None => MarketAnswer::Refused,
        }
    }

    /// Ends a claim.
    pub fn end_claim(&mut self, bytes: u64) {
        self.claimed = self.claimed.saturating_sub(bytes);
    }

    /// Bytes left a pool.
    pub fn give_back(&mut self, pool: PoolKind, bytes: u64) {
        let used = &mut self.used[pool as usize];
        *used = used.saturating_sub(bytes);
    }

    /// The cache with the least loss that has entries, other than the asker.
    fn payer(&self, asker: Option<PoolKind>) -> Option<PoolKind> {
        let has = |pool: &PoolKind| self.used(*pool) > 0 && Some(*pool) != asker;
        let loss = |pool: &PoolKind| self.worth(*pool).loss;
        PoolKind::CACHES.into_iter().filter(has).min_by(|a, b| loss(a).total_cmp(&loss(b)))
    }

    /// Bytes were read from the device. True: a look is due.
    pub fn read(&mut self, bytes: u64) -> bool {
        self.read += bytes;
        self.read >= self.quantum
    }

    /// Takes the events of the caches since the last look, and the worth of columns by their rule. `gets` is
    /// the number
    /// of Gets of the store so far.
    pub fn look(&mut self, gets: u64, events: [PoolEvents; PoolKind::CACHES.len()], columns: ByteWorth) {
        self.read = 0;
        self.looks += 1;
        self.gets = self.gets * KEEP + gets.saturating_sub(self.seen_gets) as f64;
        self.seen_gets = self.seen_gets.max(gets);
        for (pool, events) in PoolKind::CACHES.into_iter().zip(events) {
            let tail = self.window().min(self.used(pool)).max(1) as f64;
            let ghost = self.window() as f64;
            let sums = &mut self.sums[pool as usize];
            sums.tail_hits = sums.tail_hits * KEEP + events.tail_hits as f64;
            sums.ghost_hits = sums.ghost_hits * KEEP + events.ghost_hits as f64;
            let gets = self.gets.max(1.0);
            // Bounds, so that chance moves little: the standard deviation of a count is its root.
            let gain = (sums.ghost_hits - DOUBT * sums.ghost_hits.sqrt()).max(0.0);
            let loss = sums.tail_hits + DOUBT * sums.tail_hits.sqrt();
            let (gain, loss) = (gain / gets / ghost, loss / gets / tail);
            // The last byte is worth at least as much as one more: a pool with few entries has few hits to
            // lose.
            self.worth[pool as usize] = ByteWorth { gain, loss: loss.max(gain) };
        }
        self.worth[PoolKind::Columns as usize] = columns;
        for (before, now) in self.used_before.iter_mut().zip(self.used) {
            self.grown += now.saturating_sub(*before);
            *before = now;
        }
    }

    /// The offer to the rule of columns, until the next look.
    pub fn offer(&self) -> ColumnOffer {
        let payer = self.payer(None);
        let bid = PoolKind::CACHES.map(|pool| self.worth(pool).gain).into_iter().fold(0.0, f64::max);
        ColumnOffer {
            free_bytes: self.free_bytes(),
            price: payer.map_or(f64::INFINITY, |payer| self.worth(payer).loss),
            for_sale: payer.map_or(0, |payer| self.used(payer).min(self.quantum)),
            bid,
            wanted: self.quantum.saturating_sub(self.free_bytes()),
        }
    }
}
