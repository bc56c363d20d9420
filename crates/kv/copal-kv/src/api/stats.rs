//! Public counters of the engine, in units instead of rates, and the usual ratios of them.
//!
//! Not here: gathering them (`shape`).

use crate::MemoryBytes;

/// Counters since the store was opened, in units instead of rates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Look-ups of single keys.
    pub gets: u64,
    /// Iterators begun, from either end; each reads a block of every run.
    pub seeks: u64,
    /// Tombstones and deleted entries that iterators skipped.
    pub deleted_passed: u64,
    /// Gets that the row cache answered.
    pub row_hits: u64,
    /// Probes of tables whose fences admit the key.
    pub filter_probes: u64,
    /// Probes that the filter answered with no.
    pub filter_negatives: u64,
    /// Probes that the filter let pass although the key was absent.
    pub false_positives: u64,
    /// Data blocks read from objects.
    pub data_block_reads: u64,
    /// Reads that `multi_get` issued together with others.
    pub batched_reads: u64,
    /// Batches of such reads.
    pub read_batches: u64,
    /// Index pages read from objects.
    pub index_page_reads: u64,
    /// Filter pages read from objects, by look-ups and by filter adjustment.
    pub filter_page_reads: u64,
    /// Memtables written to tables.
    pub flushes: u64,
    /// Merge steps; each writes at most one table.
    pub merges: u64,
    /// Bytes written to tables, and by flush and collection to value objects.
    pub write_bytes: u64,
    /// Bytes of keys and values that callers gave.
    pub user_bytes: u64,
    /// Nanoseconds spent in flushes.
    pub flush_nanos: u64,
    /// Nanoseconds spent in merges.
    pub merge_nanos: u64,
    /// Nanoseconds that writers were delayed so that merges keep up.
    pub paced_nanos: u64,
    /// Nanoseconds that writers waited for a flush because both memtables were full.
    pub stalled_nanos: u64,
    /// Number of writes and merges that found no space, and of calls of [`crate::Store::make_room`].
    pub space_shortages: u64,
    /// Bytes of memory in use, in all classes, by all stores that share the budget.
    pub memory_bytes: u64,
    /// The same, by class.
    pub memory: MemoryBytes,
    /// Bytes by which tiers and memtables exceed their limits: the backlog of merges.
    pub debt_bytes: u64,
    /// Log groups written; `writes / groups` is the gain of group commit.
    pub groups: u64,
    /// Log groups acknowledged as kill-safe without waiting for a device.
    pub kill_safe_groups: u64,
    /// Batches committed.
    pub writes: u64,
    /// Read commands of the device since it was opened, including those of flush, merge and verification.
    pub device_reads: u64,
    /// Bytes of these reads.
    pub device_read_bytes: u64,
    /// Write commands of the device.
    pub device_writes: u64,
    /// Bytes of these writes: log, tables, values and the object layer's own data.
    pub device_write_bytes: u64,
    /// Flushes of the device, and FUA writes.
    pub device_flushes: u64,
    /// Tables by level, from the top; the bottom is last.
    pub levels: Vec<LevelStats>,
    /// Number of value objects.
    pub value_objects: u64,
    /// Bytes of value objects.
    pub value_bytes: u64,
    /// Bytes of value objects that no entry points to any more.
    pub dead_value_bytes: u64,
    /// Frozen memtables that wait for their flush.
    pub frozen_memtables: u64,
    /// Damaged key ranges that are not repaired yet; [`crate::Store::damaged_ranges`] lists them.
    pub damaged_ranges: u64,
}

/// The runs of one level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelStats {
    /// 0 is the level that flushes write; the bottom has [`LevelStats::BOTTOM`].
    pub level: u8,
    /// Runs; a look-up that reaches the level searches each of them.
    pub runs: u64,
    /// Tables in them.
    pub tables: u64,
    /// Bytes of the tables.
    pub bytes: u64,
    /// Entries of the tables, all versions.
    pub entries: u64,
    /// Entries that a merge could drop once no snapshot needs them.
    pub droppable: u64,
}

impl LevelStats {
    /// Number of the bottom level.
    pub const BOTTOM: u8 = u8::MAX;
}

impl Stats {
    /// Reads of data blocks, index and filter pages per look-up; 0 without look-ups.
    #[must_use]
    pub fn reads_per_get(&self) -> f64 {
        let reads = self.data_block_reads + self.index_page_reads + self.filter_page_reads;
        ratio(reads, self.gets)
    }

    /// False positives per look-up; 0 without look-ups.
    #[must_use]
    pub fn false_positives_per_get(&self) -> f64 {
        ratio(self.false_positives, self.gets)
    }

    /// Bytes that the device wrote per byte of keys and values given; 0 without writes.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        ratio(self.device_write_bytes, self.user_bytes)
    }

    /// Device flushes per batch committed: below 1 where commits share them; 0 without commits.
    #[must_use]
    pub fn flushes_per_commit(&self) -> f64 {
        ratio(self.device_flushes, self.writes)
    }
}

fn ratio(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}
