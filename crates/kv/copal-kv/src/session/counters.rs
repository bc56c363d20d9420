//! Counters of one open store, in units.
//!
//! Not here: the public counters (`api::stats`).

use super::{
    limits::TIERS,
    read_counters::{ReadCount, ReadCounters},
};
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

/// Counters of the engine; table reads have their own counters.
#[derive(Debug, Default)]
pub(crate) struct EngineCounters {
    pub(crate) reads: ReadCounters,
    pub(crate) batched_reads: AtomicU64,
    pub(crate) read_batches: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) merges: AtomicU64,
    pub(crate) write_bytes: AtomicU64,
    pub(crate) user_bytes: AtomicU64,
    pub(crate) groups: AtomicU64,
    pub(crate) kill_safe_groups: AtomicU64,
    pub(crate) writes: AtomicU64,
    /// Bytes of each tier, from the top.
    pub(crate) tier_bytes: [AtomicU64; TIERS as usize],
    /// For pacing: time spent in merges and in flushes, and bytes of memtables that flushes wrote.
    pub(crate) flush_nanos: AtomicU64,
    pub(crate) flushed_bytes: AtomicU64,
    pub(crate) merge_nanos: AtomicU64,
    /// Time that writers were delayed, and time that they waited for a flush.
    pub(crate) paced_nanos: AtomicU64,
    pub(crate) stalled_nanos: AtomicU64,
}

impl EngineCounters {
    pub(crate) fn wrote(&self, writes: u64, user_bytes: u64) {
        self.groups.fetch_add(1, Relaxed);
        self.writes.fetch_add(writes, Relaxed);
        self.user_bytes.fetch_add(user_bytes, Relaxed);
    }

    /// Counts a kill-safe group; `entered`: its copy is in the page-cache log.
    pub(crate) fn count_kill_safe(&self, entered: bool) {
        self.kill_safe_groups.fetch_add(entered.into(), Relaxed);
    }

    /// Blocks that readers have wasted since the store was opened, had it always had `runs` runs. A look-up
    /// wastes the
    /// blocks that it read in vain, and nothing where a row, a memtable or a filter answered.
    pub(crate) fn wasted(&self, runs: u64) -> u64 {
        self.reads.sum(ReadCount::WastedReads) + self.walked(runs)
    }

    /// The part of [`EngineCounters::wasted`] that iterators made: a block of each run beyond the first.
    pub(crate) fn walked(&self, runs: u64) -> u64 {
        runs.saturating_sub(1) * self.reads.sum(ReadCount::Seeks)
    }

    pub(crate) fn add(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Relaxed);
    }

    /// Adds the nanoseconds since `began`.
    pub(crate) fn add_time(counter: &AtomicU64, began: Instant) {
        EngineCounters::add(counter, began.elapsed().as_nanos() as u64);
    }
}
