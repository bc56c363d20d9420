//! Space kept back so that a full store can still delete, flush and merge.
//!
//! The object layer refuses everyone else's writes while the reservation stands. Deletes, flushes and merges
//! let it go for the length of one operation; until it is whole again, writes that only add are refused here.
//! Invariant: nobody but their users gets at the bytes while the reserve is open.

use copal_object::{Reservation, Store};
use parking_lot::Mutex;

/// See the module.
pub(crate) struct Reserve {
    bytes: u64,
    state: Mutex<ReserveState>,
}

#[derive(Default)]
struct ReserveState {
    held: Option<Reservation>,
    /// Operations that use the space now.
    users: u32,
    /// Nothing is kept any more.
    ended: bool,
}

/// The reserve is open to its owner until this is dropped.
pub(crate) struct Opened<'a> {
    reserve: &'a Reserve,
    objects: &'a Store,
}

impl Reserve {
    /// Keeps max(5 %, four tables) of `objects`, at most an eighth of it. A store that gave what was free back to a file
    /// system that is full by now (some of it is still hollow) has a quarter of that: enough to delete, one thing after
    /// another. Any other had all of it once, and has it again when what uses it ends.
    pub(crate) fn new(objects: &Store, table_bytes: u64) -> Reserve {
        let space = objects.space();
        let size = space.size_bytes - space.hollow_bytes;
        let bytes = (size / 20).max(4 * table_bytes).min(size / 8);
        let reserve = |bytes| Reserve {
            bytes,
            state: Mutex::default(),
        };
        let whole = reserve(bytes);
        if whole.refill(objects) || objects.space().hollow_bytes == 0 {
            return whole;
        }
        let part = reserve(bytes / 4);
        part.refill(objects);
        part
    }

    /// No space is kept: for stores that are only read.
    pub(crate) fn none() -> Reserve {
        Reserve {
            bytes: 0,
            state: Mutex::default(),
        }
    }

    /// Lets the space go, so that the caller's next write may use it.
    pub(crate) fn open<'a>(&'a self, objects: &'a Store) -> Opened<'a> {
        let mut state = self.state.lock();
        state.users += 1;
        state.held = None;
        Opened {
            reserve: self,
            objects,
        }
    }

    /// Lets the space go for good: the engine is closed, and the objects are another's.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        state.held = None;
    }

    /// Takes the space again if nobody uses it; `true` when it is there.
    pub(crate) fn refill(&self, objects: &Store) -> bool {
        let mut state = self.state.lock();
        if state.held.is_none() && state.users == 0 && self.bytes > 0 && !state.ended {
            state.held = objects.reserve(self.bytes).ok();
        }
        state.held.is_some() || self.bytes == 0
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.reserve.state.lock().users -= 1;
        self.reserve.refill(self.objects);
    }
}
