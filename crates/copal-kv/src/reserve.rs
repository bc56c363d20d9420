//! Space kept back so that a full store can still delete, flush and merge.
//!
//! The object layer refuses everyone else's writes while the reservation stands. Deletes, flushes and
//! merges let it go for the length of one operation and take it again.

use copal_object::{Reservation, Store};
use parking_lot::Mutex;

/// See the module.
pub(crate) struct Reserve {
    bytes: u64,
    held: Mutex<Option<Reservation>>,
}

impl Reserve {
    /// Keeps max(5 %, four tables) of `objects`, at most an eighth of it.
    pub(crate) fn new(objects: &Store, table_bytes: u64) -> Reserve {
        let size = objects.space().size_bytes;
        let bytes = (size / 20).max(4 * table_bytes).min(size / 8);
        let reserve = Reserve {
            bytes,
            held: Mutex::new(None),
        };
        reserve.refill(objects);
        reserve
    }

    /// No space is kept: for stores that are only read.
    pub(crate) fn none() -> Reserve {
        Reserve {
            bytes: 0,
            held: Mutex::new(None),
        }
    }

    /// Takes the reservation again after it was used; half of it when the whole is not there.
    pub(crate) fn refill(&self, objects: &Store) {
        let mut held = self.held.lock();
        if held.is_some() || self.bytes == 0 {
            return;
        }
        *held = objects
            .reserve(self.bytes)
            .or_else(|_| objects.reserve(self.bytes / 2))
            .ok();
    }

    /// Lets the space go, so that the caller's next write may use it.
    pub(crate) fn open(&self) {
        *self.held.lock() = None;
    }
}
