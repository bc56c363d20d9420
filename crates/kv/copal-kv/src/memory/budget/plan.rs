//! Division of a memory budget: reserves, and limits of single uses within the rest. Pure.
//!
//! | part | bytes of a total T |
//! |---|---|
//! | memtables | 2 x min(16 MiB, T/8) |
//! | log buffers | min(4 MiB, T/16) |
//! | merges: read-ahead, output, values in flight | min(8 MiB, T/8); with N merge threads up to N times 2 MiB, while that is at most T/16 |
//! | writes that the object store accepted and the device has not completed | min(16 MiB, T/16) |
//! | reads in progress | min(2 MiB, T/32) |
//! | the rest: filters (a quarter at most), index pages, rows, blocks, scans (an eighth at most), tables | |

use super::class::MemoryClass;

/// Least total; a smaller one is raised to this.
pub(crate) const LEAST_TOTAL: u64 = 4 << 20;
const MEMTABLE: u64 = 16 << 20;
const LOG: u64 = 4 << 20;
const MERGES: u64 = 8 << 20;
/// For each thread that merges.
const MERGES_PER_THREAD: u64 = 2 << 20;
const WRITES: u64 = 16 << 20;
const READS: u64 = 2 << 20;
/// Share of the unreserved bytes that filters may take, as a divisor.
const FILTER_SHARE: u64 = 4;
/// Share of the total that the read-ahead of scans may take, as a divisor.
const SCAN_SHARE: u64 = 8;

/// The division of one total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BudgetPlan {
    pub(crate) total: u64,
    /// Bytes at which a memtable is full, for a single store. Two exist at a time.
    pub(crate) memtable: u64,
    pub(crate) log: u64,
    pub(crate) merges: u64,
    pub(crate) writes: u64,
    pub(crate) reads: u64,
    pub(crate) scans: u64,
    /// Limit of filters, if it does not follow from the total.
    filters: Option<u64>,
    /// Limit of pages and rows, if it does not follow from the total.
    pub(crate) cache: Option<u64>,
}

impl BudgetPlan {
    /// The division for a machine on which `merge_threads` threads may merge.
    pub(crate) fn of(total: u64, merge_threads: u64) -> BudgetPlan {
        let total = total.max(LEAST_TOTAL);
        BudgetPlan {
            total,
            memtable: (total / 8).min(MEMTABLE),
            log: (total / 16).min(LOG),
            merges: (total / 8).min(MERGES).max((total / 16).min(MERGES_PER_THREAD * merge_threads)),
            writes: (total / 16).min(WRITES),
            reads: (total / 32).min(READS),
            scans: total / SCAN_SHARE,
            filters: None,
            cache: None,
        }
    }

    /// Fixed limits for pages and filters, without a limit for everything else: for tables without a store.
    pub(crate) fn of_tables(cache: u64, filters: u64) -> BudgetPlan {
        BudgetPlan {
            total: u64::MAX / 2,
            memtable: 0,
            log: 0,
            merges: 0,
            writes: 0,
            reads: 0,
            scans: u64::MAX / 2,
            filters: Some(filters),
            cache: Some(cache),
        }
    }

    /// Limit of the bytes that one batch may leave in memory: two memtables and a quarter of the unreserved
    /// bytes.
    pub(crate) fn batch(&self) -> u64 {
        2 * self.memtable + (self.total - self.reserved()) / 4
    }

    /// Sum of all reserves.
    pub(crate) fn reserved(&self) -> u64 {
        MemoryClass::ALL.iter().map(|class| self.reserve(*class)).sum()
    }

    /// Bytes reserved for a class, used or not.
    pub(crate) fn reserve(&self, class: MemoryClass) -> u64 {
        match class {
            MemoryClass::Memtables => 2 * self.memtable,
            MemoryClass::Log => self.log,
            MemoryClass::Merges => self.merges,
            MemoryClass::Writes => self.writes,
            MemoryClass::Reads => self.reads,
            _ => 0,
        }
    }

    /// Limit of large buffers that the process keeps for reuse: the reserves of merges and writes, which are
    /// charged while unused. `None`: no limit.
    pub(crate) fn kept(&self) -> Option<u64> {
        (self.merges > 0).then_some(self.merges + self.writes)
    }

    /// Limit of read-ahead, which is optional.
    pub(crate) fn limit(&self, class: MemoryClass) -> u64 {
        match class {
            MemoryClass::Scans => self.scans,
            MemoryClass::Merges if self.merges > 0 => self.merges,
            _ => u64::MAX,
        }
    }

    /// Limit of filters when everything except filters, pages and rows takes `others`.
    pub(crate) fn filter_limit(&self, others: u64) -> u64 {
        self.filters.unwrap_or(self.total.saturating_sub(others) / FILTER_SHARE)
    }

    /// Limit of pages and rows beside `charged` bytes of everything else: in whole grains, so that small
    /// changes of the charges do not move it.
    pub(crate) fn cache_capacity(&self, charged: u64) -> u64 {
        let room = self.total.saturating_sub(charged) / self.grain() * self.grain();
        self.cache.unwrap_or(room)
    }

    /// Step by which pages and rows grow and shrink.
    pub(crate) fn grain(&self) -> u64 {
        (self.total / 128).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_parts_leave_most_of_any_total_to_the_elastic_ones() {
        for total in [0, 1 << 20, 4 << 20, 32 << 20, 512 << 20, 1 << 40] {
            let plan = BudgetPlan::of(total, 64);
            let fixed: u64 = MemoryClass::ALL.iter().map(|class| plan.reserve(*class)).sum();
            assert!(plan.total >= total.max(4 << 20));
            assert!(fixed <= plan.total / 16 * 9, "{fixed} of {}", plan.total);
            assert_eq!(plan.filter_limit(fixed), (plan.total - fixed) / 4);
            assert!(plan.cache_capacity(fixed) + fixed <= plan.total);
            assert!(plan.cache_capacity(fixed) + fixed + plan.grain() > plan.total);
            assert_eq!(plan.cache_capacity(plan.total + 1), 0);
        }
        let large = BudgetPlan::of(1 << 30, 1);
        assert_eq!((large.memtable, large.log, large.merges), (16 << 20, 4 << 20, 8 << 20));
        let merges = |total, threads| BudgetPlan::of(total, threads).merges;
        assert_eq!((merges(1 << 30, 8), merges(1 << 30, 64)), (16 << 20, 64 << 20));
        assert_eq!((merges(128 << 20, 8), merges(32 << 20, 8)), (8 << 20, 4 << 20));
    }
}
