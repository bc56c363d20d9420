//! Filters of one table: probes of a partition's loaded units, and reads of units from its page.
//!
//! Another module decides which units are loaded (`crate::memory::elastic`).
//! Invariants
//! - Without units a look-up may cost an extra read, but its answer is the same.
//! - A probe that finds no units, with memory available, reads the filter page in place of the data block;
//!   the units stay loaded.
//! - Units are used only if they take exactly the charged bytes.

use super::reader::Table;
use crate::format::{error::TableError, index::IndexPage};
use crate::memory::elastic::{ElasticFilters, FilterSlot, FilteredTable, LoadFailure};
use crate::session::read_counters::ReadCount;
use bytes::Bytes;
use copal_device::IoClass;
use copal_filter::{
    FilterPage, HEADER_BYTES, KeyHash, Units,
    rules::{Outcome, Shape},
};
use std::{ops::Range, sync::Arc};

/// Answer of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilterAnswer {
    /// The key is not in the partition.
    No,
    /// The key may be in the partition.
    Maybe,
}

impl Table {
    /// Probes the filter of a partition. Loads units if none are loaded and some fit.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn ask_filter(&self, partition: u32, hash: &KeyHash) -> Result<FilterAnswer, TableError> {
        let slot = self.slot(partition);
        let admits = match slot.ask(|units| units.may_contain(*hash)) {
            Some(admits) => admits,
            None => self.load_cold(partition, hash)?,
        };
        Ok(if admits { FilterAnswer::Maybe } else { FilterAnswer::No })
    }

    /// Samples the outcome of a probe.
    pub(super) fn note_probe(&self, partition: u32, outcome: Outcome) {
        self.elastic().note(self.slot(partition).number(), outcome);
    }

    /// Loads units for a partition without any, if they fit, and probes them. Reads the index page with them
    /// if it is not cached, since the two are adjacent. Without units the answer is `true`.
    fn load_cold(&self, partition: u32, hash: &KeyHash) -> Result<bool, TableError> {
        let Some(number) = self.slot(partition).number() else {
            return Ok(true);
        };
        let Some(units) = self.elastic().reserve(self, number, partition) else {
            return Ok(true);
        };
        let (index_key, at) = (self.index_key(partition), self.partition(partition));
        let with_index = self.cache.get(index_key).is_none();
        let filter_start = at.filter().start;
        let start = if with_index { at.index().start } else { filter_start };
        self.cache.count(ReadCount::FilterPageReads);
        let read = |class| self.read(start..filter_start + self.prefix_bytes(partition, units), class);
        let split = (filter_start - start) as usize;
        let bytes = read(IoClass::Foreground);
        if let (Ok(bytes), true) = (&bytes, with_index)
            // A damaged index page is handled when it is needed.
            && let Ok(page) = IndexPage::decode(&bytes[..split.min(bytes.len())], at.uid, at.data_len)
        {
            self.cache.count(ReadCount::IndexPageReads);
            self.keep_index(index_key, page);
        }
        let mut failed = None;
        let loaded = match bytes {
            Ok(bytes) => self.units_of(partition, units, &bytes[split.min(bytes.len())..]).or_else(|_| {
                let again = read(IoClass::Foreground).map_err(|_| LoadFailure::Read)?;
                self.units_of(partition, units, &again[split.min(again.len())..])
            }),
            Err(error) => {
                failed = Some(error);
                Err(LoadFailure::Read)
            }
        };
        let admits = loaded.as_ref().map_or(true, |units| units.may_contain(*hash));
        self.elastic().loaded(self, number, partition, 0, loaded, true);
        failed.map_or(Ok(admits), Err)
    }

    fn units_of(&self, partition: u32, units: u8, stored: &[u8]) -> Result<Units, LoadFailure> {
        let (at, seed) = (self.partition(partition), self.options.store_seed);
        match FilterPage::load(stored, units, at.uid, seed) {
            Ok(loaded) if loaded.heap_bytes() == self.unit_bytes(partition) * usize::from(units) => {
                Ok(loaded)
            }
            Ok(_) => Err(LoadFailure::Damaged),
            Err(why) => {
                tracing::warn!(table = self.id.0, partition, %why, "filter page unusable");
                Err(LoadFailure::Damaged)
            }
        }
    }

    /// Bytes of one unit of a partition; 0: it has no filter, or one of an impossible length.
    fn unit_bytes(&self, partition: u32) -> usize {
        let stored = self.partition(partition).filter_len as usize;
        let (units, body) = (usize::from(self.meta.filter.units()), stored.saturating_sub(HEADER_BYTES));
        if body.is_multiple_of(units) { body / units } else { 0 }
    }

    /// Bytes of a filter page up to the end of its first `units` units.
    fn prefix_bytes(&self, partition: u32, units: u8) -> u64 {
        (HEADER_BYTES + self.unit_bytes(partition) * usize::from(units)) as u64
    }

    pub(crate) fn elastic(&self) -> &Arc<ElasticFilters> {
        self.cache.elastic()
    }

    #[cfg(test)]
    pub(crate) fn filter_offset(&self, partition: u32) -> u64 {
        self.partition(partition).filter().start
    }

    pub(crate) fn partition_keys(&self, partition: u32) -> u32 {
        self.partition(partition).keys
    }

    /// First and last key that the partition may hold.
    pub(crate) fn partition_range(&self, partition: u32) -> (&[u8], &[u8]) {
        let at = partition as usize;
        let start = if at == 0 { &self.meta.smallest[..] } else { self.fences.fence(at) };
        let end = if at + 1 < self.fences.len() { self.fences.fence(at + 1) } else { &self.meta.largest[..] };
        (start, end)
    }

    /// The partitions that may hold keys from `first` to `last`.
    pub(crate) fn partitions_between(&self, first: &[u8], last: &[u8]) -> Range<u32> {
        if last < &self.meta.smallest[..] || first > &self.meta.largest[..] {
            return 0..0;
        }
        match (self.fences.find(first), self.fences.find(last)) {
            (Some(from), Some(to)) => from as u32..to as u32 + 1,
            _ => 0..0,
        }
    }

    /// Drops the filters of partitions outside all of `parts`, which no new reader probes.
    pub(crate) fn keep_filters(&self, level: u8, parts: &[Range<Bytes>]) {
        self.elastic().relevel(self, level);
        let wanted = |index: &u32| {
            let (first, last) = self.partition_range(*index);
            parts.iter().any(|part| *first < part.end[..] && part.start[..] <= *last)
        };
        let known = |index: &u32| self.slot(*index).number().is_some();
        for index in (0..self.partitions()).filter(|index| known(index) && !wanted(index)) {
            self.elastic().retire(self, index..index + 1);
        }
    }
}

impl FilteredTable for Table {
    fn number(&self) -> u64 {
        Table::number(self)
    }

    fn partitions(&self) -> u32 {
        Table::partitions(self)
    }

    fn filter_shape(&self, partition: u32, level: u8) -> Option<Shape> {
        let unit_bytes = self.unit_bytes(partition);
        (unit_bytes > 0).then(|| Shape {
            kind: self.meta.filter,
            keys: self.partition(partition).keys,
            unit_bytes: unit_bytes as u32,
            units: self.meta.filter.units(),
            level,
        })
    }

    fn slot(&self, partition: u32) -> &FilterSlot {
        &self.filters[partition as usize]
    }

    fn charge_units(&self, bytes: u64) -> bool {
        self.filter_charge.lock().grow(bytes)
    }

    fn return_units(&self, bytes: u64) {
        self.filter_charge.lock().shrink(bytes);
    }

    fn count_damaged_filter(&self) {
        self.cache.count(ReadCount::DamagedFilters);
    }

    fn read_units(&self, partition: u32, units: u8) -> Result<Units, LoadFailure> {
        let start = self.partition(partition).filter().start;
        let range = start..start + self.prefix_bytes(partition, units);
        self.cache.count(ReadCount::FilterPageReads);
        let read = || self.read(range.clone(), IoClass::Background).map_err(|_| LoadFailure::Read);
        // Read once more before it counts as damaged.
        match self.units_of(partition, units, &read()?) {
            Ok(units) => Ok(units),
            Err(_) => self.units_of(partition, units, &read()?),
        }
    }
}
