//! Counters of the engine, in units, never rates; the usual ratios are made of them here.
//!
//! Not here: gathering them (`shape`).

use crate::MemoryBytes;

/// Counters in units, not rates, since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Look-ups of one key.
    pub gets: u64,
    /// Walks begun, from either end: each reads a block of every run.
    pub seeks: u64,
    /// Deletions, and what they delete, that walks passed over.
    pub deleted_passed: u64,
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
    /// Nanoseconds spent in flushes.
    pub flush_nanos: u64,
    /// Nanoseconds spent in merges.
    pub merge_nanos: u64,
    /// Nanoseconds that writers were slowed by, so that merges keep up.
    pub paced_nanos: u64,
    /// Nanoseconds that writers waited for a flush, because both memtables were full.
    pub stalled_nanos: u64,
    /// Times that a write or a merge found no space, or [`crate::Store::make_room`] was called.
    pub space_shortages: u64,
    /// Memory in use, all classes together; of all stores that share the budget.
    pub memory_bytes: u64,
    /// The same by class.
    pub memory: MemoryBytes,
    /// Bytes that tiers and memtables hold beyond what they may: merges are behind by as much.
    pub debt_bytes: u64,
    /// Log groups written; `writes / groups` is the gain of group commit.
    pub groups: u64,
    /// ... of which so many promised to survive a kill and waited for no device.
    pub kill_safe_groups: u64,
    /// Batches committed.
    pub writes: u64,
    /// Read commands of the device, flush, merge and verification included, since it was opened.
    pub device_reads: u64,
    /// Bytes they read.
    pub device_read_bytes: u64,
    /// Write commands of the device.
    pub device_writes: u64,
    /// Bytes they wrote: log, tables, values, and what the object layer writes for itself.
    pub device_write_bytes: u64,
    /// Flushes of the device, and writes that were durable on completion.
    pub device_flushes: u64,
    /// Tables by level as they are now, from the top; the bottom is last.
    pub levels: Vec<LevelStats>,
    /// Value objects there are now.
    pub value_objects: u64,
    /// Their bytes.
    pub value_bytes: u64,
    /// ... of which no entry points to these any more.
    pub dead_value_bytes: u64,
    /// Memtables that wait for their flush.
    pub frozen_memtables: u64,
    /// Key ranges found damaged and not repaired yet; [`crate::Store::damaged_ranges`] names them.
    pub damaged_ranges: u64,
}

/// The runs of one level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelStats {
    /// 0 is what flushes write; the bottom has [`LevelStats::BOTTOM`].
    pub level: u8,
    /// Runs, each searched by a look-up that comes this far.
    pub runs: u64,
    /// Tables in them.
    pub tables: u64,
    /// Bytes of the tables.
    pub bytes: u64,
    /// Entries, all versions.
    pub entries: u64,
    /// ... that a merge could drop once no snapshot needs them.
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

    /// Bytes the device wrote per byte of keys and values given; 0 without writes.
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
