//! Loaded filter units of one table's partitions.
//!
//! For now each partition loads a fixed number of units at its first probe, fewer where all partitions could
//! not have as many, and keeps them while the table is open. The rules that move units between partitions come on top of [`FilterSlot`].
//! Invariant: units are charged to the filter budget before they are read; without room a look-up goes
//! without a filter, which costs a read and never an answer.

use super::{
    counters::Count,
    error::TableError,
    fences::{Fences, Partition},
    index::IndexPage,
    read::Table,
};
use crate::cache::FilterCharge;
use copal_device::Class;
use copal_filter::{FilterPage, HEADER_BYTES, KeyHash, Kind, Units};
use std::sync::OnceLock;

/// Units of one partition, once loaded. `None` inside: the page is damaged.
#[derive(Default)]
pub(crate) struct FilterSlot(OnceLock<Option<Box<Loaded>>>);

struct Loaded {
    units: Units,
    _charge: FilterCharge,
}

/// Bytes of one unit of a partition.
fn unit_bytes(at: &Partition, kind: Kind) -> usize {
    (at.filter_len as usize).saturating_sub(HEADER_BYTES) / usize::from(kind.units())
}

/// Bytes of one unit of every partition, with what each loaded partition takes besides.
pub(super) fn one_unit_bytes(fences: &Fences, kind: Kind) -> u64 {
    let one = |i| (unit_bytes(fences.partition(i), kind) + size_of::<Loaded>()) as u64;
    (0..fences.len()).map(one).sum()
}

impl Table {
    /// False: the key is not in the partition.
    pub(super) fn filter_admits(&self, partition: u32, hash: &KeyHash) -> Result<bool, TableError> {
        let slot = &self.filters[partition as usize].0;
        let loaded = match slot.get() {
            Some(loaded) => loaded,
            None => match self.load_filter(partition)? {
                // Another thread may have been faster; either's units serve.
                Some(loaded) => slot.get_or_init(|| loaded),
                None => return Ok(true),
            },
        };
        Ok(loaded
            .as_ref()
            .is_none_or(|loaded| loaded.units.may_contain(*hash)))
    }

    /// Reads the units wanted, and the index page with them when it is not cached: they lie side by side.
    /// Outer `None`: there is nothing to load or no room; inner: the page is damaged.
    fn load_filter(&self, partition: u32) -> Result<Option<Option<Box<Loaded>>>, TableError> {
        let at = self.partition(partition);
        let asked = self.options.filter_columns.min(self.meta.filter.units());
        let units = asked.min(self.cache.fair_units());
        let wanted = unit_bytes(at, self.meta.filter) * usize::from(units);
        if wanted == 0 {
            return Ok(None);
        }
        let charged = (wanted + size_of::<Loaded>()) as u64;
        let Some(charge) = self.cache.charge_filter(charged) else {
            return Ok(None);
        };
        let index_key = self.index_key(partition);
        let with_index = self.cache.get(index_key).is_none();
        let filter_start = at.filter().start;
        let start = if with_index {
            at.index().start
        } else {
            filter_start
        };
        let end = filter_start + (HEADER_BYTES + wanted) as u64;
        self.cache.count(Count::FilterPageReads);
        let bytes = self.read(start..end, Class::Foreground)?;
        let split = ((filter_start - start) as usize).min(bytes.len());
        if with_index {
            // A damaged index page is dealt with when it is asked for.
            if let Ok(page) = IndexPage::decode(&bytes[..split], at.uid, at.data_len) {
                self.cache.count(Count::IndexPageReads);
                self.keep_index(index_key, page);
            }
        }
        let seed = self.options.store_seed;
        let mut page = FilterPage::load(&bytes[split..], units, at.uid, seed);
        if page.is_err() {
            let again = self.read(start..end, Class::Foreground)?;
            page = FilterPage::load(&again[split.min(again.len())..], units, at.uid, seed);
        }
        match page {
            Ok(units) => Ok(Some(Some(Box::new(Loaded {
                units,
                _charge: charge,
            })))),
            Err(why) => {
                tracing::warn!(table = self.id.0, partition, %why, "filter page unusable, going without");
                self.cache.count(Count::DamagedFilters);
                Ok(Some(None))
            }
        }
    }
}
