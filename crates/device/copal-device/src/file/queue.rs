//! Bounded job queue of a real device, shared by both engines.
//!
//! Invariants
//! - A submitter blocks while [`LIMIT`] I/Os wait. An engine's own thread never blocks: it empties the queue,
//!   and a hook on it may submit.
//! - Every job taken is returned by [`JobQueue::finished`].
//!
//! Not here: order of the classes ([`crate::class_queue`]).

use super::target::FileTarget;
use crate::class_queue::ClassQueue;
use crate::completion::{Completer, is_delivering_thread};
use crate::{DeviceError, Io, IoClass, IoDone};
use parking_lot::{Condvar, Mutex};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// Number of waiting I/Os from which submitters block.
const LIMIT: usize = 1024;

/// Destination of one result.
pub(crate) enum JobReply {
    /// The only I/O of its call.
    Alone(Completer<Vec<IoDone>>),
    /// One of several, at this position.
    Part(Arc<ResultBatch>, usize),
}

impl JobReply {
    pub(crate) fn deliver(self, done: IoDone) {
        match self {
            JobReply::Alone(completer) => completer.complete(vec![done]),
            JobReply::Part(batch, place) => batch.put(place, done),
        }
    }

    /// Like [`JobReply::deliver`], on an engine's thread, which must survive a panicking hook because other
    /// jobs wait for it. The hook may have stopped halfway, so the device refuses writes from now on.
    pub(crate) fn deliver_from_engine(self, done: IoDone, target: &FileTarget) {
        if std::panic::catch_unwind(AssertUnwindSafe(|| self.deliver(done))).is_err() {
            target.poison(&DeviceError::Poisoned);
            tracing::error!("the hook of a completion panicked; the device takes no more writes");
        }
    }
}

/// Results of one call, collected until the last has arrived.
pub(crate) struct ResultBatch(Mutex<BatchState>);

struct BatchState {
    done: Vec<Option<IoDone>>,
    missing: usize,
    completer: Option<Completer<Vec<IoDone>>>,
}

impl ResultBatch {
    pub(crate) fn new(len: usize, completer: Completer<Vec<IoDone>>) -> Arc<ResultBatch> {
        let done = (0..len).map(|_| None).collect();
        Arc::new(ResultBatch(Mutex::new(BatchState { done, missing: len, completer: Some(completer) })))
    }

    fn put(&self, place: usize, done: IoDone) {
        let mut gathered = self.0.lock();
        gathered.done[place] = Some(done);
        gathered.missing -= 1;
        if gathered.missing > 0 {
            return;
        }
        let all = gathered.done.drain(..).flatten().collect();
        let completer = gathered.completer.take();
        drop(gathered);
        if let Some(completer) = completer {
            completer.complete(all);
        }
    }
}

/// One I/O and the destination of its result.
pub(crate) struct IoJob {
    pub(crate) io: Io,
    pub(crate) reply: JobReply,
}

struct WaitingJobs {
    jobs: ClassQueue<IoJob>,
    /// Jobs that were pushed and are not answered yet.
    unanswered: usize,
    closed: bool,
    /// The ring's thread sleeps in the kernel and must be woken.
    asleep: bool,
}

/// Wakes an engine that sleeps in the kernel.
type Wake = Box<dyn Fn() + Send + Sync>;

/// The queue in front of an engine.
pub(crate) struct JobQueue {
    waiting: Mutex<WaitingJobs>,
    work: Condvar,
    space: Condvar,
    quiet: Condvar,
    wake: Wake,
}

/// Result of [`JobQueue::take`].
pub(crate) enum NextJob {
    /// Start this one.
    Job(IoJob),
    /// No job may start now.
    Nothing,
    /// No job waits or runs, and none will come.
    Closed,
}

impl JobQueue {
    /// A queue that lets `depth` I/Os run at once. It calls `wake` when a job arrives for a sleeping engine.
    pub(crate) fn new(depth: usize, wake: impl Fn() + Send + Sync + 'static) -> JobQueue {
        let waiting =
            WaitingJobs { jobs: ClassQueue::new(depth), unanswered: 0, closed: false, asleep: false };
        JobQueue {
            waiting: Mutex::new(waiting),
            work: Condvar::new(),
            space: Condvar::new(),
            quiet: Condvar::new(),
            wake: Box::new(wake),
        }
    }

    /// Adds a job; blocks while the queue is full.
    pub(crate) fn push(&self, job: IoJob) {
        let mut waiting = self.waiting.lock();
        while waiting.jobs.queued() >= LIMIT && !is_delivering_thread() {
            self.space.wait(&mut waiting);
        }
        waiting.jobs.push(job.io.class, job);
        waiting.unanswered += 1;
        let asleep = std::mem::take(&mut waiting.asleep);
        drop(waiting);
        self.work.notify_one();
        if asleep {
            (self.wake)();
        }
    }

    /// The next job, without blocking. After `Nothing` the engine counts as asleep until a job is pushed that
    /// could start at once. At full depth only a completion frees a place, and that wakes the engine anyway.
    pub(crate) fn take(&self) -> NextJob {
        let mut waiting = self.waiting.lock();
        let taken = self.next(&mut waiting);
        waiting.asleep = matches!(taken, NextJob::Nothing) && !waiting.jobs.is_full();
        taken
    }

    /// The next job; blocks until there is one. `None`: the queue is closed and empty.
    pub(crate) fn take_blocking(&self) -> Option<IoJob> {
        let mut waiting = self.waiting.lock();
        waiting.asleep = false;
        loop {
            match self.next(&mut waiting) {
                NextJob::Job(job) => return Some(job),
                NextJob::Closed => return None,
                NextJob::Nothing if waiting.closed && waiting.jobs.queued() == 0 => return None,
                NextJob::Nothing => self.work.wait(&mut waiting),
            }
        }
    }

    fn next(&self, waiting: &mut WaitingJobs) -> NextJob {
        if let Some(job) = waiting.jobs.pop() {
            self.space.notify_one();
            return NextJob::Job(job);
        }
        let over = waiting.closed && waiting.jobs.queued() == 0 && waiting.jobs.running() == 0;
        if over { NextJob::Closed } else { NextJob::Nothing }
    }

    /// A job of `class` has ended and frees its place.
    pub(crate) fn finished(&self, class: IoClass) {
        let mut waiting = self.waiting.lock();
        waiting.jobs.finished(class);
        self.work.notify_one();
    }

    /// The answer of a job was delivered, and its hook has returned.
    pub(crate) fn answered(&self) {
        let mut waiting = self.waiting.lock();
        waiting.unanswered -= 1;
        if waiting.unanswered == 0 {
            self.quiet.notify_all();
        }
    }

    /// Waits until every answer was delivered; returns whether it had to wait. An engine's own thread does
    /// not wait: it may be the one that delivers.
    pub(crate) fn wait_idle(&self) -> bool {
        let mut waiting = self.waiting.lock();
        let busy = waiting.unanswered > 0 && !is_delivering_thread();
        while busy && waiting.unanswered > 0 {
            self.quiet.wait(&mut waiting);
        }
        busy
    }

    /// Ends pushing; waiting jobs are still done.
    pub(crate) fn close(&self) {
        let mut waiting = self.waiting.lock();
        waiting.closed = true;
        waiting.asleep = false;
        self.work.notify_all();
        (self.wake)();
    }
}

#[cfg(test)]
mod tests;
