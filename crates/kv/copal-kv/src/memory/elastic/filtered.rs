//! A table from the adjuster's view: partitions, each with a slot for units, and an account of their bytes.
//!
//! Not here: tables themselves (`table`), which know the adjuster; the adjuster knows only this trait.

use super::slot::UnitSlot;
use copal_filter::{Units, rules::Shape};

/// Units of one partition.
pub(crate) type FilterSlot = UnitSlot<Units>;

/// Reason why units could not be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadFailure {
    /// The page is damaged, or does not match the table.
    Damaged,
    /// The read failed.
    Read,
}

/// An open table whose partitions have filters.
pub(crate) trait FilteredTable: Send + Sync {
    /// Number of the table; no other table of the same memory ever has it.
    fn number(&self) -> u64;

    /// Number of its partitions.
    fn partitions(&self) -> u32;

    /// Filter shape of a partition; `None`: it has no filter. `level`: the level of the table's run.
    fn filter_shape(&self, partition: u32, level: u8) -> Option<Shape>;

    /// Slot of a partition's loaded units.
    fn slot(&self, partition: u32) -> &FilterSlot;

    /// Charges units before they are loaded; `false`: they do not fit.
    fn charge_units(&self, bytes: u64) -> bool;

    /// Returns the charge of freed units.
    fn return_units(&self, bytes: u64);

    /// Reads the first `units` units of a partition, as a background read. Blocks.
    fn read_units(&self, partition: u32, units: u8) -> Result<Units, LoadFailure>;

    /// Counts an unusable filter page.
    fn count_damaged_filter(&self);
}
