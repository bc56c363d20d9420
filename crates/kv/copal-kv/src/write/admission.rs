//! Room for the next group: a memtable that is not full, and the log that goes with it.
//!
//! Invariants
//! - A memtable is frozen when everything in it is visible: nothing is on its way into it.
//! - A log ends when everything in it is durable.
//! - What tables keep in memory stops writes that add to it, and not those that delete, nor flushes: these
//!   make it less.
//! - No memtable is too large to be frozen: room is asked for by what is written, and never by what makes
//!   some.
//! - What a large write takes is charged before it is there, and counted as the memtable's before that is
//!   given back.

use crate::{
    Error,
    engine::Engine,
    format::entry::KeyRange,
    memory::budget::MemoryClass as Memory,
    session::{
        counters::EngineCounters,
        limits::{TICK, TIER_RUNS},
        signal::BackgroundThread,
    },
    tree::{
        manifest::format::TreeLevel,
        memtable::Memtable,
        version::{SuperVersion, TableSlice},
    },
    write::{
        commit::{
            deferred::{self, DeferredInFlight},
            writer::LogWriter,
        },
        log::WriteLog,
        reserve::ReservePart,
        throttle::{MeasuredCosts, MergeDebt, debt_of, delay_nanos},
    },
};
use copal_object::{Ack, Op, Txn};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// What a memtable holds at least when a put that finds no space begins its flush.
const FLUSHED_FOR_SPACE: u64 = 1 << 20;

/// Whether there is room in memtable and budget for a group that takes `bytes` of them; waits for it.
/// Freezes a full memtable in any case: the next one takes nothing before there is room for what goes
/// into it, and only the flush of this one may make some.
/// # Errors
/// `OverBudget`: there is none, and nothing the engine does would make some. `NoSpace`: the flush that
/// would finds none.
pub(crate) fn make_memory(
    engine: &Engine,
    writer: &mut LogWriter,
    bytes: u64,
    frees_space: bool,
) -> Result<(), Error> {
    loop {
        engine.poison.check()?;
        writer.check_open()?;
        if engine.signal.stopping() {
            return Err(Error::Closed);
        }
        let view = engine.super_version();
        let limit = engine.budget.memtable_bytes();
        let charged = view.active.charged_bytes();
        let is_full = charged >= limit;
        if !is_full && writer.has_room && charged + bytes <= limit {
            return Ok(());
        }
        let rest = bytes.max(limit.saturating_sub(charged));
        let room = engine.budget.room_for_writes(rest);
        if !is_full && room.is_ok() {
            writer.has_room = true;
            return Ok(());
        }
        if view.frozen.is_empty() {
            if is_full {
                rotate(engine, writer)?;
                continue;
            }
            if merge_may_make_room(engine, writer, rest, frees_space) && wait_for_memory(engine, writer, rest)
            {
                continue;
            }
            // Beside a small part of a memtable there is as much room as beside none: a flush would make
            // no more.
            if frees_space || charged <= limit / 8 {
                return room_for_a_delete(engine, frees_space, room);
            }
            rotate(engine, writer)?;
            continue;
        }
        if engine.signal.flush_is_stuck() {
            return if frees_space && charged < 2 * limit { Ok(()) } else { Err(Error::NoSpace) };
        }
        wait_for_a_flush(engine, writer, view.frozen.len());
    }
}

/// What frees space goes on where what tables keep in memory leaves no `room`: only readers of old
/// memtables stop it.
fn room_for_a_delete(engine: &Engine, frees_space: bool, room: Result<(), Error>) -> Result<(), Error> {
    if !frees_space {
        return room;
    }
    if engine.budget.room_beside_readers().is_err() {
        // A flush and a step of a merge give back what they took when they end.
        drop(engine.compactor.stand_still());
    }
    engine.budget.room_beside_readers()
}

/// Waits until fewer than `frozen` memtables are, unless the next flush finds no space.
fn wait_for_a_flush(engine: &Engine, writer: &mut LogWriter, frozen: usize) {
    // The flusher could not: it does not get the writer meanwhile.
    log_deferred_now(engine, writer);
    engine.run_inline();
    let began = Instant::now();
    // A flush that fails poisons the store: it will not come.
    engine
        .signal
        .wait_for_flush(|| engine.super_version().frozen.len() < frozen || engine.poison.check().is_err());
    EngineCounters::add_time(&engine.counters.stalled_nanos, began);
}

/// Whether a merge of everything is worth waiting for by someone for whom memtables have no room. Range
/// deletes go with it; what else it frees is unknown, so once it did not help puts wait for it again when
/// an eighth of the store is new, and what frees space goes on without room.
fn merge_may_make_room(engine: &Engine, writer: &LogWriter, bytes: u64, frees_space: bool) -> bool {
    if stands_at_the_bottom(engine) {
        return false;
    }
    let ranges = engine.budget.used(Memory::RangeTombstones);
    let goes =
        ranges >= engine.budget.total_bytes() / 16 && 2 * ranges >= engine.budget.missing_for_writes(bytes);
    if goes || frees_space {
        return goes;
    }
    let version = engine.super_version().version.clone();
    let bytes_of = |is_new: bool| -> u64 {
        let runs = version.runs.iter().filter(|run| !is_new || run.level != TreeLevel::BOTTOM);
        runs.flat_map(|run| &run.slices).map(TableSlice::bytes).sum()
    };
    !writer.merged_in_vain || 8 * bytes_of(true) >= bytes_of(false)
}

/// Waits, where memtables have no room for `bytes` more, for merges: what tables keep in memory is least
/// once all of it is in the bottom. Whether there is room then.
fn wait_for_memory(engine: &Engine, writer: &mut LogWriter, bytes: u64) -> bool {
    // The flusher could not: it does not get the writer meanwhile.
    log_deferred_now(engine, writer);
    let began = Instant::now();
    let merged = engine.compactor.jobs.request(KeyRange::all());
    engine.signal.wake_workers();
    engine.run_inline();
    // A merge that fails for good poisons the store; one may take longer than a closing store has.
    let ends = || engine.poison.check().is_err() || engine.closed.load(Ordering::Acquire);
    engine.signal.wait_for(|| merged.result().is_some() || ends());
    EngineCounters::add_time(&engine.counters.stalled_nanos, began);
    let helped = engine.budget.room_for_writes(bytes).is_ok();
    writer.merged_in_vain = !helped;
    helped
}

/// Whether a merge of everything would find nothing to bring together or to drop.
fn stands_at_the_bottom(engine: &Engine) -> bool {
    let oldest = engine.snapshots.stripes().oldest();
    let version = engine.super_version().version.clone();
    let is_clean = |slice: &TableSlice| slice.table.meta.droppable == 0 || slice.table.meta.max_seq > oldest;
    match &version.runs[..] {
        [] => true,
        [run] => run.level == TreeLevel::BOTTOM && run.slices.iter().all(is_clean),
        _ => false,
    }
}

/// Waits for the flush under way, which gives the space of its log back; whether there was one, and it
/// succeeded.
pub(crate) fn wait_for_space(engine: &Engine, writer: &mut LogWriter) -> bool {
    let frozen = engine.super_version().frozen.len();
    if frozen == 0 || engine.signal.flush_is_stuck() {
        return false;
    }
    wait_for_a_flush(engine, writer, frozen);
    engine.super_version().frozen.len() < frozen
}

/// What memtables hold stands in their logs as well: where that is much, a flush may be all that a put
/// lacks.
pub(crate) fn begin_flush_for_space(engine: &Engine, writer: &mut LogWriter) {
    let view = engine.super_version();
    let is_much = view.active.charged_bytes() >= FLUSHED_FOR_SPACE || log_is_long_for_reserve(engine, writer);
    if !view.frozen.is_empty() || !is_much || engine.signal.flush_is_stuck() {
        return;
    }
    drop(view);
    if let Err(error) = in_whole_reserve(engine, || rotate(engine, writer)) {
        tracing::debug!(%error, "a full store began no flush");
    }
}

/// Whether the log holds so many pages that the reserve is soon used up by more of them.
pub(crate) fn log_is_long_for_reserve(engine: &Engine, writer: &LogWriter) -> bool {
    const PAGE: u64 = 4096;
    let share = engine.writes.reserve.share_bytes(&engine.objects);
    writer.log.frames() * PAGE >= (share / 8).max(FLUSHED_FOR_SPACE / 4)
}

/// Whether there is room for a put once no step of a merge and no flush uses the reserve.
pub(crate) fn has_room_when_still(engine: &Engine, bytes: u64) -> bool {
    let _still = engine.compactor.stand_still();
    has_reserve_beside(engine, bytes)
}

/// Freezes the active memtable, if it holds anything, and opens a new log and memtable.
pub(crate) fn rotate(engine: &Engine, writer: &mut LogWriter) -> Result<(), Error> {
    engine.writes.queue.drain()?;
    if engine.super_version().active.is_empty() {
        return Ok(());
    }
    writer.check_open()?;
    let generation = writer.log.generation + 1;
    let fail = |error| engine.poison.failed_write(error);
    let log = WriteLog::create(&engine.objects, generation, engine.new_object()).map_err(fail)?;
    if let Err(error) = writer.sync(&engine.objects, engine.snapshots.allocated_seq()) {
        let ops = vec![Op::Delete { id: log.stream }];
        let error = engine.poison.failed_write(error);
        if let Err(second) = engine.objects.commit(Txn::new().ops(ops), Ack::Ordered).wait() {
            engine.poison.set_by(&Error::Object(second));
        }
        return Err(error);
    }
    let active = Arc::new(Memtable::new(generation, log.stream));
    engine.budget.watch(&active);
    writer.log = log;
    writer.has_room = false;
    engine.change_super_version(|view| {
        let mut frozen = view.frozen.clone();
        frozen.insert(0, view.active.clone());
        SuperVersion { active, frozen, version: view.version.clone() }
    });
    engine.signal.wake_worker(BackgroundThread::Flusher);
    Ok(())
}

/// Everything logged so far is durable.
pub(crate) fn sync(engine: &Engine) -> Result<(), Error> {
    if engine.options.read_only {
        return Ok(());
    }
    engine.poison.check()?;
    let mut writer = engine.writes.writer.lock();
    writer.check_open()?;
    sync_log(engine, &mut writer)
}

/// The last sync: whoever comes later is told that the store is closed.
pub(crate) fn end_writes(engine: &Engine) -> Result<(), Error> {
    let mut writer = engine.writes.writer.lock();
    writer.closed = true;
    if engine.options.read_only {
        return Ok(());
    }
    engine.poison.check()?;
    sync_log(engine, &mut writer)
}

/// What is on its way has arrived, what was deferred is logged, and all of it is durable.
pub(crate) fn sync_log(engine: &Engine, writer: &mut LogWriter) -> Result<(), Error> {
    engine.writes.queue.drain()?;
    in_whole_reserve(engine, || {
        let synced = writer.sync(&engine.objects, engine.snapshots.allocated_seq());
        synced.map_err(|error| engine.poison.failed_write(error))
    })
}

/// Makes `Deferred` writes durable, due or not: for who is to wait and keeps the writer from everyone
/// else.
pub(crate) fn log_deferred_now(engine: &Engine, writer: &mut LogWriter) {
    if writer.deferred_since().is_none() {
        return;
    }
    deferred::still_deferred(sync_log(engine, writer));
}

/// Does what frees space, or keeps a promise: in a full store it may use the reserve.
pub(crate) fn in_reserve<T>(engine: &Engine, attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    in_part_of_reserve(engine, ReservePart::Merges, attempt)
}

/// The same for what is short, and what deletes and essential writes wait for.
pub(crate) fn in_whole_reserve<T>(
    engine: &Engine,
    attempt: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    in_part_of_reserve(engine, ReservePart::Everything, attempt)
}

fn in_part_of_reserve<T>(
    engine: &Engine,
    part: ReservePart,
    mut attempt: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    match attempt() {
        Err(error) if error.is_no_space() => {
            let _opened = engine.writes.reserve.open(&engine.objects, part);
            attempt()
        }
        result => result,
    }
}

/// Whether what is kept back is there, with room for the flush of all memtables and of `bytes` more in
/// them.
pub(crate) fn has_reserve_beside(engine: &Engine, bytes: u64) -> bool {
    engine.writes.reserve.refill(&engine.objects, unflushed_bytes(engine) + bytes)
}

/// The same for a large write, which leaves some room to small ones.
pub(crate) fn has_reserve_beside_large(engine: &Engine, bytes: u64) -> bool {
    let bytes = unflushed_bytes(engine) + bytes;
    engine.writes.reserve.refill_for_large(&engine.objects, bytes)
}

fn unflushed_bytes(engine: &Engine) -> u64 {
    let view = engine.super_version();
    view.memtables().map(|memtable| memtable.charged_bytes()).sum()
}

/// After flushes and merges: takes back what they had of the reserve, and looks whether the store is
/// still full.
pub(crate) fn look_for_room(engine: &Engine) {
    if engine.writes.pressure.is_on()
        && let Err(error) = engine.objects.grow_again()
    {
        tracing::debug!(%error, "the store does not grow");
    }
    if has_reserve_beside(engine, 0) {
        let room = engine.writes.reserve.room_beside(&engine.objects).unwrap_or(u64::MAX);
        // Merges found nothing: what could be freed is in memory.
        let may_free = engine.super_version().memtables().any(|memtable| memtable.has_deletes());
        engine.writes.pressure.look(room, engine.objects.room().of_bytes, may_free);
        if may_free && engine.writes.pressure.is_on() {
            engine.signal.wake_worker(BackgroundThread::Flusher);
        }
    }
}

/// Makes a group pay for the debt it adds to. The writer sleeps on a condition and is released early when
/// the merges have caught up.
pub(crate) fn pace(engine: &Engine, bytes: u64) {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let measured = MeasuredCosts {
        merge_nanos: load(&engine.counters.merge_nanos),
        // Merges of what was there at opening must not look like the price of the first few bytes.
        user_bytes: load(&engine.counters.user_bytes).max(4 * engine.budget.memtable_bytes()),
        flush_nanos: load(&engine.counters.flush_nanos),
        flushed_bytes: load(&engine.counters.flushed_bytes),
    };
    let nanos = delay_nanos(bytes, debt(engine).share, measured);
    if let Some(delay) = engine.writes.throttle.add(nanos) {
        if !engine.options.threads {
            // Nobody else would catch up meanwhile.
            return engine.run_inline();
        }
        let began = Instant::now();
        engine.signal.delay_writer(delay, || debt(engine).bytes == 0);
        EngineCounters::add_time(&engine.counters.paced_nanos, began);
    }
}

/// What merges are behind with, memtables included.
pub(crate) fn debt(engine: &Engine) -> MergeDebt {
    let tiers = engine.counters.tier_bytes.each_ref().map(|tier| tier.load(Ordering::Relaxed));
    let view = engine.super_version();
    let memtables = view.memtables().map(|memtable| memtable.charged_bytes()).sum();
    debt_of(&tiers, memtables, engine.budget.memtable_bytes(), TIER_RUNS as u64)
}

/// Makes `Deferred` writes durable when their time has come. Blocks for the device, while others write.
pub(crate) fn log_deferred(engine: &Engine) {
    let Some(mut writer) = engine.writes.writer.try_lock() else {
        // Whoever writes now logs them with its own group, or is called on again soon.
        return;
    };
    let since = writer.deferred_since();
    if since.is_none_or(|since| since.elapsed() < TICK) {
        return;
    }
    let placed = in_whole_reserve(engine, || deferred::log_deferred_durably(engine, &mut writer));
    drop(writer);
    deferred::still_deferred(placed.and_then(DeferredInFlight::wait));
}

#[cfg(test)]
mod tests;
