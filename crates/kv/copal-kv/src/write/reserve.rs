//! Space reserve: space kept free so that a full store can still delete, flush and merge.
//!
//! The reserve has two parts:
//! - a share of the store, a fourth of which is only for deletes and essential writes;
//! - the space that the flush of all memtables will take. A write goes to the log first and to tables and
//!   value objects later, and only then is the log freed.
//!
//! While these reservations exist, the object layer refuses all other writes. Deletes, flushes and merges
//! release them for the length of one operation. Until the reserve is complete again, puts are refused here.
//! Invariants
//! - While the reserve is open, only its users can take its bytes.
//! - The share follows the size of the store, so an opening asks for no more than the previous session kept.

use copal_object::{SpaceReservation, Store, StoreSpace, SystemLoan};
use parking_lot::Mutex;

/// Step by which the part for flushes grows, so that few writes ask the object layer.
const STEP_BYTES: u64 = 256 << 10;

/// Space reserve of one store; see the module.
pub(crate) struct SpaceReserve {
    table_bytes: u64,
    /// Divisor of the share: a store that gave space back to a full file system keeps less. 0: nothing is
    /// kept.
    divisor: u64,
    state: Mutex<ReserveState>,
}

/// Part of the reserve that an operation may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReservePart {
    /// The part of flushes and merges, which return their space when they end.
    Merges,
    /// The whole reserve, and the space that the object layer keeps for itself. For deletes, essential
    /// writes, and work that these wait for: a store filled under a smaller reserve has no other space.
    Everything,
}

#[derive(Default)]
struct ReserveState {
    /// The part that flushes and merges do not get.
    last: Option<SpaceReservation>,
    share: Option<SpaceReservation>,
    flushes: Option<SpaceReservation>,
    /// Space that large writes leave to small ones.
    for_small: Option<SpaceReservation>,
    /// Number of operations that use the reserve now.
    users: u32,
    /// The session has ended: nothing is kept any more.
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
        held.map(SpaceReservation::bytes).sum()
    }
}

/// Right to use the reserve, until this is dropped.
pub(crate) struct OpenReserve<'a> {
    reserve: &'a SpaceReserve,
    objects: &'a Store,
    loan: Option<SystemLoan>,
}

impl SpaceReserve {
    /// Keeps max(5 %, four tables) of `objects`, at most a sixteenth of it.
    ///
    /// A store that gave free space back to a file system that is now full has hollow space, and keeps a
    /// quarter of the share. That is enough to delete item by item. Any other store had the whole share once, and
    /// has it again when its users end.
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

    /// Keeps nothing: for stores that are only read.
    pub(crate) fn none() -> SpaceReserve {
        SpaceReserve { table_bytes: 0, divisor: 0, state: Mutex::default() }
    }

    fn share_of(&self, space: &StoreSpace) -> u64 {
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

    /// Bytes that writes may still take, without the share that the store will keep at its largest size.
    /// `None`: the store may grow without a limit of its own, so only the host limits it.
    pub(crate) fn room_beside(&self, objects: &Store) -> Option<u64> {
        let room = objects.room();
        if room.is_open_ended {
            return None;
        }
        let held = self.state.lock().held_share();
        let grows_by = self.share_of_size(room.of_bytes).saturating_sub(held);
        Some(room.bytes.saturating_sub(grows_by))
    }

    /// Releases the space for the caller's next write.
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

    /// Releases the space for good: the engine is closed, and the objects may have another owner.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        state.let_go(ReservePart::Everything);
    }

    /// Like [`SpaceReserve::refill`], and keeps an eighth of the share more: for a large write. A store
    /// filled by large writes can then still record their results in small ones.
    pub(crate) fn refill_for_large(&self, objects: &Store, flush_bytes: u64) -> bool {
        if !self.refill(objects, flush_bytes) {
            return false;
        }
        let mut state = self.state.lock();
        let bytes = self.share_of(&objects.space()) / 8;
        self.divisor == 0 || keep(objects, &mut state.for_small, bytes, 0)
    }

    /// Takes the space again if it has no user, and `flush_bytes` for flushes; `true` when all of it is
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

/// Keeps `bytes`, or up to `slack` more, in `held`; returns whether that succeeded.
fn keep(objects: &Store, held: &mut Option<SpaceReservation>, bytes: u64, slack: u64) -> bool {
    let has = held.as_ref().map_or(0, SpaceReservation::bytes);
    if bytes <= has && has <= bytes + slack {
        return true;
    }
    // If there is no more space, the present reservation stays.
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

    /// Symptom: no test would have noticed merges that take the part for deletes, deletes that may not use
    /// the object layer's own space, or a reserve without space for flushes.
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
