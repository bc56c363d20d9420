//! Counters of reads, in units.
//!
//! Invariant: threads count in stripes of their own cache lines, so that counting costs a look-up nothing.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

const STRIPES: usize = 8;
const KINDS: usize = 12;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadCount {
    FilterProbes,
    FilterNegatives,
    FalsePositives,
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
    /// A table was asked for a key its fences admit.
    pub filter_probes: u64,
    /// ... and its filter said no.
    pub filter_negatives: u64,
    /// ... and its filter said maybe, or was not loaded, but the key was not in the partition.
    pub false_positives: u64,
    /// Data blocks read one by one, by look-ups and at the start of scans; read-ahead does not count here.
    pub data_block_reads: u64,
    /// Index pages read. A read that brings the filter page too counts in both.
    pub index_page_reads: u64,
    /// Filter pages read.
    pub filter_page_reads: u64,
    /// Filter pages found damaged; their partitions go without.
    pub damaged_filters: u64,
    /// Index pages found damaged and rebuilt from the data blocks.
    pub rebuilt_indexes: u64,
}

#[repr(align(128))]
#[derive(Debug, Default)]
struct CounterStripe([AtomicU64; KINDS]);

/// Counters that many threads share.
#[derive(Debug, Default)]
pub(crate) struct ReadCounters([CounterStripe; STRIPES]);

impl ReadCounters {
    pub(crate) fn add(&self, what: ReadCount) {
        self.add_many(what, 1);
    }

    pub(crate) fn add_many(&self, what: ReadCount, by: u64) {
        self.0[stripe()].0[what as usize].fetch_add(by, Ordering::Relaxed);
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

/// The calling thread's stripe, given out in turn.
fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<usize> = const { Cell::new(usize::MAX) });
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        mine.get()
    })
}
