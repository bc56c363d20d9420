//! Bounded job queue of a real device with three priorities, shared by both engines.
//!
//! Invariants
//! - Commit goes first, then Foreground. Background gets at most a quarter of the depth while other classes
//!   have jobs, and never more than three quarters, so that an arriving commit finds a free place. While
//!   Background waits, a quarter is kept for it.
//! - A submitter blocks while [`LIMIT`] I/Os wait. An engine's own thread never blocks: it empties the queue,
//!   and a hook on it may submit.
//! - Every job taken is returned by [`JobQueue::finished`].

use crate::completion::{Completer, is_delivering_thread};
use crate::file::target::FileTarget;
use crate::{DeviceError, Io, IoClass, IoDone};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
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
    classes: [VecDeque<IoJob>; 3],
    running: [usize; 3],
    /// Jobs that were pushed and are not answered yet.
    unanswered: usize,
    depth: usize,
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

const COMMIT: usize = 0;
const FOREGROUND: usize = 1;
const BACKGROUND: usize = 2;

fn index_of(class: IoClass) -> usize {
    match class {
        IoClass::Commit => COMMIT,
        IoClass::Foreground => FOREGROUND,
        IoClass::Background => BACKGROUND,
    }
}

impl JobQueue {
    /// A queue that lets `depth` I/Os run at once. It calls `wake` when a job arrives for a sleeping engine.
    pub(crate) fn new(depth: usize, wake: impl Fn() + Send + Sync + 'static) -> JobQueue {
        let waiting = WaitingJobs {
            classes: Default::default(),
            running: [0; 3],
            unanswered: 0,
            depth,
            closed: false,
            asleep: false,
        };
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
        while waiting.queued() >= LIMIT && !is_delivering_thread() {
            self.space.wait(&mut waiting);
        }
        waiting.classes[index_of(job.io.class)].push_back(job);
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
        waiting.asleep = matches!(taken, NextJob::Nothing) && waiting.running() < waiting.depth;
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
                NextJob::Nothing if waiting.closed && waiting.queued() == 0 => return None,
                NextJob::Nothing => self.work.wait(&mut waiting),
            }
        }
    }

    fn next(&self, waiting: &mut WaitingJobs) -> NextJob {
        if let Some(class) = waiting.choose()
            && let Some(job) = waiting.classes[class].pop_front()
        {
            waiting.running[class] += 1;
            self.space.notify_one();
            return NextJob::Job(job);
        }
        let over = waiting.closed && waiting.queued() == 0 && waiting.running() == 0;
        if over { NextJob::Closed } else { NextJob::Nothing }
    }

    /// A job of `class` has ended and frees its place.
    pub(crate) fn finished(&self, class: IoClass) {
        let mut waiting = self.waiting.lock();
        waiting.running[index_of(class)] -= 1;
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

impl WaitingJobs {
    fn queued(&self) -> usize {
        self.classes.iter().map(VecDeque::len).sum()
    }

    fn running(&self) -> usize {
        self.running.iter().sum()
    }

    /// The class to serve next.
    fn choose(&self) -> Option<usize> {
        let waits = |class: usize| !self.classes[class].is_empty();
        let running = self.running();
        if running >= self.depth {
            return None;
        }
        if waits(COMMIT) {
            return Some(COMMIT);
        }
        let quarter = (self.depth / 4).max(1);
        let alone = !waits(FOREGROUND) && running == self.running[BACKGROUND];
        let share = if alone { self.depth - quarter } else { quarter };
        let background = waits(BACKGROUND) && self.running[BACKGROUND] < share.max(1);
        let others = running - self.running[BACKGROUND];
        if waits(FOREGROUND) && !(background && others >= self.depth - quarter) {
            return Some(FOREGROUND);
        }
        background.then_some(BACKGROUND)
    }
}

#[cfg(test)]
mod tests;
