//! Inheritance of heat: for partitions that flush and merge write, their heat, initial units and index pages.
//!
//! Invariants
//! - A merged partition inherits from the oldest input with keys in its range. A Get that found nothing there
//!   found nothing in any input, so the rate of negative probes survives the merge.
//! - A flushed partition inherits from the newest run below it.
//! - A partition passes its heat on in proportion to the covered share of its range, measured on the first
//!   eight differing bytes. That is exact for hashed keys and an assumption for others.
//! - Units are taken from the page as it is written: compaction reads no filter pages.
//! - An index page is kept if most of the inherited partitions had theirs in the cache, so a merge of unread
//!   data does not fill the cache.
//! - Until units are loaded and index pages cached, they are charged to the merge; if the budget is full,
//!   none are kept.

use crate::{
    format::{entry::KeyRange, index::IndexPage},
    memory::{
        budget::{MemoryAccounts, MemoryClass},
        elastic::{ElasticFilters, PredictedPartition},
    },
    table::{NewPartition, PartitionObserver, Table},
    tree::version::SortedRun,
};
use bytes::Bytes;
use copal_filter::{
    FilterPage,
    rules::{Heat, Shape},
};
use parking_lot::Mutex;
use std::sync::Arc;

/// Units kept at hand beyond the wanted ones.
const SPARE_UNITS: u8 = 4;

/// Runs to inherit from: the first that has keys in the range counts.
#[derive(Clone, Default)]
pub(crate) struct HeatInheritance(pub(crate) Vec<Arc<SortedRun>>);

/// Inheritance of one partition.
#[derive(Default)]
struct InheritedHeat {
    heat: f64,
    /// Sum of the inherited shares of partitions, and of those whose index page is in the cache.
    partitions: f64,
    indexed: f64,
}

impl InheritedHeat {
    /// Adds the part of a table between two keys.
    fn add(&mut self, elastic: &ElasticFilters, table: &Table, first: &[u8], last: &[u8]) {
        for index in table.partitions_between(first, last) {
            let (start, end) = table.partition_range(index);
            let part = covered(start, end, first, last);
            self.heat += elastic.heat(table, index).0 * part;
            self.partitions += part;
            self.indexed += if table.has_index(index) { part } else { 0.0 };
        }
    }

    /// Whether the index page is worth caching.
    fn is_indexed(&self) -> bool {
        self.indexed > self.partitions / 2.0
    }
}

impl HeatInheritance {
    /// Inheritance of the keys from `first` to `last`.
    fn of(&self, elastic: &ElasticFilters, first: &[u8], last: &[u8]) -> InheritedHeat {
        let range =
            KeyRange { start: Bytes::copy_from_slice(first), end: crate::format::entry::successor(last) };
        let mut inherited = InheritedHeat::default();
        for run in &self.0 {
            let mut slices = run.overlapping(&range).peekable();
            let found = slices.peek().is_some();
            for slice in slices {
                inherited.add(elastic, &slice.table.table, first, last);
            }
            if found {
                break;
            }
        }
        inherited
    }
}

/// Share of [start, end] that lies in [first, last], from 0 to 1, measured on the first eight bytes in which
/// `start` and `end` differ.
fn covered(start: &[u8], end: &[u8], first: &[u8], last: &[u8]) -> f64 {
    let common = start.iter().zip(end).take_while(|(a, b)| a == b).count();
    let prefix = &start[..common];
    let at = |key: &[u8]| match key.strip_prefix(prefix) {
        Some(rest) => head(rest),
        None if key < prefix => 0.0,
        None => f64::MAX,
    };
    let (start, end) = (at(start), at(end));
    if end <= start {
        return 1.0;
    }
    let from = at(first).clamp(start, end);
    let to = at(last).clamp(start, end);
    ((to - from) / (end - start)).clamp(0.0, 1.0)
}

fn head(bytes: &[u8]) -> f64 {
    let mut first = [0; 8];
    let len = bytes.len().min(8);
    first[..len].copy_from_slice(&bytes[..len]);
    u64::from_be_bytes(first) as f64
}

/// Observer of a table that is being written: keeps the initial units of its partitions.
pub(crate) struct UnitPredictor {
    pub(crate) budget: MemoryAccounts,
    pub(crate) elastic: Arc<ElasticFilters>,
    pub(crate) from: Arc<HeatInheritance>,
    pub(crate) level: u8,
    /// In partition order; the writer of the table takes them at the end.
    pub(crate) predicted: Arc<Mutex<Vec<PredictedPartition>>>,
}

impl PartitionObserver for UnitPredictor {
    fn partition(&self, fresh: &NewPartition<'_>) {
        let inherited = self.from.of(&self.elastic, fresh.first, fresh.last);
        let heat = Heat(inherited.heat);
        let units = fresh.kind.units();
        let stored = fresh.page.as_bytes();
        let unit_bytes = stored.len().saturating_sub(copal_filter::HEADER_BYTES) / usize::from(units);
        let shape = Shape {
            kind: fresh.kind,
            keys: fresh.keys,
            unit_bytes: unit_bytes as u32,
            units,
            level: self.level,
        };
        let wanted = self.elastic.predict(shape, heat);
        let at_hand = wanted.saturating_add(SPARE_UNITS).min(shape.units);
        let bytes = u64::from(at_hand) * unit_bytes as u64;
        let units = self.budget.hold(MemoryClass::Merges, bytes, || {
            FilterPage::load(stored, at_hand, fresh.uid, fresh.store_seed).ok()
        });
        let bytes = (fresh.index_page.len() + size_of::<IndexPage>()) as u64;
        let decode = || IndexPage::decode(fresh.index_page, fresh.uid, fresh.data_len).ok();
        let page =
            inherited.is_indexed().then(|| self.budget.hold(MemoryClass::Merges, bytes, decode)).flatten();
        self.predicted.lock().push(PredictedPartition { index: fresh.index, heat, wanted, units, page });
    }
}

#[cfg(test)]
mod tests {
    use super::covered;

    #[test]
    fn coverage_is_the_part_of_the_range() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} {b}");
        close(covered(&[0], &[100], &[0], &[50]), 0.5);
        close(covered(&[0], &[100], &[25], &[75]), 0.5);
        close(covered(b"key 00", b"key \xff\xff", b"a", b"z"), 1.0);
        close(covered(b"key 00", b"key 99", b"z", b"zz"), 0.0);
        close(covered(b"key 00", b"key 99", b"a", b"b"), 0.0);
        // One key, and keys that agree in all measured bytes.
        close(covered(b"k", b"k", b"k", b"k"), 1.0);
        // Shares of disjoint parts add up to the whole.
        let parts = [(0, 30), (30, 31), (31, 200)];
        let sum: f64 = parts.iter().map(|&(a, b)| covered(&[10], &[90], &[a], &[b])).sum();
        close(sum, 1.0);
    }
}
