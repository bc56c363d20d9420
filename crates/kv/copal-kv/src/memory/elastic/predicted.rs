//! What new partitions start with, and units that need no read.

use super::filtered::FilteredTable;
use crate::{format::index::IndexPage, memory::budget::ChargedValue};
use copal_filter::{Units, rules::Heat};
use std::collections::HashMap;

/// What a new partition starts with.
pub(crate) struct PredictedPartition {
    /// Which of its table's.
    pub(crate) index: u32,
    pub(crate) heat: Heat,
    /// Units it should have, at the price that memory had when it was written.
    pub(crate) wanted: u8,
    /// Some more than that: what is merged leaves memory to its heirs.
    pub(crate) units: Option<ChargedValue<Units>>,
    /// Index page for the cache.
    pub(crate) page: Option<ChargedValue<IndexPage>>,
}

/// Units of partitions that were just written, more than they start with: should the rule want more of them
/// at once, nothing has to be read. By number of the table and index: a partition's own number may be
/// another's by then.
#[derive(Default)]
pub(crate) struct AtHand(HashMap<(u64, u32), ChargedValue<Units>>);

impl AtHand {
    pub(super) fn keep(&mut self, table: &dyn FilteredTable, index: u32, units: ChargedValue<Units>) {
        self.0.insert((table.number(), index), units);
    }

    /// Units of partition `index` of `table`.
    pub(super) fn of(&self, table: &dyn FilteredTable, index: u32) -> Option<&ChargedValue<Units>> {
        self.0.get(&(table.number(), index))
    }
}
