//! Admission of commit groups: makes room in the memtable, in memory and in space, and rotates the log.
//!
//! Invariants
//! - A memtable is frozen only when everything in it is visible: no group is still being inserted.
//! - A log ends only when everything in it is durable.
//! - If resident memory of tables leaves no room, only writes that add to it are refused. Deletes and flushes
//!   still work, since they reduce it.
//! - No memtable grows too large to be frozen: writes ask for room first, and only work that makes room does
//!   not.
//! - The memory of a large write is charged before it is allocated, and counted as the memtable's before that
//!   charge is returned.

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

/// Least bytes of a memtable at which a put without space begins its flush.
const FLUSHED_FOR_SPACE: u64 = 1 << 20;

/// Waits until memtable and budget have room for a group of `bytes`.
///
/// Freezes a full memtable in any case. The next memtable takes nothing before it has room, and only the
/// flush of the frozen one may make that room.
/// # Errors
/// `OverBudget`: there is no room, and no work of the engine would make some. `NoSpace`: the flush that would
/// make room finds no space.
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
            // A memtable that is almost empty leaves as much room as an empty one: a flush would not help.
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

/// Admits a write that frees space even where resident memory of tables leaves no `room`: only memtables that
/// old readers pin may stop it.
fn room_for_a_delete(engine: &Engine, frees_space: bool, room: Result<(), Error>) -> Result<(), Error> {
    if !frees_space {
        return room;
    }
    if engine.budget.room_beside_readers().is_err() {
        // Waits, since a flush and a merge step return their memory when they end.
        drop(engine.compactor.stand_still());
    }
    engine.budget.room_beside_readers()
}

/// Waits until fewer than `frozen` memtables are frozen, or the next flush finds no space.
fn wait_for_a_flush(engine: &Engine, writer: &mut LogWriter, frozen: usize) {
    // The flusher cannot log them while this thread holds the writer lock.
    log_deferred_now(engine, writer);
    engine.run_inline();
    let began = Instant::now();
    // A failed flush poisons the store, so no further one would come.
    engine
        .signal
        .wait_for_flush(|| engine.super_version().frozen.len() < frozen || engine.poison.check().is_err());
    EngineCounters::add_time(&engine.counters.stalled_nanos, began);
}

/// Whether a write without memtable memory should wait for a merge of everything.
///
/// Such a merge drops range deletes; the other memory that it frees is unknown. If one did not help, puts
/// wait for another only once an eighth of the store is new, and writes that free space proceed without room.
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

/// Waits for a merge of everything, after which tables take the least memory. Returns whether memtables then
/// have room for `bytes` more.
fn wait_for_memory(engine: &Engine, writer: &mut LogWriter, bytes: u64) -> bool {
    // The flusher cannot log them while this thread holds the writer lock.
    log_deferred_now(engine, writer);
    let began = Instant::now();
    let merged = engine.compactor.jobs.request(KeyRange::all());
    engine.signal.wake_workers();
    engine.run_inline();
    // A merge that cannot succeed poisons the store. A merge may also take longer than a closing store can
    // wait.
    let ends = || engine.poison.check().is_err() || engine.closed.load(Ordering::Acquire);
    engine.signal.wait_for(|| merged.result().is_some() || ends());
    EngineCounters::add_time(&engine.counters.stalled_nanos, began);
    let helped = engine.budget.room_for_writes(bytes).is_ok();
    writer.merged_in_vain = !helped;
    helped
}

/// Whether a merge of everything would have nothing to join or to drop.
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

/// Waits for the running flush, which frees the space of its log. Returns whether there was one and it
/// succeeded.
pub(crate) fn wait_for_space(engine: &Engine, writer: &mut LogWriter) -> bool {
    let frozen = engine.super_version().frozen.len();
    if frozen == 0 || engine.signal.flush_is_stuck() {
        return false;
    }
    wait_for_a_flush(engine, writer, frozen);
    engine.super_version().frozen.len() < frozen
}

/// Begins a flush if memtables hold much: their contents take log space as well, so a flush may free the
/// space that a put needs.
pub(crate) fn begin_flush_for_space(engine: &Engine, writer: &mut LogWriter) {
    let view = engine.super_version();
    let is_much = view.active.charged_bytes() >= FLUSHED_FOR_SPACE || log_is_long_for_reserve(engine, writer);
    if !view.frozen.is_empty() || !is_much || engine.signal.flush_is_stuck() {
        return;
    }
    drop(view);
    if let Err(error) = in_whole_reserve(engine, || rotate(engine, writer)) {
        tracing::debug!(%error, "a full store could not begin a flush");
    }
}

/// Whether the log is so long that more pages of it would soon use up the reserve.
pub(crate) fn log_is_long_for_reserve(engine: &Engine, writer: &LogWriter) -> bool {
    const PAGE: u64 = 4096;
    let share = engine.writes.reserve.share_bytes(&engine.objects);
    writer.log.frames() * PAGE >= (share / 8).max(FLUSHED_FOR_SPACE / 4)
}

/// Whether there is room for a put once no merge step and no flush uses the reserve. Waits for both.
pub(crate) fn has_room_when_still(engine: &Engine, bytes: u64) -> bool {
    let _still = engine.compactor.stand_still();
    has_reserve_beside(engine, bytes)
}

/// Freezes the active memtable, if it is not empty, and opens a new log and memtable.
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
    let active = Memtable::new(generation, log.stream).with_filter(engine.budget.memtable_bytes());
    let active = Arc::new(active);
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

/// Makes everything logged so far durable.
pub(crate) fn sync(engine: &Engine) -> Result<(), Error> {
    if engine.options.read_only {
        return Ok(());
    }
    engine.poison.check()?;
    let mut writer = engine.writes.writer.lock();
    writer.check_open()?;
    sync_log(engine, &mut writer)
}

/// Syncs for the last time; later writes get `Closed`.
pub(crate) fn end_writes(engine: &Engine) -> Result<(), Error> {
    let mut writer = engine.writes.writer.lock();
    writer.closed = true;
    if engine.options.read_only {
        return Ok(());
    }
    engine.poison.check()?;
    sync_log(engine, &mut writer)
}

/// Waits for groups in flight, logs deferred writes, and makes all of it durable.
pub(crate) fn sync_log(engine: &Engine, writer: &mut LogWriter) -> Result<(), Error> {
    engine.writes.queue.drain()?;
    in_whole_reserve(engine, || {
        let synced = writer.sync(&engine.objects, engine.snapshots.allocated_seq());
        synced.map_err(|error| engine.poison.failed_write(error))
    })
}

/// Makes `Deferred` writes durable, due or not. For a thread that will wait while it holds the writer lock,
/// which keeps the flusher from logging them.
pub(crate) fn log_deferred_now(engine: &Engine, writer: &mut LogWriter) {
    if writer.deferred_since().is_none() {
        return;
    }
    deferred::still_deferred(sync_log(engine, writer));
}

/// Runs work that frees space or fulfils a promise; in a full store it may use the reserve of merges.
pub(crate) fn in_reserve<T>(engine: &Engine, attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    in_part_of_reserve(engine, ReservePart::Merges, attempt)
}

/// Like [`in_reserve`], with the whole reserve: for short work, and for work that deletes and essential
/// writes wait for.
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

/// Whether the reserve is complete, with space for the flush of all memtables and of `bytes` more in them.
pub(crate) fn has_reserve_beside(engine: &Engine, bytes: u64) -> bool {
    engine.writes.reserve.refill(&engine.objects, unflushed_bytes(engine) + bytes)
}

/// Like [`has_reserve_beside`] for a large write, which leaves some space to small ones.
pub(crate) fn has_reserve_beside_large(engine: &Engine, bytes: u64) -> bool {
    let bytes = unflushed_bytes(engine) + bytes;
    engine.writes.reserve.refill_for_large(&engine.objects, bytes)
}

fn unflushed_bytes(engine: &Engine) -> u64 {
    let view = engine.super_version();
    view.memtables().map(|memtable| memtable.charged_bytes()).sum()
}

/// After flushes and merges: refills the reserve, and checks whether the store is still full.
pub(crate) fn look_for_room(engine: &Engine) {
    if engine.writes.pressure.is_on()
        && let Err(error) = engine.objects.grow_again()
    {
        tracing::debug!(%error, "the store does not grow");
    }
    if has_reserve_beside(engine, 0) {
        let room = engine.writes.reserve.room_beside(&engine.objects).unwrap_or(u64::MAX);
        // Merges found nothing more to free; memtables may hold deletions.
        let may_free = engine.super_version().memtables().any(|memtable| memtable.has_deletes());
        engine.writes.pressure.look(room, engine.objects.room().of_bytes, may_free);
        if may_free && engine.writes.pressure.is_on() {
            engine.signal.wake_worker(BackgroundThread::Flusher);
        }
    }
}

/// Delays a group for the merge debt that it adds to. The writer sleeps on a condition and is released early
/// when merges have caught up.
pub(crate) fn pace(engine: &Engine, bytes: u64) {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let measured = MeasuredCosts {
        merge_nanos: load(&engine.counters.merge_nanos),
        // The least value keeps merges of data from before the opening from being charged to the first few
        // bytes.
        user_bytes: load(&engine.counters.user_bytes).max(4 * engine.budget.memtable_bytes()),
        flush_nanos: load(&engine.counters.flush_nanos),
        flushed_bytes: load(&engine.counters.flushed_bytes),
    };
    let nanos = delay_nanos(bytes, debt(engine).share, measured);
    if let Some(delay) = engine.writes.throttle.add(nanos) {
        if !engine.options.threads {
            // No other thread would catch up meanwhile.
            return engine.run_inline();
        }
        let began = Instant::now();
        engine.signal.delay_writer(delay, || debt(engine).bytes == 0);
        EngineCounters::add_time(&engine.counters.paced_nanos, began);
    }
}

/// Merge debt, memtables included.
pub(crate) fn debt(engine: &Engine) -> MergeDebt {
    let tiers = engine.counters.tier_bytes.each_ref().map(|tier| tier.load(Ordering::Relaxed));
    let view = engine.super_version();
    let memtables = view.memtables().map(|memtable| memtable.charged_bytes()).sum();
    debt_of(&tiers, memtables, engine.budget.memtable_bytes(), TIER_RUNS as u64)
}

/// Makes `Deferred` writes durable when they are due. Blocks for the device, while other threads can write.
pub(crate) fn log_deferred(engine: &Engine) {
    let Some(mut writer) = engine.writes.writer.try_lock() else {
        // The present writer logs them with its own group, or this runs again soon.
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
