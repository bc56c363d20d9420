//! Counters of reads, in units.
//!
//! Invariant: each thread counts in a stripe with its own cache line, so counting adds no contention to a
//! look-up.

use std::{
    cell::Cell,
    sync::{
        OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};

/// Least stripes; more on machines with more processors.
const LEAST_STRIPES: usize = 8;
const KINDS: usize = 13;

/// Kinds of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadCount {
    FilterProbes,
    FilterNegatives,
    FalsePositives,
    /// Data blocks of runs above the oldest that were read for a key that they do not hold.
    WastedReads,
    DataBlockReads,
    IndexPageReads,
    FilterPageReads,
    DamagedFilters,
    RebuiltIndexes,
    Gets,
    RowHits,
    Seeks,
    DeletedPassed,
}

/// Sums since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// Probes of tables whose fences admit the key.
    pub filter_probes: u64,
    /// Probes that the filter answered with no.
    pub filter_negatives: u64,
    /// Probes that the filter let pass, or for which it was not loaded, although the partition lacked the
    /// key.
    pub false_positives: u64,
    /// Data blocks read singly, by look-ups and at the start of scans; read-ahead is not counted.
    pub data_block_reads: u64,
    /// Index pages read. A read of both index and filter page counts in both counters.
    pub index_page_reads: u64,
    /// Filter pages read.
    pub filter_page_reads: u64,
    /// Damaged filter pages; their partitions work without a filter.
    pub damaged_filters: u64,
    /// Damaged index pages that were rebuilt from the data blocks.
    pub rebuilt_indexes: u64,
}

#[repr(align(128))]
#[derive(Debug, Default)]
struct CounterStripe([AtomicU64; KINDS]);

/// Counters that many threads share.
#[derive(Debug)]
pub(crate) struct ReadCounters(Box<[CounterStripe]>);

impl Default for ReadCounters {
    fn default() -> ReadCounters {
        static STRIPES: OnceLock<usize> = OnceLock::new();
        let stripes = *STRIPES.get_or_init(|| {
            let processors = thread::available_parallelism().map_or(1, usize::from);
            processors.next_power_of_two().max(LEAST_STRIPES)
        });
        ReadCounters((0..stripes).map(|_| CounterStripe::default()).collect())
    }
}

impl ReadCounters {
    pub(crate) fn add(&self, what: ReadCount) {
        self.add_many(what, 1);
    }

    pub(crate) fn add_many(&self, what: ReadCount, by: u64) {
        self.0[thread_number() % self.0.len()].0[what as usize].fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn sum(&self, what: ReadCount) -> u64 {
        self.0.iter().map(|stripe| stripe.0[what as usize].load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn sums(&self) -> ReadCounts {
        let sum = |what: ReadCount| self.sum(what);
        ReadCounts {
            filter_probes: sum(ReadCount::FilterProbes),
            filter_negatives: sum(ReadCount::FilterNegatives),
            false_positives: sum(ReadCount::FalsePositives),
            data_block_reads: sum(ReadCount::DataBlockReads),
            index_page_reads: sum(ReadCount::IndexPageReads),
            filter_page_reads: sum(ReadCount::FilterPageReads),
            damaged_filters: sum(ReadCount::DamagedFilters),
            rebuilt_indexes: sum(ReadCount::RebuiltIndexes),
        }
    }
}

/// The number of the calling thread: stripes are assigned in turn.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<usize> = const { Cell::new(usize::MAX) });
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        mine.get()
    })
}
