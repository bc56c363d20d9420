//! Initial units of new partitions, and units that can be loaded without a read.

use super::filtered::FilteredTable;
use crate::{format::index::IndexPage, memory::budget::ChargedValue};
use copal_filter::{Units, rules::Heat};
use std::collections::HashMap;

/// Initial state of a new partition.
pub(crate) struct PredictedPartition {
    /// Index of the partition in its table.
    pub(crate) index: u32,
    pub(crate) heat: Heat,
    /// Wanted number of units, at the price of memory when the partition was written.
    pub(crate) wanted: u8,
    /// Some more units than wanted, since merged inputs will leave memory to their heirs.
    pub(crate) units: Option<ChargedValue<Units>>,
    /// Index page, to be cached.
    pub(crate) page: Option<ChargedValue<IndexPage>>,
}

/// More units of just written partitions than they start with: if the rule soon wants more of them, no read
/// is needed. Keyed by table number and index, since a partition number may be reused by then.
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
