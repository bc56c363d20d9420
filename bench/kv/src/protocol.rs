//! What the suite asks of an engine in a process of its own, one line of JSON each way.
//!
//! The engine's process is under a memory cap and counted by the kernel; so that only the engine's work is
//! there, all drawing of keys happens there too, from the seed in the request.

use crate::{keys::Skew, latency::Quantiles};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf};

/// Which engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Copal,
    Leveldb,
    Rocksdb,
    Fjall,
}

/// How its filters are made and adjusted.
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

/// An engine as it is to be opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) filters: Filters,
    /// Filter bits per key, on average.
    pub(crate) bits: f64,
    /// What the engine is told to use for caches, filters and indexes.
    pub(crate) memory_bytes: u64,
    /// What it is told to use for its write buffer.
    pub(crate) write_buffer_bytes: u64,
    /// Tables of this size where the engine lets one choose; 0: its default.
    pub(crate) table_bytes: u64,
    /// Bytes the store will hold, for engines that preallocate.
    pub(crate) data_bytes: u64,
    /// Whether reads may be answered from cached blocks or rows.
    pub(crate) cache_data: bool,
    /// Whether copal caches the blocks it reads, and not the rows it finds.
    pub(crate) cache_blocks: bool,
    /// Whether copal may merge runs for the sake of readers alone.
    pub(crate) merge_for_reads: bool,
    pub(crate) directory: PathBuf,
}

/// How safe a write is when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Safety {
    /// Survives power loss.
    Device,
    /// Survives the death of the process.
    Process,
    /// Copal's `Deferred`; for the peers the same as `Process`, which is the least they offer.
    Bulk,
}

/// Creating, reading and deleting.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Churn {
    /// Loaded ids.
    pub(crate) keys: u64,
    /// Of each turn.
    pub(crate) creates: u32,
    pub(crate) reads: u32,
    pub(crate) deletes: u32,
    /// Draws from the loaded ids whether they are there or not; otherwise new ids are created, and those that
    /// are there read and deleted.
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
    /// Looks ids up until `ops` are done or the time is over.
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
    /// One thread overwrites without a pause while another looks up, half of it missing; look-ups count.
    ReadsBesideWrites {
        keys: u64,
        value_bytes: usize,
        safety: Safety,
        seconds: f64,
        seed: u64,
    },
    Churn(Churn),
    /// Puts entries at the end of a queue and looks at its head and deletes it, once a turn; `waiting` are in
    /// it.
    Queue {
        waiting: u64,
        turns: u64,
        value_bytes: usize,
        safety: Safety,
    },
    /// Ranges of `entries` from drawn keys on.
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
    /// Write buffers to tables.
    Flush,
    /// Returns when nothing is left to merge.
    AwaitMerges,
    /// Merges everything into one run.
    Compact,
    /// Nothing but the engine's counters.
    Facts,
    /// Closes the engine and ends the process.
    Close,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Why it failed, if it did; nothing else counts then.
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
    /// The engine's own counters: what was added during the work. Those that end in `_now` are levels.
    pub(crate) counters: BTreeMap<String, f64>,
    /// Only of `Open`.
    pub(crate) version: String,
    pub(crate) options: String,
}

impl Answer {
    /// A counter by its name; 0 when the engine has none such.
    pub(crate) fn counter(&self, name: &str) -> f64 {
        self.counters.get(name).copied().unwrap_or(0.0)
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.ops as f64 / self.seconds.max(1e-9)
    }
}
