//! Slot of one partition's loaded units: they are replaced as a whole while other threads probe them.
//!
//! Invariants
//! - A probe takes no lock and sees the units from before a swap or from after it, never a mixture.
//! - [`UnitSlot::swap`] returns only after the last probe of the old units. Their memory is free then, so
//!   their charge may be reused. A probe lasts nanoseconds and does no I/O.
//!
//! The pointer is an `arc_swap`, so there is no unsafe code here. Unlike epochs, it frees memory at a known
//! moment, which accounts in bytes need. The model checker runs this file with its own locks (`model`).

use super::sync::{Arc, Cell, Number, yield_now};

/// Number of a partition among all that share a filter memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PartitionNumber(pub(crate) u32);

const NONE: u32 = u32::MAX;

/// Units of one partition, if any are loaded.
pub(crate) struct UnitSlot<U> {
    number: Number,
    units: Cell<U>,
}

impl<U> Default for UnitSlot<U> {
    fn default() -> UnitSlot<U> {
        UnitSlot { number: Number::new(NONE), units: Cell::default() }
    }
}

impl<U> UnitSlot<U> {
    /// Calls `ask` with the units; `None`: none are loaded.
    pub(crate) fn ask<T>(&self, ask: impl FnOnce(&U) -> T) -> Option<T> {
        self.units.with(|units| units.map(ask))
    }

    /// Replaces the units. Waits for the probes of the old ones.
    pub(crate) fn swap(&self, units: Option<U>) {
        if let Some(old) = self.units.swap(units.map(Arc::new)) {
            while Arc::strong_count(&old) > 1 {
                yield_now();
            }
        }
    }

    /// The partition's number; `None`: it is not registered.
    pub(crate) fn number(&self) -> Option<PartitionNumber> {
        let number = self.number.get();
        (number != NONE).then_some(PartitionNumber(number))
    }

    pub(crate) fn set_number(&self, number: Option<PartitionNumber>) {
        self.number.set(number.map_or(NONE, |number| number.0));
    }
}
