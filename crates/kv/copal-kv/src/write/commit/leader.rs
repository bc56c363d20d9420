//! What the leader of a group does in its turn: make room, encode, place, let go, insert.
//!
//! A group is [`GatheredGroup`] when its turn comes, [`EncodedGroup`] when its direct values have places,
//! [`PlacedGroup`] when nothing can come before it any more, and [`InFlight`] while the device writes it.
//! Whoever holds one of them holds what that step owns; the writer and the turn are let go between the last
//! two.
//! Design: docs/design/kv.md#a-write KV-2
//! Invariants
//! - A group takes its sequences when its last frame has its number: sequences have no gaps. Only a device
//!   that fails undoes that, and then nothing is written any more.
//! - A `Deferred` group is inserted at once and logged within 100 ms or 1 MiB, in front of whatever is logged
//!   next. A `Process` group is treated like one where the page-cache log takes a copy of it (`page_cache_log::fit`).
//! - `NoSpace` leaves log, value objects and memtable as they were. A group refused for lack of space or
//!   memory is tried again write by write, so that a delete is not refused because of its neighbour, and a
//!   put is not refused while a flush under way gives back a log.

use super::{
    WriteRequest,
    queue::{CommitTurn, GroupCompletion},
    values::{DirectValues, ValuePlacement},
    writer::LogWriter,
};
use crate::{
    Durability, Error,
    broken::Flaw,
    engine::Engine,
    format::entry::LAST_SEQ,
    memory::budget::{MemoryCharge, MemoryClass as Memory},
    tree::memtable::Memtable,
    write::{
        admission,
        commit::{
            deferred,
            writer::{self, EncodedOps, close_covered, insert},
        },
        page_cache_log::{ReuseAfter, fit},
        reserve::ReservePart,
    },
};
use copal_device::Completion;
use copal_object::{Ack, FramePos, Lsn, ObjectId, Op, ReservedFrame, StoreError, Txn};
use parking_lot::MutexGuard;
use std::sync::Arc;

/// Writes that take as much are worth a look at the caches.
const LARGE_BYTES: u64 = 64 << 10;

/// Writes that go into the log as one group, and what they ask for together.
struct GatheredGroup<'w> {
    writes: &'w mut [WriteRequest],
    durability: Durability,
    /// Of log, at most.
    bytes: usize,
}

impl GatheredGroup<'_> {
    fn of(writes: &mut [WriteRequest]) -> GatheredGroup<'_> {
        let durability = writes.iter().map(|write| write.durability).min();
        GatheredGroup {
            durability: durability.unwrap_or_default(),
            bytes: writes.iter().map(|write| write.log_bytes).sum(),
            writes,
        }
    }

    fn free_space(&self) -> bool {
        self.writes.iter().all(|write| write.frees_space)
    }
}

/// Where a group goes first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GroupRoute {
    /// To the page-cache log; to the log with a later group.
    PageCacheLog,
    /// To the log with a later group.
    Later,
    /// To the log, which acknowledges it so.
    Log(Ack),
}

/// A group as it goes into the log, its direct values with their places.
struct EncodedGroup<'e, 'w> {
    gathered: GatheredGroup<'w>,
    encoded: EncodedOps,
    /// Log bytes in front that were deferred before.
    deferred_bytes: usize,
    values: MutexGuard<'e, DirectValues>,
    placement: ValuePlacement,
    charge: MemoryCharge,
    /// The last sequence before the group.
    given: u64,
    route: GroupRoute,
}

impl EncodedGroup<'_, '_> {
    fn last_seq(&self) -> u64 {
        self.given + u64::from(self.encoded.count)
    }
}

/// A group that has its sequences, and its place in the log or behind what is deferred.
struct PlacedGroup<'w> {
    gathered: GatheredGroup<'w>,
    encoded: EncodedOps,
    charge: MemoryCharge,
    memtable: Arc<Memtable>,
    /// `None`: nothing of it is written now.
    frame: Option<ReservedFrame>,
    first_seq: u64,
    last_seq: u64,
    route: GroupRoute,
}

/// Brings `writes` into log and memtable as one group, where that is possible.
pub(crate) fn lead(engine: &Engine, mut turn: CommitTurn, mut writes: Vec<WriteRequest>) -> Option<InFlight> {
    admission::pace(engine, writes.iter().map(|write| write.user_bytes).sum());
    let mut writer = engine.writes.writer.lock();
    match place_group(engine, &mut writer, GatheredGroup::of(&mut writes)) {
        Ok(placed) => {
            let completing = turn.place(placed.last_seq);
            // From here on the next group may be placed behind this one.
            drop(writer);
            drop(turn);
            launch(engine, placed, completing)
        }
        Err(error) if error.is_no_space() || matches!(error, Error::OverBudget { .. }) => {
            lead_alone(engine, writer, turn, &mut writes);
            None
        }
        Err(error) => {
            drop(writer);
            turn.refuse(error);
            None
        }
    }
}

/// Each write as its own group; one that frees space may use the reserve.
fn lead_alone(
    engine: &Engine,
    mut writer: MutexGuard<'_, LogWriter>,
    turn: CommitTurn,
    writes: &mut [WriteRequest],
) {
    let attempt = |write: &mut WriteRequest, writer: &mut LogWriter| {
        let placed = place_group(engine, writer, GatheredGroup::of(std::slice::from_mut(write)))?;
        let completing = turn.place_part(placed.last_seq);
        if let Some(in_flight) = launch(engine, placed, completing) {
            in_flight.wait();
        }
        engine.writes.queue.drain()
    };
    let mut results = Vec::with_capacity(writes.len());
    for write in writes {
        let is_full = |result: &Result<(), Error>| result.as_ref().is_err_and(Error::is_no_space);
        let mut result = attempt(write, &mut writer);
        if write.frees_space && is_full(&result) {
            let in_reserve = |write: &mut WriteRequest, writer: &mut LogWriter| {
                let _opened = engine.writes.reserve.open(&engine.objects, ReservePart::Everything);
                attempt(write, writer)
            };
            // Each takes a page of log and more: what they take of the reserve comes back with the log.
            if admission::log_is_long_for_reserve(engine, &writer) {
                admission::begin_flush_for_space(engine, &mut writer);
                admission::wait_for_space(engine, &mut writer);
            }
            result = in_reserve(write, &mut writer);
            if is_full(&result) {
                // A flush and a step of a merge give back what they took when they end.
                drop(engine.compactor.stand_still());
                result = in_reserve(write, &mut writer);
            }
            engine.signal.wake_workers();
        }
        if !write.frees_space && is_full(&result) {
            admission::begin_flush_for_space(engine, &mut writer);
            // It may be full for the moment only, while a flush is under way.
            while is_full(&result) && admission::wait_for_space(engine, &mut writer) {
                result = attempt(write, &mut writer);
            }
            if is_full(&result) && admission::has_room_when_still(engine, write.room_bytes) {
                result = attempt(write, &mut writer);
            }
            if is_full(&result) {
                engine.writes.pressure.begin();
                engine.signal.wake_workers();
            }
        }
        results.push(result);
    }
    drop(writer);
    turn.answer(results);
}

/// Makes room for a group and places it.
/// # Errors
/// `NoSpace`, `OverBudget`: nothing happened. `Poisoned`, `Closed`, `NumbersUsedUp`.
fn place_group<'w>(
    engine: &Engine,
    writer: &mut LogWriter,
    group: GatheredGroup<'w>,
) -> Result<PlacedGroup<'w>, Error> {
    let bytes = group.writes.iter().map(|write| write.room_bytes).sum();
    admission::make_memory(engine, writer, bytes, group.free_space())?;
    let encoded = encode_group(engine, writer, group)?;
    place(engine, writer, encoded)
}

/// Encodes a group behind what is deferred, and finds places for its direct values.
fn encode_group<'e, 'w>(
    engine: &'e Engine,
    writer: &mut LogWriter,
    gathered: GatheredGroup<'w>,
) -> Result<EncodedGroup<'e, 'w>, Error> {
    engine.poison.check()?;
    // While the reserve is open or spent, its space is not for writes that only add.
    if !gathered.free_space() {
        let bytes = gathered.writes.iter().map(|write| write.room_bytes).sum();
        let has_reserve = match gathered.writes.iter().any(WriteRequest::is_large) {
            true => admission::has_reserve_beside_large(engine, bytes),
            false => admission::has_reserve_beside(engine, bytes),
        };
        if !has_reserve {
            return Err(Error::NoSpace);
        }
    }
    let charge = engine.budget.charge(Memory::Log, 3 * gathered.bytes as u64);
    let given = engine.snapshots.allocated_seq();
    let count: u64 = gathered.writes.iter().map(|write| write.ops.len() as u64).sum();
    if given + count > LAST_SEQ {
        return Err(Error::NumbersUsedUp);
    }
    let route = route(engine, writer, &gathered, given)?;
    let deferred_bytes = writer.deferred.ops.len();
    let mut values = engine.writes.direct_values.lock();
    let mut placement = ValuePlacement::default();
    let log = std::mem::take(&mut writer.deferred.ops);
    let new_object = || engine.new_object();
    let encoded = writer::encode(log, &mut values, &mut placement, gathered.writes, given + 1, new_object);
    Ok(EncodedGroup { gathered, encoded, deferred_bytes, values, placement, charge, given, route })
}

fn route(
    engine: &Engine,
    writer: &mut LogWriter,
    group: &GatheredGroup<'_>,
    given: u64,
) -> Result<GroupRoute, Error> {
    Ok(match group.durability {
        Durability::Device => GroupRoute::Log(Ack::Durable),
        Durability::Process
            if fit::fits_page_cache_log(engine, writer, group.writes, group.bytes, given)? =>
        {
            GroupRoute::PageCacheLog
        }
        Durability::Process => GroupRoute::Log(Ack::Written),
        // Nobody waits for the log of deferred writes: once there is enough of it, it is on its way.
        Durability::Deferred
            if writer.deferred.ops.len() + group.bytes > deferred::deferred_bytes(engine) =>
        {
            GroupRoute::Log(Ack::Ordered)
        }
        Durability::Deferred => GroupRoute::Later,
    })
}

/// Gives a group its sequences and its place. The order of these steps is what the next leader relies on.
fn place<'w>(
    engine: &Engine,
    writer: &mut LogWriter,
    mut group: EncodedGroup<'_, 'w>,
) -> Result<PlacedGroup<'w>, Error> {
    let memtable = engine.super_version().active.clone();
    let last_seq = group.last_seq();
    let frame = match reserve_place(engine, writer, &mut group) {
        Ok(frame) => frame,
        Err(error) => {
            writer.deferred.ops = group.encoded.without_own(group.deferred_bytes);
            return Err(take_back(engine, group.values, group.placement, error));
        }
    };
    engine.snapshots.allocate_up_to(last_seq);
    for meta in group.placement.touched.into_values() {
        memtable.note_value(meta);
    }
    close_covered(&mut group.values, group.gathered.writes);
    Ok(PlacedGroup {
        gathered: group.gathered,
        encoded: group.encoded,
        charge: group.charge,
        memtable,
        frame,
        first_seq: group.given + 1,
        last_seq,
        route: group.route,
    })
}

/// Appends the values of a group, and reserves the last of its frames or defers it.
fn reserve_place(
    engine: &Engine,
    writer: &mut LogWriter,
    group: &mut EncodedGroup<'_, '_>,
) -> Result<Option<ReservedFrame>, StoreError> {
    let after = append_values(engine, &mut group.placement)?;
    let count = group.encoded.count;
    if group.route == GroupRoute::PageCacheLog && !engine.broken(Flaw::PageCacheLogPassedBy) {
        writer.copy_to_page_cache_log(&group.encoded.log, count, group.given)?;
    }
    let GroupRoute::Log(ack) = group.route else {
        let log = std::mem::take(&mut group.encoded.log);
        deferred::defer(engine, &mut writer.deferred, log, count, after);
        return Ok(None);
    };
    let encoded = (&group.encoded.log[..], count);
    let frame = writer.reserve_group(&engine.objects, group.given, encoded, after, ack)?;
    writer.log.placed(frame.at(), ack);
    writer.page_cache_logged(match ack {
        Ack::Ordered => ReuseAfter::NextAckedGroup,
        Ack::Written | Ack::Durable => ReuseAfter::Group(group.last_seq()),
    });
    deferred::clear_deferred(engine, &mut writer.deferred, std::mem::take(&mut group.encoded.log));
    Ok(Some(frame))
}

/// Writes a group and inserts it: its operations go into the memtable as they are, not as copies that
/// would count references in allocations of their own. `None`: the group is as safe as it was promised to
/// be already.
fn launch(engine: &Engine, group: PlacedGroup<'_>, completing: GroupCompletion) -> Option<InFlight> {
    let completion = group.frame.map(ReservedFrame::write);
    let writes = group.gathered.writes;
    insert(&group.memtable, &engine.caches.rows, writes, group.encoded, group.first_seq);
    engine.counters.count_kill_safe(group.route == GroupRoute::PageCacheLog);
    let bytes = writes.iter().map(|write| write.user_bytes).sum();
    engine.counters.wrote(writes.len() as u64, bytes);
    match completion {
        None => {
            completing.complete(Ok(()));
            None
        }
        Some(completion) => Some(InFlight::new(completing, completion, group.charge)),
    }
}

/// Appends the values, ordered before the log frames; returns the commit the frames come after.
fn append_values(engine: &Engine, placement: &mut ValuePlacement) -> Result<Option<Lsn>, StoreError> {
    let mut after = None;
    for ops in std::mem::take(&mut placement.txns) {
        after = Some(engine.objects.commit(Txn::new().ops(ops), Ack::Ordered).wait()?);
    }
    Ok(after.filter(|_| !engine.broken(Flaw::LogBeforeValues)))
}

/// Cuts off what a failed group appended; turns the failure into what the writer is told.
fn take_back(
    engine: &Engine,
    mut values: MutexGuard<'_, DirectValues>,
    placement: ValuePlacement,
    error: StoreError,
) -> Error {
    let error = engine.poison.failed_write(error);
    let mut ops = values.undo(placement);
    ops.retain(|op| match op {
        Op::Truncate { id, len } => engine.objects.stat(*id).is_some_and(|stat| stat.len > *len),
        Op::Delete { id } => engine.objects.stat(*id).is_some(),
        _ => true,
    });
    if error.is_no_space() && !ops.is_empty() {
        let cut = ops.iter().filter_map(|op| match op {
            Op::Truncate { id, .. } => Some(*id),
            _ => None,
        });
        let cut: Vec<ObjectId> = cut.collect();
        let undone = engine.objects.commit(Txn::new().ops(ops), Ack::Ordered).wait();
        if let Err(StoreError::NoSpace { .. }) = undone {
            // Nobody names the bytes, nothing is appended behind them, and the next opening cuts them
            // off.
            cut.into_iter().for_each(|object| values.close(object));
        } else if let Err(second) = undone {
            // The lengths are no longer known to be those of the open objects.
            engine.poison.set_by(&Error::Poisoned {
                reason: format!("could not take back a value: {second}"),
                host_full: second.is_host_full(),
            });
        }
    }
    error
}

/// Passes a batch through the log.
pub(crate) fn commit(engine: &Engine, write: WriteRequest) -> Result<(), Error> {
    engine.check_writable()?;
    let committed = engine.writes.queue.commit(write, |turn, writes| {
        if let Some(in_flight) = lead(engine, turn, writes) {
            in_flight.wait();
        }
    });
    engine.run_inline_if_asked();
    committed
}

/// Whether a store that keeps little else in memory has room for a batch.
/// # Errors
/// `BatchTooLarge`.
pub(crate) fn check_size(engine: &Engine, write: &WriteRequest) -> Result<(), Error> {
    let (bytes, limit) = (write.room_bytes, engine.budget.batch_bytes());
    if bytes > limit {
        let total_bytes = engine.budget.total_bytes();
        return Err(Error::BatchTooLarge { bytes, limit, total_bytes });
    }
    Ok(())
}

/// Passes a batch through the log. Caches give way before a large one goes into log and memtable.
pub(crate) fn commit_with_room(engine: &Engine, write: WriteRequest) -> Result<(), Error> {
    let bytes = write.room_bytes;
    if bytes < LARGE_BYTES {
        return commit(engine, write);
    }
    let _room = engine.budget.charge(Memory::Log, bytes);
    let committed = commit(engine, write);
    engine.budget.count_memtables();
    committed
}

/// See the module.
#[must_use = "the group takes effect when it is waited for"]
pub(crate) struct InFlight {
    completing: GroupCompletion,
    completion: Completion<Result<FramePos, StoreError>>,
    /// Operations, frames, and their copy on the way to the device: until the answer, which for deferred
    /// writes is there at once and leaves the copy to the object layer's own limit.
    charge: MemoryCharge,
}

impl InFlight {
    pub(super) fn new(
        completing: GroupCompletion,
        completion: Completion<Result<FramePos, StoreError>>,
        charge: MemoryCharge,
    ) -> InFlight {
        InFlight { completing, completion, charge }
    }

    /// Waits until the group is as safe as it was promised to be, or has failed.
    pub(crate) fn wait(self) {
        let result = self.completion.wait();
        drop(self.charge);
        self.completing.complete(result.map(drop));
    }
}
