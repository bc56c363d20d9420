//! Space kept back so that a full store can still delete, flush and merge.
//!
//! A share of the store, of which a fourth is for deletes and essential writes alone, and what the flush of
//! all memtables will take: a write goes into the log now and into tables and value objects later, and the
//! log goes only then. The object layer refuses everyone else's writes while the reservations stand. Deletes,
//! flushes and merges let them go for the length of one operation; until they are whole again, writes that
//! only add are refused here.
//! Invariants
//! - Nobody but their users gets at the bytes while the reserve is open.
//! - The share follows the size of the store, so an opening asks for no more than the session before it kept.

use copal_object::{Reservation, Space, Store, SystemLoan};
use parking_lot::Mutex;

/// Steps in which the part for flushes grows: not each write asks the object layer.
const STEP_BYTES: u64 = 256 << 10;

/// See the module.
pub(crate) struct SpaceReserve {
    table_bytes: u64,
    /// The share is divided by it: a store that gave space back to a full file system keeps less. 0: nothing
    /// is kept.
    divisor: u64,
    state: Mutex<ReserveState>,
}

/// What part of the reserve an operation may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReservePart {
    /// That of flushes and merges: what they take they give back when they end.
    Merges,
    /// All of it, and what the object layer keeps for itself: for a delete, or a write that is essential, and
    /// what these wait for. A store that was filled by who kept less has nothing else.
    Everything,
}

#[derive(Default)]
struct ReserveState {
    /// The part that flushes and merges do not get.
    last: Option<Reservation>,
    share: Option<Reservation>,
    flushes: Option<Reservation>,
    /// What large writes leave to small ones.
    for_small: Option<Reservation>,
    /// Operations that use the space now.
    users: u32,
    /// Nothing is kept any more.
    ended: bool,
}

impl ReserveState {
    fn let_go(&mut self, part: ReservePart) {
        self.share = None;
        self.flushes = None;
        self.for_small = None;
        if part == ReservePart::Everything {
            self.last = None;
        }
    }

    fn held_share(&self) -> u64 {
        let held = [&self.last, &self.share].into_iter().flatten();
        held.map(Reservation::bytes).sum()
    }
}

/// The reserve is open to its owner until this is dropped.
pub(crate) struct OpenReserve<'a> {
    reserve: &'a SpaceReserve,
    objects: &'a Store,
    loan: Option<SystemLoan>,
}

impl SpaceReserve {
    /// Keeps max(5 %, four tables) of `objects`, at most a sixteenth of it. A store that gave what was free
    /// back to a file system that is full by now (some of it is still hollow) has a quarter of that: enough
    /// to delete, one thing after another. Any other had all of it once, and has it again when what uses it
    /// ends.
    pub(crate) fn new(objects: &Store, table_bytes: u64) -> SpaceReserve {
        let reserve = |divisor| SpaceReserve { table_bytes, divisor, state: Mutex::default() };
        let whole = reserve(1);
        if whole.refill(objects, 0) || objects.space().hollow_bytes == 0 {
            return whole;
        }
        let part = reserve(4);
        part.refill(objects, 0);
        part
    }

    /// No space is kept: for stores that are only read.
    pub(crate) fn none() -> SpaceReserve {
        SpaceReserve { table_bytes: 0, divisor: 0, state: Mutex::default() }
    }

    fn share_of(&self, space: &Space) -> u64 {
        self.share_of_size(space.size_bytes - space.hollow_bytes)
    }

    fn share_of_size(&self, size: u64) -> u64 {
        let share = (size / 20).max(4 * self.table_bytes).min(size / 16);
        share.checked_div(self.divisor).unwrap_or(0)
    }

    /// Bytes of the share.
    pub(crate) fn share_bytes(&self, objects: &Store) -> u64 {
        self.share_of(&objects.space())
    }

    /// Bytes that writes may still take; the share of a store at its largest size is subtracted. `None`: the
    /// store grows without a limit of its own, so only the host bounds it.
    pub(crate) fn room_beside(&self, objects: &Store) -> Option<u64> {
        let room = objects.room();
        if room.is_open_ended {
            return None;
        }
        let held = self.state.lock().held_share();
        let grows_by = self.share_of_size(room.of_bytes).saturating_sub(held);
        Some(room.bytes.saturating_sub(grows_by))
    }

    /// Lets the space go, so that the caller's next write may use it.
    pub(crate) fn open<'a>(&'a self, objects: &'a Store, part: ReservePart) -> OpenReserve<'a> {
        let mut state = self.state.lock();
        state.users += 1;
        state.let_go(part);
        OpenReserve {
            reserve: self,
            objects,
            loan: (part == ReservePart::Everything).then(|| objects.lend_system_space()),
        }
    }

    /// Lets the space go for good: the engine is closed, and the objects are another's.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        state.let_go(ReservePart::Everything);
    }

    /// As [`SpaceReserve::refill`], and keeps an eighth of the share more: for a large write. Whoever filled a
    /// store with large ones still notes what became of them.
    pub(crate) fn refill_for_large(&self, objects: &Store, flush_bytes: u64) -> bool {
        if !self.refill(objects, flush_bytes) {
            return false;
        }
        let mut state = self.state.lock();
        let bytes = self.share_of(&objects.space()) / 8;
        self.divisor == 0 || keep(objects, &mut state.for_small, bytes, 0)
    }

    /// Takes the space again if nobody uses it, and `flush_bytes` for flushes; `true` when all of it is
    /// there.
    pub(crate) fn refill(&self, objects: &Store, flush_bytes: u64) -> bool {
        if self.divisor == 0 {
            return true;
        }
        let mut state = self.state.lock();
        if state.users > 0 || state.ended {
            return false;
        }
        state.for_small = None;
        let share = self.share_of(&objects.space());
        let last = share / 4;
        let flushes = flush_bytes.next_multiple_of(STEP_BYTES);
        keep(objects, &mut state.last, last, last / 8)
            && keep(objects, &mut state.share, share - last, share / 8)
            && keep(objects, &mut state.flushes, flushes, 4 * STEP_BYTES)
    }
}

/// Keeps `bytes`, or up to `slack` more, in `held`; whether it could.
fn keep(objects: &Store, held: &mut Option<Reservation>, bytes: u64, slack: u64) -> bool {
    let has = held.as_ref().map_or(0, Reservation::bytes);
    if bytes <= has && has <= bytes + slack {
        return true;
    }
    // What is kept stays kept where there is no more.
    let more = bytes.saturating_sub(has);
    if more > 0 && objects.reserve(more).is_err() {
        return false;
    }
    *held = None;
    *held = objects.reserve(bytes).ok();
    held.is_some()
}

impl Drop for OpenReserve<'_> {
    fn drop(&mut self) {
        self.loan = None;
        self.reserve.state.lock().users -= 1;
        self.reserve.refill(self.objects, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_device::{Device, Image, MemoryDevice};
    use copal_object::{MkfsOptions, OpenOptions};
    use std::sync::Arc;

    const SIZE: u64 = 64 << 20;

    /// Symptom: no test would have noticed merges that take what is for deletes alone, deletes that may not
    /// use what the object layer keeps for itself, or a reserve without room for flushes.
    #[test]
    fn merges_leave_a_fourth_to_deletes_and_these_may_use_all_there_is() {
        let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(SIZE), SIZE);
        Store::mkfs(&device, &MkfsOptions::default()).unwrap();
        let (objects, _) = Store::open(device, &OpenOptions::default()).unwrap();
        let all = || objects.space().reserved_bytes;
        let of_objects = all();
        let kept = || all().saturating_sub(of_objects);
        let reserve = SpaceReserve::new(&objects, 64 << 10);
        let share = reserve.share_bytes(&objects);
        assert!(share >= SIZE / 20 && kept() >= share);
        let merging = reserve.open(&objects, ReservePart::Merges);
        assert!(kept() >= share / 4 && kept() < share / 2, "{} of {share}", kept());
        drop(merging);
        assert!(kept() >= share);
        let deleting = reserve.open(&objects, ReservePart::Everything);
        assert!(all() < of_objects / 2, "{} of {of_objects}", all());
        drop(deleting);
        assert!(reserve.refill(&objects, 4 << 20));
        assert!(kept() >= share + (4 << 20));
        assert!(reserve.refill_for_large(&objects, 0));
        assert!(kept() >= share + share / 8);
        reserve.end();
        assert_eq!(all(), of_objects);
    }
}
