//! A table as the adjusting of filters sees it: partitions, each with a slot for units, and an account of
//! their bytes.
//!
//! Not here: tables themselves (`table`), which know the adjuster; the adjuster knows this.

use super::slot::UnitSlot;
use copal_filter::{Units, rules::Shape};

/// Units of one partition.
pub(crate) type FilterSlot = UnitSlot<Units>;

/// Why units could not be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadFailure {
    /// The page is damaged, or not what the table says.
    Damaged,
    /// It could not be read.
    Read,
}

/// An open table whose partitions have filters.
pub(crate) trait FilteredTable: Send + Sync {
    /// Its name in the memory; no other open table has it, ever.
    fn number(&self) -> u64;

    /// Partitions it has.
    fn partitions(&self) -> u32;

    /// What the adjusting has to know of a partition; `None`: the partition has no filter. `level`: what the
    /// tables of one run have in common.
    fn filter_shape(&self, partition: u32, level: u8) -> Option<Shape>;

    /// Where the loaded units of a partition are.
    fn slot(&self, partition: u32) -> &FilterSlot;

    /// Charges units that will be loaded; `false`: there is no room.
    fn charge_units(&self, bytes: u64) -> bool;

    /// Gives back what units took that are free now.
    fn return_units(&self, bytes: u64);

    /// Reads the first `units` units of a partition in the background. Blocks.
    fn read_units(&self, partition: u32, units: u8) -> Result<Units, LoadFailure>;

    /// A page that was read cannot be used.
    fn count_damaged_filter(&self);
}
