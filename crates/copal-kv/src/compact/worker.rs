//! The worker thread: flush first, then what was asked for, then the shape of the tree, then collection.
//!
//! Invariants
//! - It sleeps when there is nothing to do, and is woken by `Signal::kick`; it never spins.
//! - A full store stops flush and merge, not the worker: it tries again when something was freed.
//! - It never waits for the writer lock: the writer may be waiting for it.

use super::{
    jobs::{Job, Request, pick, to_bottom},
    separate::WorkerValues,
};
use crate::{Error, engine::Engine, key::KeyRange, signal::Signal};
use copal_object::ObjectId;
use std::{collections::HashSet, sync::Arc, time::Duration};

/// Longest time a `Deferred` write stays unlogged, and the pause before a full store is tried again.
const TICK: Duration = Duration::from_millis(100);

/// What the worker remembers between its steps.
struct Worker {
    engine: Arc<Engine>,
    values: WorkerValues,
    job: Option<Job>,
    request: Option<(Arc<Request>, Job)>,
    /// Value objects that were rewritten once; not tried again before the next opening.
    rewritten: HashSet<ObjectId>,
    /// The tree changed since the last sweep.
    swept: bool,
    full: bool,
}

/// Runs until the signal says stop.
pub(crate) fn run(engine: Arc<Engine>, values: WorkerValues) {
    let mut worker = Worker {
        engine,
        values,
        job: None,
        request: None,
        rewritten: HashSet::new(),
        swept: false,
        full: false,
    };
    let signal: Arc<Signal> = worker.engine.signal.clone();
    while !signal.stopping() {
        match worker.step() {
            Ok(true) => worker.full = false,
            Ok(false) => signal.sleep(worker.timeout()),
            Err(error) => {
                worker.failed(&error);
                signal.sleep(Some(TICK));
            }
        }
    }
    worker.finish_requests(&Error::Closed);
    // Waiters must not wait for a thread that is gone.
    signal.progressed(None);
}

impl Worker {
    /// One piece of work; `false` when there is none.
    fn step(&mut self) -> Result<bool, Error> {
        let engine = self.engine.clone();
        let _step = engine.step.lock();
        engine.poison.check()?;
        engine.free_garbage()?;
        if engine.flush_all(&mut self.values)? || self.rotate()? {
            self.swept = false;
            return Ok(true);
        }
        if !self.swept {
            self.swept = true;
            if engine.sweep(&mut self.values)? {
                self.swept = false;
                return Ok(true);
            }
        }
        if self.request_step()? || self.job_step()? {
            self.swept = false;
            engine.signal.progressed(None);
            return Ok(true);
        }
        engine.reserve.refill(&engine.objects);
        self.log_deferred();
        Ok(false)
    }

    /// Freezes the memtable when someone asked for it and nobody is writing.
    fn rotate(&mut self) -> Result<bool, Error> {
        if !self.engine.signal.take_rotation_request() {
            return Ok(false);
        }
        let Some(mut writer) = self.engine.writer.try_lock() else {
            // Whoever writes now makes progress; ask again after the next kick.
            self.engine.signal.request_rotation_quietly();
            return Ok(false);
        };
        self.engine.rotate(&mut writer)?;
        Ok(true)
    }

    /// One step of the merge that a caller waits for.
    fn request_step(&mut self) -> Result<bool, Error> {
        let engine = self.engine.clone();
        if self.request.is_none() {
            let Some(request) = engine.jobs.next() else {
                return Ok(false);
            };
            let job = self.request_job(request.range.clone());
            self.request = Some((request, job));
        }
        let Some((request, job)) = &mut self.request else {
            return Ok(false);
        };
        match engine.merge_step_in_reserve(&mut self.values, job) {
            Ok(true) => {}
            Ok(false) => {
                engine.sweep(&mut self.values)?;
                engine.free_garbage()?;
                request.finish(Ok(()));
                self.request = None;
            }
            Err(error) => {
                request.finish(Err(error.clone()));
                self.request = None;
                return Err(error);
            }
        }
        Ok(true)
    }

    /// A merge of `range` to the bottom that also rewrites the stale value objects inside it.
    fn request_job(&self, range: KeyRange) -> Job {
        let stale = self
            .engine
            .stale_group(&self.values)
            .filter(|(group, _)| range.covers(group));
        let rewrite = stale.map(|(_, objects)| objects).unwrap_or_default();
        let version = self.engine.view().version.clone();
        to_bottom(&version, range, rewrite)
    }

    /// One step of the merge that the tree needs.
    fn job_step(&mut self) -> Result<bool, Error> {
        if self.job.is_none() {
            self.job = self.next_job();
        }
        let Some(job) = &mut self.job else {
            return Ok(false);
        };
        let more = self.engine.merge_step_in_reserve(&mut self.values, job);
        if !matches!(more, Ok(true)) {
            self.job = None;
        }
        more.map(|_| true)
    }

    fn next_job(&mut self) -> Option<Job> {
        let version = self.engine.view().version.clone();
        let next_run = self.engine.tree.lock().manifest.state.next_run;
        if let Some(job) = pick(&version, next_run) {
            return Some(job);
        }
        if let Some(range) = self.engine.droppable_range() {
            return Some(to_bottom(&version, range, HashSet::new()));
        }
        let (range, mut objects) = self.engine.stale_group(&self.values)?;
        objects.retain(|object| self.rewritten.insert(*object));
        (!objects.is_empty()).then(|| to_bottom(&version, range, objects))
    }

    /// Makes `Deferred` writes durable when their time has come.
    fn log_deferred(&mut self) {
        let engine = &self.engine;
        let Some(mut writer) = engine.writer.try_lock() else {
            return;
        };
        if writer.deferred_since.is_none_or(|since| since.elapsed() < TICK) {
            return;
        }
        writer.settled();
        let next_seq = engine.snapshots.visible() + 1;
        if let Err(error) = writer.log.sync(&engine.objects, next_seq) {
            engine.poison.failed_write(error);
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let deferred = self
            .engine
            .writer
            .try_lock()
            .is_none_or(|writer| writer.deferred_since.is_some());
        (self.full || deferred).then_some(TICK)
    }

    /// A failed step: full stores wait, damage is left where it is, anything else has poisoned the store.
    fn failed(&mut self, error: &Error) {
        self.job = None;
        self.full = error.is_no_space();
        if self.full {
            tracing::warn!("the store is full: flush and merge wait until something is freed");
        } else if !matches!(error, Error::Closed | Error::Poisoned { .. }) {
            tracing::error!(%error, "a flush or merge failed");
        }
        self.finish_requests(error);
        self.engine.signal.progressed(None);
    }

    fn finish_requests(&mut self, error: &Error) {
        if let Some((request, _)) = self.request.take() {
            request.finish(Err(error.clone()));
        }
        while let Some(request) = self.engine.jobs.next() {
            request.finish(Err(error.clone()));
        }
    }
}

impl Engine {
    /// One step of a merge; in a full store it may use the reserve, as merging frees.
    fn merge_step_in_reserve(&self, values: &mut WorkerValues, job: &mut Job) -> Result<bool, Error> {
        match self.merge_step(values, job) {
            Err(error) if error.is_no_space() => {
                let _opened = self.reserve.open(&self.objects);
                self.merge_step(values, job)
            }
            result => result,
        }
    }

    /// Makes tables of all frozen memtables; `true` when there was one. A full store may use the reserve.
    pub(crate) fn flush_all(&self, values: &mut WorkerValues) -> Result<bool, Error> {
        let mut flushed = false;
        while !self.view().frozen.is_empty() {
            let result = match self.flush_oldest(values) {
                Err(error) if error.is_no_space() => {
                    let _opened = self.reserve.open(&self.objects);
                    self.flush_oldest(values)
                }
                result => result,
            };
            let stuck = result.as_ref().is_err_and(Error::is_no_space);
            self.signal.progressed(Some(stuck));
            flushed |= result?;
        }
        Ok(flushed)
    }
}
