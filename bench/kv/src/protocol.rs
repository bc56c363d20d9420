//! Requests of the suite to an engine in its own process, and answers, one line of JSON each.
//!
//! The kernel caps and counts the engine's process. The keys are drawn there, from the seed in the request,
//! so that no other work adds to these counts.

use crate::{keys::Skew, latency::Quantiles};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf};

/// Engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Copal,
    Leveldb,
    Rocksdb,
    Fjall,
}

/// Construction and adjustment of its filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Filters {
    /// The engine's own default kind and rule, with the bits of the spec.
    Shipped,
    /// Copal: Bloom units of 4 bits, the same number everywhere.
    BloomFixed,
    /// Copal: Bloom units, by run as in Monkey.
    BloomPerRun,
    /// Copal: Bloom units and the Multi-Queue of the paper.
    BloomPaper,
    /// Copal: Ribbon columns, the same number everywhere.
    RibbonFixed,
    /// Copal: Ribbon columns under the paper's Multi-Queue.
    RibbonMq,
    /// Copal: Ribbon columns, by run as in Monkey.
    RibbonPerRun,
    /// Copal: Bloom units under the class rule.
    BloomClasses,
    /// RocksDB: Ribbon, partitioned and cached filters and indexes, direct reads; fjall: bits by level.
    Tuned,
}

/// Options under which an engine is opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) filters: Filters,
    /// Filter bits per key, on average.
    pub(crate) bits: f64,
    /// The engine's option for caches, filters and indexes.
    pub(crate) memory_bytes: u64,
    /// The engine's option for its write buffer.
    pub(crate) write_buffer_bytes: u64,
    /// Table size, for engines with such an option; 0: the default.
    pub(crate) table_bytes: u64,
    /// Bytes the store will hold, for engines that preallocate.
    pub(crate) data_bytes: u64,
    /// Whether reads may be answered from cached blocks or rows.
    pub(crate) cache_data: bool,
    /// Whether copal caches the blocks it reads, instead of the rows it finds.
    pub(crate) cache_blocks: bool,
    /// Whether copal may merge runs only to make reads cheaper.
    pub(crate) merge_for_reads: bool,
    /// Threads that may merge at the same time, for copal and RocksDB; 0: their default.
    pub(crate) background_threads: usize,
    pub(crate) directory: PathBuf,
}

/// Durability of a write when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Safety {
    /// Survives power loss.
    Device,
    /// Survives the death of the process.
    Process,
    /// Copal's `Deferred`; for the peers the same as `Process`, their weakest durability.
    Bulk,
}

/// Creates, reads and deletes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Churn {
    /// Number of loaded ids.
    pub(crate) keys: u64,
    /// Operations of each turn.
    pub(crate) creates: u32,
    pub(crate) reads: u32,
    pub(crate) deletes: u32,
    /// Whether operations draw from the loaded ids, existing or deleted. Otherwise creates use new ids, and
    /// reads and deletes existing ones.
    pub(crate) blind: bool,
    pub(crate) value_bytes: usize,
    pub(crate) turns: u64,
    pub(crate) safety: Safety,
    pub(crate) seed: u64,
}

/// One piece of work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Open(Spec),
    /// Stores ids `[first, first + count)` in this order, which is random in key order.
    Load {
        first: u64,
        count: u64,
        value_bytes: usize,
        batch: usize,
        safety: Safety,
    },
    /// Looks up ids until `ops` are done or the time is over.
    Gets {
        keys: u64,
        skew: Skew,
        /// Share of look-ups of ids that were never loaded.
        missing: f64,
        ops: u64,
        seconds: f64,
        threads: usize,
        seed: u64,
    },
    /// As `Gets`, many keys per call.
    MultiGets {
        keys: u64,
        skew: Skew,
        missing: f64,
        batch: usize,
        seconds: f64,
        threads: usize,
        seed: u64,
    },
    /// Overwrites or adds ids until `ops` are done or the time is over.
    Writes {
        keys: u64,
        skew: Skew,
        value_bytes: usize,
        safety: Safety,
        ops: u64,
        seconds: f64,
        threads: usize,
        seed: u64,
    },
    /// One of YCSB's workloads `A` to `F`.
    Ycsb {
        workload: char,
        safety: Safety,
        keys: u64,
        value_bytes: usize,
        seconds: f64,
        threads: usize,
        seed: u64,
    },
    /// One thread overwrites without a pause while another looks up, half of the ids missing; the look-ups
    /// are measured.
    ReadsBesideWrites {
        keys: u64,
        value_bytes: usize,
        safety: Safety,
        seconds: f64,
        seed: u64,
    },
    Churn(Churn),
    /// In each turn, puts an entry at the end of a queue, looks at its head and deletes it; the queue has
    /// `waiting` entries.
    Queue {
        waiting: u64,
        turns: u64,
        value_bytes: usize,
        safety: Safety,
    },
    /// Scans of `entries` entries, starting at drawn keys.
    Scans {
        keys: u64,
        skew: Skew,
        entries: usize,
        seconds: f64,
        seed: u64,
    },
    /// Stores `count` keys below a prefix of their own.
    LoadPrefix {
        prefix: u8,
        count: u64,
        value_bytes: usize,
    },
    /// Deletes all keys with the prefix.
    Purge {
        prefix: u8,
    },
    /// Flushes write buffers to tables.
    Flush,
    /// Returns when no merge is due.
    AwaitMerges,
    /// Merges everything into one run.
    Compact,
    /// Returns the engine's counters only.
    Facts,
    /// Closes the engine and ends the process.
    Close,
}

/// Result of a request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Error of a failed request; the other fields are then void.
    pub(crate) error: Option<String>,
    pub(crate) ops: u64,
    /// Look-ups that found something, entries of scans.
    pub(crate) found: u64,
    pub(crate) seconds: f64,
    /// User and system time of the process.
    pub(crate) cpu_seconds: f64,
    pub(crate) latency: Quantiles,
    /// Processor time of single look-ups, one in sixteen of them.
    pub(crate) cpu: Quantiles,
    /// Latencies of the writes of a mixed run.
    pub(crate) write_latency: Quantiles,
    /// Change of the engine's own counters during the work. Names that end in `_now` are levels.
    pub(crate) counters: BTreeMap<String, f64>,
    /// Set for `Open` only.
    pub(crate) version: String,
    pub(crate) options: String,
}

impl Answer {
    /// A counter by its name; 0 if the engine does not have it.
    pub(crate) fn counter(&self, name: &str) -> f64 {
        self.counters.get(name).copied().unwrap_or(0.0)
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.ops as f64 / self.seconds.max(1e-9)
    }
}
