//! The flusher thread: brings deferred writes into the log in time, freezes the memtable when that was asked
//! for, and makes tables of frozen memtables, beside whatever merge is under way.
//!
//! Invariants
//! - It sleeps when there is nothing to do, and is woken by `Signal::kick`; it never spins.
//! - A full store stops flushes, not the flusher: it frees what a purge left behind, and tries again when
//!   more was freed.
//! - It never waits for the writer lock: the writer may be waiting for it.

use super::pause::{LONGEST_PAUSE, LOOK_WHEN_FULL, TICK};
use crate::{
    Error,
    engine::Engine,
    session::signal::Sleeper,
    write::commit::{deferred::DeferredInFlight, writer::Writer},
};
use std::time::Duration;

/// Runs until the signal says stop.
pub(crate) fn run(engine: &Engine) {
    let signal = &engine.signal;
    let mut pause = TICK;
    while !signal.stopping() {
        match engine.flusher_step() {
            Ok(true) => pause = TICK,
            Ok(false) => {
                signal.sleep(Sleeper::Flusher, engine.until_flusher_looks());
                engine.writes.pressure.look_again();
            }
            Err(error) => {
                failed(&error);
                signal.progressed(None);
                let looks = engine.until_flusher_looks();
                signal.sleep(Sleeper::Flusher, looks.map(|looks| looks.min(pause)).or(Some(pause)));
                let longest = if error.is_no_space() { LOOK_WHEN_FULL } else { LONGEST_PAUSE };
                pause = (2 * pause).min(longest);
            }
        }
    }
    // Waiters must not wait for a thread that is gone.
    signal.progressed(None);
}

/// One step, in a store without threads; `false` when there was nothing to do, or it failed.
pub(super) fn attend(engine: &Engine) -> bool {
    let stepped = engine.poison.check().and_then(|()| engine.flush_and_rotate());
    stepped.unwrap_or_else(|error| {
        failed(&error);
        // Nobody tries again while the caller waits, so it is told.
        let is_full = error.is_no_space();
        if !is_full {
            engine.poison.set_by(&error);
        }
        engine.signal.progressed(is_full.then_some(true));
        false
    })
}

/// A full store is tried again after a pause, anything else has poisoned the store.
fn failed(error: &Error) {
    if error.is_no_space() {
        tracing::debug!("the store is full: flushes wait until something is freed");
    } else if !matches!(error, Error::Closed | Error::Poisoned { .. }) {
        tracing::error!(%error, "a flush failed");
    }
}

fn still_deferred(logged: Result<(), Error>) {
    if let Err(error) = logged {
        tracing::warn!(%error, "deferred writes are still not in the log");
    }
}

impl Engine {
    /// One piece of work; `false` when there is none.
    fn flusher_step(&self) -> Result<bool, Error> {
        self.poison.check()?;
        self.log_deferred();
        self.flush_and_rotate()
    }

    fn flush_and_rotate(&self) -> Result<bool, Error> {
        match self.flush_all() {
            Err(error) if error.is_no_space() => self.flush_into_what_can_be_freed(),
            flushed => Ok(flushed? || self.rotate_if_asked()?),
        }
    }

    /// What a purge left behind may be all the space there is, and a merge under way gives back what it took.
    fn flush_into_what_can_be_freed(&self) -> Result<bool, Error> {
        let _step = self.compactor.step.lock();
        let flushed = self.free_what_can_be().and_then(|()| self.in_whole_reserve(|| self.flush_all()));
        if flushed.as_ref().is_err_and(Error::is_no_space) {
            self.signal.progressed(Some(true));
        }
        flushed
    }

    fn free_what_can_be(&self) -> Result<(), Error> {
        while self.in_reserve(|| self.sweep())? {}
        self.free_garbage().map(drop)
    }

    /// Freezes the memtable when someone asked for it and nobody is writing.
    fn rotate_if_asked(&self) -> Result<bool, Error> {
        if !self.signal.take_rotation_request() && !self.holds_back_space() {
            return Ok(false);
        }
        let Some(mut writer) = self.writes.writer.try_lock() else {
            // Whoever writes now makes progress; ask again after the next kick.
            self.signal.request_rotation_quietly();
            return Ok(false);
        };
        self.in_whole_reserve(|| self.rotate(&mut writer))?;
        Ok(true)
    }

    /// Whether a full store has deletions in memory, which free nothing before they are in tables, or a long
    /// log.
    fn holds_back_space(&self) -> bool {
        if !self.writes.pressure.take_look() || self.signal.flush_is_stuck() {
            return false;
        }
        let view = self.super_version();
        let is_long = || self.writes.writer.try_lock().is_some_and(|writer| writer.log.is_long());
        view.frozen.is_empty() && !view.active.is_empty() && (view.active.has_deletes() || is_long())
    }

    /// How long the flusher sleeps when nobody kicks; `None`: for ever.
    fn until_flusher_looks(&self) -> Option<Duration> {
        if self.poison.check().is_err() {
            return None;
        }
        let deferred = match self.writes.writer.try_lock() {
            Some(writer) => {
                writer.deferred_since().map(|since| TICK.saturating_sub(since.elapsed()).max(TICK / 8))
            }
            None => Some(TICK),
        };
        let rotation = self.signal.rotation_wanted().then_some(TICK);
        let full = self.writes.pressure.is_on().then_some(LOOK_WHEN_FULL);
        [deferred, rotation, full].into_iter().flatten().min()
    }

    /// Makes `Deferred` writes durable when their time has come. Blocks for the device, while others write.
    pub(crate) fn log_deferred(&self) {
        let Some(mut writer) = self.writes.writer.try_lock() else {
            // Whoever writes now logs them with its own group, or is called on again soon.
            return;
        };
        let since = writer.deferred_since();
        if since.is_none_or(|since| since.elapsed() < TICK) {
            return;
        }
        let placed = self.in_whole_reserve(|| self.log_deferred_durably(&mut writer));
        drop(writer);
        still_deferred(placed.and_then(DeferredInFlight::wait));
    }

    /// Makes `Deferred` writes durable, due or not: for who is to wait and keeps the writer from everyone
    /// else.
    pub(crate) fn log_deferred_now(&self, writer: &mut Writer) {
        if writer.deferred_since().is_none() {
            return;
        }
        still_deferred(self.sync_log(writer));
    }

    /// Makes tables of all frozen memtables; `true` when there was one. A full store may use the reserve.
    pub(crate) fn flush_all(&self) -> Result<bool, Error> {
        let mut flushed = false;
        while !self.super_version().frozen.is_empty() {
            flushed |= self.in_reserve(|| self.flush_oldest())?;
            self.signal.progressed(Some(false));
            // There is a run more: merges may be due.
            self.signal.kick();
        }
        Ok(flushed)
    }
}
