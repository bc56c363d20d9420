//! The loaded units of one partition, swapped as a whole while others probe them.
//!
//! Invariants
//! - A probe sees the units from before a swap or those from after it, never a mixture, and takes no lock.
//! - [`UnitSlot::swap`] returns only when the last probe of the old units has ended: their memory is free
//!   then, and what was charged for it may be given to others. A probe lasts nanoseconds and does no I/O.
//!
//! The pointer is an `arc_swap`: no unsafe code here, and unlike with epochs memory is free at a known
//! moment, which an account in bytes needs. The model checker runs this file on locks of its own (`model`).

use super::sync::{Arc, Cell, Number, yield_now};

/// Number of a partition among all that share a filter memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PartitionNumber(pub(crate) u32);

const NONE: u32 = u32::MAX;

/// Units of one partition, if there are any.
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
    /// Asks the units; `None`: there are none.
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

    /// The number it is known by; `None`: it has no part in the adjusting.
    pub(crate) fn number(&self) -> Option<PartitionNumber> {
        let number = self.number.get();
        (number != NONE).then_some(PartitionNumber(number))
    }

    pub(crate) fn set_number(&self, number: Option<PartitionNumber>) {
        self.number.set(number.map_or(NONE, |number| number.0));
    }
}
