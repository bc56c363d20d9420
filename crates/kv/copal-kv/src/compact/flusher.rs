//! The flusher thread: logs deferred writes in time, freezes the memtable on request, and writes frozen
//! memtables to tables while merges run.
//!
//! Invariants
//! - It sleeps when there is nothing to do, and is woken by `WakeSignal::wake_workers`; it never spins.
//! - A full store stops flushes, but not the flusher: it frees the objects that a purge left, and retries
//!   after more is freed.
//! - It never waits for the writer lock: its holder may wait for the flusher.

use super::pause::{LONGEST_PAUSE, LOOK_WHEN_FULL};
use crate::{
    Error,
    compact::{install, merge, sweep},
    engine::Engine,
    session::{limits::TICK, signal::BackgroundThread},
    write::admission,
};
use std::time::Duration;

/// Runs until the signal stops it.
pub(crate) fn run(engine: &Engine) {
    let signal = &engine.signal;
    let mut pause = TICK;
    while !signal.stopping() {
        match flusher_step(engine) {
            Ok(true) => pause = TICK,
            Ok(false) => {
                signal.sleep(BackgroundThread::Flusher, until_flusher_looks(engine));
                engine.writes.pressure.look_again();
            }
            Err(error) => {
                failed(&error);
                signal.progressed(None);
                let looks = until_flusher_looks(engine);
                signal.sleep(BackgroundThread::Flusher, looks.map(|looks| looks.min(pause)).or(Some(pause)));
                let longest = if error.is_no_space() { LOOK_WHEN_FULL } else { LONGEST_PAUSE };
                pause = (2 * pause).min(longest);
            }
        }
    }
    // Waiters must not wait for a thread that has ended.
    signal.progressed(None);
}

/// Does one step in a store without threads; `false` when there was nothing to do or it failed.
pub(super) fn run_inline(engine: &Engine) -> bool {
    let stepped = engine.poison.check().and_then(|()| flush_and_rotate(engine));
    stepped.unwrap_or_else(|error| {
        failed(&error);
        // No thread retries while the caller waits, so the caller gets the error.
        let is_full = error.is_no_space();
        if !is_full {
            engine.poison.set_by(&error);
        }
        engine.signal.progressed(is_full.then_some(true));
        false
    })
}

/// Handles a failed step: a full store is retried after a pause; any other error has poisoned the store.
fn failed(error: &Error) {
    if error.is_no_space() {
        tracing::debug!("the store is full: flushes wait until something is freed");
    } else if !matches!(error, Error::Closed | Error::Poisoned { .. }) {
        tracing::error!(%error, "a flush failed");
    }
}

/// Does one step; `false` when there is nothing to do.
fn flusher_step(engine: &Engine) -> Result<bool, Error> {
    engine.poison.check()?;
    admission::log_deferred(engine);
    flush_and_rotate(engine)
}

fn flush_and_rotate(engine: &Engine) -> Result<bool, Error> {
    match flush_all(engine) {
        Err(error) if error.is_no_space() => flush_after_freeing(engine),
        flushed => Ok(flushed? || rotate_if_asked(engine)?),
    }
}

/// Flushes, and before that frees space if the store is full. Objects that a purge left may be all the space
/// there is, and a running merge returns its space.
fn flush_after_freeing(engine: &Engine) -> Result<bool, Error> {
    let _step = engine.compactor.step.lock();
    let flushed =
        sweep_and_free(engine).and_then(|()| admission::in_whole_reserve(engine, || flush_all(engine)));
    if flushed.as_ref().is_err_and(Error::is_no_space) {
        engine.signal.progressed(Some(true));
    }
    flushed
}

fn sweep_and_free(engine: &Engine) -> Result<(), Error> {
    while admission::in_reserve(engine, || sweep::sweep(engine))? {}
    install::free_garbage(engine).map(drop)
}

/// Freezes the memtable if that was requested and the writer lock is free.
fn rotate_if_asked(engine: &Engine) -> Result<bool, Error> {
    if !engine.signal.take_rotation_request() && !holds_back_space(engine) {
        return Ok(false);
    }
    let Some(mut writer) = engine.writes.writer.try_lock() else {
        // The writer holds the lock and makes progress; retry after the next wake-up.
        engine.signal.request_rotation_quietly();
        return Ok(false);
    };
    admission::in_whole_reserve(engine, || admission::rotate(engine, &mut writer))?;
    Ok(true)
}

/// Whether a full store has a long log, or deletions in memory, which free nothing until they are in tables.
fn holds_back_space(engine: &Engine) -> bool {
    if !engine.writes.pressure.take_look() || engine.signal.flush_is_stuck() {
        return false;
    }
    let view = engine.super_version();
    let is_long = || engine.writes.writer.try_lock().is_some_and(|writer| writer.log.is_long());
    view.frozen.is_empty() && !view.active.is_empty() && (view.active.has_deletes() || is_long())
}

/// Longest sleep of the flusher without a wake-up; `None`: no limit.
fn until_flusher_looks(engine: &Engine) -> Option<Duration> {
    if engine.poison.check().is_err() {
        return None;
    }
    let deferred = match engine.writes.writer.try_lock() {
        Some(writer) => {
            writer.deferred_since().map(|since| TICK.saturating_sub(since.elapsed()).max(TICK / 8))
        }
        None => Some(TICK),
    };
    let rotation = engine.signal.rotation_wanted().then_some(TICK);
    let full = engine.writes.pressure.is_on().then_some(LOOK_WHEN_FULL);
    [deferred, rotation, full].into_iter().flatten().min()
}

/// Writes all frozen memtables to tables; `true` when there was one. May use the reserve of a full store.
pub(crate) fn flush_all(engine: &Engine) -> Result<bool, Error> {
    let mut flushed = false;
    while !engine.super_version().frozen.is_empty() {
        flushed |= admission::in_reserve(engine, || merge::flush_oldest(engine))?;
        engine.signal.progressed(Some(false));
        // One run more: merges may be due.
        engine.signal.wake_workers();
    }
    Ok(flushed)
}

/// Freezes the active memtable and waits until its contents are in tables.
pub(crate) fn flush_now(engine: &Engine) -> Result<(), Error> {
    let target = loop {
        engine.poison.check()?;
        {
            let mut writer = engine.writes.writer.lock();
            writer.check_open()?;
            if engine.super_version().frozen.is_empty() {
                let generation = writer.log.generation;
                admission::in_whole_reserve(engine, || admission::rotate(engine, &mut writer))?;
                break generation;
            }
        }
        wait_flushed(engine, |engine| engine.super_version().frozen.is_empty())?;
    };
    wait_flushed(engine, |engine| {
        engine.super_version().frozen.iter().all(|memtable| memtable.generation > target)
    })
}

pub(crate) fn wait_flushed(engine: &Engine, done: impl Fn(&Engine) -> bool) -> Result<(), Error> {
    engine.signal.wake_workers();
    loop {
        engine.run_inline();
        engine.signal.wait_for_flush(|| done(engine) || engine.poison.check().is_err());
        if done(engine) {
            return Ok(());
        }
        engine.poison.check()?;
        if engine.signal.flush_is_stuck() {
            return Err(Error::NoSpace);
        }
        // The flush lacked space only for a moment.
        if engine.signal.stopping() {
            return Err(Error::Closed);
        }
    }
}
