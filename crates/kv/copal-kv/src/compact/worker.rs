//! The worker thread. In this order it serves requests, merges full tiers from the top, collects deleted data
//! and dead values, and runs merges that only readers benefit from.
//!
//! Invariants
//! - It sleeps when there is nothing to do, and is woken by `WakeSignal::wake_workers`; it never spins.
//! - A full store stops merges, but not the worker: it retries after something is freed.
//! - It checks again between two steps: a tier that filled up meanwhile is merged before a deeper merge
//!   continues. Flushes run at any time (`flusher`).
//! - It never waits for the writer lock: its holder may wait for a flush, and a flush in a full store may
//!   wait for the worker.

use super::{
    flusher,
    pause::{LONGEST_PAUSE, LOOK_WHEN_FULL},
    picker::{MergeJob, MergeRequest, MergeUrgency, pick, read_triggered, to_bottom},
};
use crate::{
    Error,
    compact::{
        install, merge,
        merge_benefit::{MergeArea, WantedSpace, areas, wanted},
        sweep,
    },
    engine::Engine,
    format::entry::KeyRange,
    session::{
        inline_work::InlineWork,
        limits::TICK,
        signal::{BackgroundThread, WakeSignal},
    },
    tree::version::TreeVersion,
    write::admission,
};
use copal_object::{Ack, ObjectId, Txn};
use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// Between two checks whether readers have paid for a merge.
const LOOK: Duration = Duration::from_secs(1);

/// Scans between writes pay for a merge once they searched this many times the blocks that it moves. The
/// factor covers that the next flush is near and adds a run again.
const WALKS_PER_BLOCK: u64 = 4;

/// Counters at the time since which the tree is unchanged (`epoch`, `walked`) and nothing was written
/// (`writes`, `wasted`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct IdleSince {
    epoch: u64,
    writes: u64,
    wasted: u64,
    walked: u64,
}

/// Areas with deleted data, as of one version and one oldest snapshot.
#[derive(Debug, Default)]
struct DeletedAreas {
    of: Option<(u64, u64)>,
    areas: Vec<MergeArea>,
}

/// State of the worker between its steps.
struct MergeWorker {
    engine: Arc<Engine>,
    /// Merges in progress; the last one is the most urgent and runs first.
    jobs: Vec<MergeJob>,
    request: Option<(Arc<MergeRequest>, MergeJob)>,
    /// Value objects that were rewritten once; not retried before the next opening.
    rewritten: HashSet<ObjectId>,
    /// The version that was swept last.
    swept: Option<u64>,
    deleted: DeletedAreas,
    idle_since: IdleSince,
    /// Readers would benefit from a merge, but have not paid for it yet.
    may_be_read_triggered: bool,
    /// Some value objects have many dead bytes; some of these may still be appended to.
    may_rewrite: bool,
    /// After a failure: the pause before merges are retried, and the time of the retry.
    pause: Duration,
    merges_from: Option<Instant>,
}

/// Runs until the signal stops it.
pub(crate) fn run(engine: Arc<Engine>) {
    let mut worker = MergeWorker::new(engine);
    let signal: Arc<WakeSignal> = worker.engine.signal.clone();
    while !signal.stopping() {
        match worker.step() {
            Ok(true) => {}
            Ok(false) => signal.sleep(BackgroundThread::Worker, worker.timeout()),
            Err(error) => {
                worker.failed(&error);
                signal.sleep(BackgroundThread::Worker, worker.timeout());
            }
        }
    }
    worker.end();
}

/// Flusher and worker of a store without threads.
pub(crate) fn attending(engine: &Arc<Engine>) -> Box<dyn InlineWork> {
    Box::new(MergeWorker::new(Arc::clone(engine)))
}

impl InlineWork for MergeWorker {
    fn step(&mut self) -> bool {
        let flushed = flusher::run_inline(&self.engine);
        // No thread would wait for a pause to end.
        self.merges_from = None;
        let merged = MergeWorker::step(self).unwrap_or_else(|error| {
            self.failed(&error);
            false
        });
        flushed || merged
    }

    fn end(&mut self) {
        self.finish_requests(&Error::Closed);
        // Waiters must not wait for a thread that has ended.
        self.engine.signal.progressed(None);
    }
}

impl MergeWorker {
    fn new(engine: Arc<Engine>) -> MergeWorker {
        MergeWorker {
            engine,
            jobs: Vec::new(),
            request: None,
            rewritten: HashSet::new(),
            swept: None,
            deleted: DeletedAreas::default(),
            idle_since: IdleSince::default(),
            may_be_read_triggered: false,
            may_rewrite: false,
            pause: TICK,
            merges_from: None,
        }
    }

    /// Does one step; `false` when there is nothing to do.
    fn step(&mut self) -> Result<bool, Error> {
        let engine = self.engine.clone();
        let _step = engine.compactor.step.lock();
        engine.poison.check()?;
        if install::free_garbage(&engine)? && engine.signal.flush_is_stuck() {
            engine.signal.wake_worker(BackgroundThread::Flusher);
        }
        let epoch = Some(engine.super_version().version.epoch);
        if self.swept != epoch {
            self.swept = epoch;
            if admission::in_reserve(&engine, || sweep::sweep(&engine))? {
                return Ok(true);
            }
        }
        if self.request_step()? || self.merges_may_run() && self.job_step()? {
            self.pause = TICK;
            engine.signal.progressed(None);
            return Ok(true);
        }
        admission::look_for_room(&engine);
        Ok(false)
    }

    /// One step of the merge that a caller waits for.
    fn request_step(&mut self) -> Result<bool, Error> {
        let engine = self.engine.clone();
        if self.request.is_none() {
            let Some(request) = engine.compactor.jobs.next() else {
                return Ok(false);
            };
            let version = engine.super_version().version.clone();
            let job = to_bottom(&version, request.range.clone(), HashSet::new());
            self.request = Some((request, job));
        }
        let Some((request, job)) = &mut self.request else {
            return Ok(false);
        };
        match merge::step_in_reserve(&engine, job) {
            Ok(true) => {}
            Ok(false) => {
                while admission::in_reserve(&engine, || sweep::sweep(&engine))? {}
                let range = request.range.clone();
                if let Some(job) = self.rewrite_job(&range) {
                    if let Some((_, current)) = &mut self.request {
                        *current = job;
                    }
                    return Ok(true);
                }
                install::free_garbage(&engine)?;
                if let Some((request, _)) = self.request.take() {
                    request.finish(Ok(()));
                }
            }
            Err(error) => {
                request.finish(Err(error.clone()));
                self.request = None;
                return Err(error);
            }
        }
        Ok(true)
    }

    /// The merge that rewrites a stale group inside `range`, if one was not tried yet.
    fn rewrite_job(&mut self, range: &KeyRange) -> Option<MergeJob> {
        self.engine.compactor.worker_values.lock().close_within(range);
        let (group, mut objects) = sweep::stale_group(&self.engine, range)?;
        objects.retain(|object| self.rewritten.insert(*object));
        let version = self.engine.super_version().version.clone();
        (!objects.is_empty()).then(|| to_bottom(&version, group, objects))
    }

    /// One step of the most urgent merge that the tree needs.
    fn job_step(&mut self) -> Result<bool, Error> {
        let next = match self.jobs.last() {
            None => self.next_job().or_else(|| self.tidying_job()),
            Some(job) => self.more_urgent(job),
        };
        // The more urgent merge takes from the same runs, so the rest of this one is planned again.
        if next.is_some() {
            self.jobs.retain(|job| job.urgency != MergeUrgency::ReadTriggered);
        }
        self.jobs.extend(next);
        let Some(job) = self.jobs.last_mut() else {
            return Ok(false);
        };
        let more = merge::step_in_reserve(&self.engine, job);
        if !matches!(more, Ok(true)) {
            self.jobs.pop();
        }
        more.map(|_| true)
    }

    /// The merge of a full tier that lies above all inputs of the current merge.
    fn more_urgent(&self, than: &MergeJob) -> Option<MergeJob> {
        let version = self.engine.super_version().version.clone();
        let unfinished = (than.urgency == MergeUrgency::ReadTriggered).then_some(than.target.run);
        let job = pick(&version, || self.engine.new_run(), self.engine.options.bottom_share, unfinished)?;
        (job.urgency < than.urgency).then_some(job)
    }

    fn next_job(&mut self) -> Option<MergeJob> {
        let version = self.engine.super_version().version.clone();
        if let Some(job) = pick(&version, || self.engine.new_run(), self.engine.options.bottom_share, None) {
            return Some(job);
        }
        if let Some(range) = self.deleted_range(&version) {
            return Some(to_bottom(&version, range, HashSet::new()));
        }
        drop(version);
        self.close_wasted();
        let (range, mut objects) = sweep::stale_group(&self.engine, &KeyRange::all())?;
        // Evaluated again: a flush that this waited for may point to them.
        let version = self.engine.super_version().version.clone();
        objects.retain(|object| self.rewritten.insert(*object));
        (!objects.is_empty()).then(|| to_bottom(&version, range, objects))
    }

    /// A range that is worth a merge by the data deleted in it, or that scans have paid for.
    fn deleted_range(&mut self, version: &TreeVersion) -> Option<KeyRange> {
        let engine = &self.engine;
        let oldest_snapshot = engine.snapshots.stripes().oldest();
        let of = Some((version.epoch, oldest_snapshot));
        if self.deleted.of != of {
            let areas = areas(version, oldest_snapshot, &engine.compactor.deletions);
            self.deleted = DeletedAreas { of, areas };
        }
        let may_pay = engine.options.merge_for_reads;
        let space =
            if engine.writes.pressure.is_on() { WantedSpace::AnySpace } else { WantedSpace::CheapSpace };
        wanted(&self.deleted.areas, space, |range| {
            if may_pay { engine.compactor.deletions.passed_in(range) } else { 0 }
        })
    }

    /// Closes a value object with many dead bytes, so that it can be rewritten. Does so only once writes have
    /// stopped: while they continue, the object fills up and more of it dies before it is moved.
    fn close_wasted(&mut self) {
        let wasted = sweep::wasted_values(&self.engine, &KeyRange::all());
        let writes = self.engine.counters.writes.load(Ordering::Relaxed);
        let is_idle = self.idle_since.writes == writes || self.engine.writes.pressure.is_on();
        if is_idle && !wasted.is_empty() {
            sweep::close_values(&self.engine, &wasted);
        }
        self.may_rewrite = !is_idle && !wasted.is_empty();
    }

    /// A merge that only readers benefit from, once they have wasted as many blocks as the merge moves,
    /// without a write in
    /// between. So waste and merge together cost at most twice as much as the waste.
    ///
    /// With writes in between, only scans pay: look-ups waste little, since filters answer for most runs.
    fn tidying_job(&mut self) -> Option<MergeJob> {
        let engine = &self.engine;
        // A running flush means that there were writes.
        let _no_flush = engine.compactor.worker_values.try_lock()?;
        let version = engine.super_version().version.clone();
        let found = read_triggered(&version, || engine.new_run(), engine.options.bottom_share);
        let writes = engine.counters.writes.load(Ordering::Relaxed);
        let wasted = engine.counters.wasted(version.runs.len() as u64);
        let walked = engine.counters.walked(version.runs.len() as u64);
        if self.idle_since.epoch != version.epoch {
            self.idle_since = IdleSince { epoch: version.epoch, writes, wasted, walked };
        }
        if self.idle_since.writes != writes {
            (self.idle_since.writes, self.idle_since.wasted) = (writes, wasted);
        }
        self.may_be_read_triggered = engine.options.merge_for_reads && found.is_some();
        let (job, blocks) = found.filter(|_| self.may_be_read_triggered)?;
        let paid = wasted - self.idle_since.wasted >= blocks
            || walked - self.idle_since.walked >= WALKS_PER_BLOCK * blocks;
        paid.then_some(job)
    }

    fn merges_may_run(&mut self) -> bool {
        if self.merges_from.is_some_and(|from| Instant::now() < from) {
            return false;
        }
        self.merges_from = None;
        true
    }

    /// Longest sleep without a wake-up; `None`: no limit.
    fn timeout(&self) -> Option<Duration> {
        let engine = &self.engine;
        if engine.poison.check().is_err() {
            return None;
        }
        let merges = self.merges_from.map(|from| from.saturating_duration_since(Instant::now()).max(TICK));
        let may_clear = engine.options.merge_for_reads && !self.deleted.areas.is_empty();
        let read_triggered = (self.may_be_read_triggered || self.may_rewrite || may_clear).then_some(LOOK);
        let full = engine.writes.pressure.is_on().then_some(LOOK_WHEN_FULL);
        [merges, read_triggered, full].into_iter().flatten().min()
    }

    /// Handles a failed step: a full store and damage are retried after a pause; any other error has poisoned
    /// the store.
    fn failed(&mut self, error: &Error) {
        self.jobs.clear();
        self.merges_from = Some(Instant::now() + self.pause);
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        if error.is_no_space() {
            self.pause = self.pause.min(LOOK_WHEN_FULL);
            self.engine.writes.pressure.begin();
            // The failed step returned the space that it had taken.
            self.engine.signal.wake_worker(BackgroundThread::Flusher);
            tracing::debug!("the store is full: merges wait until something is freed");
        } else if !matches!(error, Error::Closed | Error::Poisoned { .. }) {
            tracing::error!(%error, "a merge failed; damaged data stays in place");
        }
        self.finish_requests(error);
        self.engine.signal.progressed(None);
    }

    fn finish_requests(&mut self, error: &Error) {
        if let Some((request, _)) = self.request.take() {
            request.finish(Err(error.clone()));
        }
        while let Some(request) = self.engine.compactor.jobs.next() {
            request.finish(Err(error.clone()));
        }
    }
}

/// Flushes, merges `range` to the bottom, and frees the garbage of both.
pub(crate) fn compact_now(engine: &Engine, range: KeyRange) -> Result<(), Error> {
    flusher::flush_now(engine)?;
    let request = engine.compactor.jobs.request(range);
    engine.signal.wake_workers();
    engine.run_inline();
    engine.signal.wait_for(|| request.result().is_some());
    request.result().unwrap_or(Err(Error::Closed))?;
    // Freed space is reused only after a durable commit.
    let durable = engine.objects.commit(Txn::new(), Ack::Durable).wait();
    durable.map(drop).map_err(|error| engine.poison.failed_write(error))
}

#[cfg(test)]
mod parallel;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod triggers;
