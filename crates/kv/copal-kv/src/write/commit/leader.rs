//! The leader of a commit group: makes room, encodes, reserves a place in the log, releases the lock,
//! inserts.
//!
//! A group is a [`GatheredGroup`] when its turn comes, an [`EncodedGroup`] when its direct values have
//! places, and a [`PlacedGroup`] when no other group can get a place before it. It is [`InFlight`] while the
//! device writes it. Each of these types owns the state of its step. The leader releases the writer lock and
//! the turn between the last two.
//! Design: docs/design/kv.md#a-write KV-2
//! Invariants
//! - A group takes its sequences when its last frame has its number, so sequences have no gaps. Only a device
//!   failure breaks this, and then nothing is written any more.
//! - A `Deferred` group is inserted at once and logged within 100 ms or 1 MiB, before any later group. A
//!   `Process` group is treated the same if the page-cache log takes a copy of it (`page_cache_log::fit`).
//! - `NoSpace` leaves log, value objects and memtable unchanged. A group refused for lack of space or memory
//!   is retried write by write. So a delete is not refused because of its neighbour, nor a put while a
//!   running flush frees a log.

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

/// Size of a write from which caches are evicted for it in advance.
const LARGE_BYTES: u64 = 64 << 10;

/// Writes that are logged as one group.
struct GatheredGroup<'w> {
    writes: &'w mut [WriteRequest],
    durability: Durability,
    /// Most log bytes.
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

/// First destination of a group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GroupRoute {
    /// The page-cache log; later the log, with another group.
    PageCacheLog,
    /// Only the memtable; later the log, with another group.
    Later,
    /// The log, acknowledged with this durability.
    Log(Ack),
}

/// A group encoded for the log, with places for its direct values.
struct EncodedGroup<'e, 'w> {
    gathered: GatheredGroup<'w>,
    encoded: EncodedOps,
    /// Log bytes of earlier deferred groups at the beginning.
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

/// A group with its sequences, and its place in the log or after the deferred groups.
struct PlacedGroup<'w> {
    gathered: GatheredGroup<'w>,
    encoded: EncodedOps,
    charge: MemoryCharge,
    memtable: Arc<Memtable>,
    /// `None`: no frame is written now.
    frame: Option<ReservedFrame>,
    first_seq: u64,
    last_seq: u64,
    route: GroupRoute,
}

/// Logs and inserts `writes` as one group, if possible.
pub(crate) fn lead(engine: &Engine, mut turn: CommitTurn, mut writes: Vec<WriteRequest>) -> Option<InFlight> {
    admission::pace(engine, writes.iter().map(|write| write.user_bytes).sum());
    let mut writer = engine.writes.writer.lock();
    match place_group(engine, &mut writer, GatheredGroup::of(&mut writes)) {
        Ok(placed) => {
            let completing = turn.place(placed.last_seq);
            // From here on the next group may get its place.
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

/// Commits each write as its own group; one that frees space may use the reserve.
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
            // Each such write takes at least a page of log. Its space returns to the reserve when the log is
            // freed.
            if admission::log_is_long_for_reserve(engine, &writer) {
                admission::begin_flush_for_space(engine, &mut writer);
                admission::wait_for_space(engine, &mut writer);
            }
            result = in_reserve(write, &mut writer);
            if is_full(&result) {
                // Waits, since a flush and a merge step return their space when they end.
                drop(engine.compactor.stand_still());
                result = in_reserve(write, &mut writer);
            }
            engine.signal.wake_workers();
        }
        if !write.frees_space && is_full(&result) {
            admission::begin_flush_for_space(engine, &mut writer);
            // The store may be full only until the running flush ends.
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

/// Makes room for a group and reserves its place.
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

/// Encodes a group after the deferred ones, and finds places for its direct values.
fn encode_group<'e, 'w>(
    engine: &'e Engine,
    writer: &mut LogWriter,
    gathered: GatheredGroup<'w>,
) -> Result<EncodedGroup<'e, 'w>, Error> {
    engine.poison.check()?;
    // While the reserve is open or incomplete, its space is not for puts.
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
        // No writer waits for the log of deferred writes; enough of them are logged at once.
        Durability::Deferred
            if writer.deferred.ops.len() + group.bytes > deferred::deferred_bytes(engine) =>
        {
            GroupRoute::Log(Ack::Ordered)
        }
        Durability::Deferred => GroupRoute::Later,
    })
}

/// Gives a group its sequences and its place. The next leader relies on the order of these steps.
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

/// Appends the values of a group, and defers the group or reserves its last frame.
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

/// Writes a group and inserts it. The operations move into the memtable; copies would each allocate a
/// reference count. `None`: the promised durability is reached already.
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

/// Appends the values, ordered before the log frames; returns the commit that the frames must follow.
fn append_values(engine: &Engine, placement: &mut ValuePlacement) -> Result<Option<Lsn>, StoreError> {
    let mut after = None;
    for ops in std::mem::take(&mut placement.txns) {
        after = Some(engine.objects.commit(Txn::new().ops(ops), Ack::Ordered).wait()?);
    }
    Ok(after.filter(|_| !engine.broken(Flaw::LogBeforeValues)))
}

/// Truncates the values that a failed group appended; returns the error for its writers.
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
            // No pointer names the bytes, and the closed object gets no further ones, so the next opening
            // truncates it.
            cut.into_iter().for_each(|object| values.close(object));
        } else if let Err(second) = undone {
            // The lengths of the open objects are uncertain now.
            engine.poison.set_by(&Error::Poisoned {
                reason: format!("could not truncate the values of a failed commit: {second}"),
                host_full: second.is_host_full(),
            });
        }
    }
    error
}

/// Commits a batch. Blocks until its durability is reached.
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

/// Checks that a store that keeps little else in memory has room for the batch.
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

/// Commits a batch, after evicting caches for a large one. Blocks until its durability is reached.
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

/// A group that the device is writing; see the module.
#[must_use = "the group takes effect when it is waited for"]
pub(crate) struct InFlight {
    completing: GroupCompletion,
    completion: Completion<Result<FramePos, StoreError>>,
    /// Memory of the operations, their frames and the copy for the device, until the completion. Deferred
    /// writes complete at once, and leave the copy to the object layer's own limit.
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

    /// Waits until the group has reached its durability, or has failed.
    pub(crate) fn wait(self) {
        let result = self.completion.wait();
        drop(self.charge);
        self.completing.complete(result.map(drop));
    }
}
