//! Counters of the engine, in units, never rates.

use crate::MemoryBytes;
use crate::compact::jobs::TIERS;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters in units, not rates, since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Look-ups of one key.
    pub gets: u64,
    /// ... that the row cache answered.
    pub row_hits: u64,
    /// Tables asked for a key their fences admit.
    pub filter_probes: u64,
    /// ... whose filter said no.
    pub filter_negatives: u64,
    /// ... whose filter said maybe although the key was not there.
    pub false_positives: u64,
    /// Data blocks read from objects.
    pub data_block_reads: u64,
    /// Reads that `multi_get` had under way together with others, and batches of them.
    pub batched_reads: u64,
    /// Batches of reads.
    pub read_batches: u64,
    /// Index pages read from objects.
    pub index_page_reads: u64,
    /// Filter pages read from objects, by look-ups and by the adjusting of filters.
    pub filter_page_reads: u64,
    /// Memtables written to tables.
    pub flushes: u64,
    /// Steps of merges; each writes at most one table.
    pub merges: u64,
    /// Bytes written to tables and, by flush and collection, to value objects.
    pub write_bytes: u64,
    /// Keys and values as the callers gave them.
    pub user_bytes: u64,
    /// Memory in use, all classes together; of all stores that share the budget.
    pub memory_bytes: u64,
    /// The same by class.
    pub memory: MemoryBytes,
    /// Bytes that tiers and memtables hold beyond what they may: merges are behind by as much.
    pub debt_bytes: u64,
    /// Log groups written; `writes / groups` is the gain of group commit.
    pub groups: u64,
    /// Batches committed.
    pub writes: u64,
}

/// The engine's own counters; those of tables are counted where tables are read.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) gets: AtomicU64,
    pub(crate) row_hits: AtomicU64,
    pub(crate) batched_reads: AtomicU64,
    pub(crate) read_batches: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) merges: AtomicU64,
    pub(crate) write_bytes: AtomicU64,
    pub(crate) user_bytes: AtomicU64,
    pub(crate) groups: AtomicU64,
    pub(crate) writes: AtomicU64,
    /// Bytes of each tier, from the top down.
    pub(crate) tier_bytes: [AtomicU64; TIERS as usize],
    /// Time spent in merges and in flushes, and what flushes took out of memory, for pacing.
    pub(crate) flush_nanos: AtomicU64,
    pub(crate) flushed_bytes: AtomicU64,
    pub(crate) merge_nanos: AtomicU64,
}

impl Counters {
    pub(crate) fn wrote(&self, writes: u64, user_bytes: u64) {
        self.groups.fetch_add(1, Relaxed);
        self.writes.fetch_add(writes, Relaxed);
        self.user_bytes.fetch_add(user_bytes, Relaxed);
    }

    pub(crate) fn add(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Relaxed);
    }

    pub(crate) fn fill(&self, stats: &mut Stats) {
        stats.gets = self.gets.load(Relaxed);
        stats.batched_reads = self.batched_reads.load(Relaxed);
        stats.read_batches = self.read_batches.load(Relaxed);
        stats.row_hits = self.row_hits.load(Relaxed);
        stats.flushes = self.flushes.load(Relaxed);
        stats.merges = self.merges.load(Relaxed);
        stats.write_bytes = self.write_bytes.load(Relaxed);
        stats.user_bytes = self.user_bytes.load(Relaxed);
        stats.groups = self.groups.load(Relaxed);
        stats.writes = self.writes.load(Relaxed);
    }
}
