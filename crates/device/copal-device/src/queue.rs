//! What waits for a real device: a bounded queue of three classes, shared by both engines.
//!
//! Invariants
//! - Commit goes first, then Foreground. Background has at most a quarter of the depth while others are
//!   about, and never more than three quarters, so a commit that arrives finds room; while it waits a quarter
//!   is kept for it.
//! - Whoever submits blocks while [`LIMIT`] I/Os wait, but an engine's own thread never does: it empties the
//!   queue, and a hook that runs on it may submit.
//! - Every job taken is returned by [`JobQueue::finished`].

use crate::completion::{Completer, is_delivering_thread};
use crate::file::target::FileTarget;
use crate::{DeviceError, Io, IoClass, IoDone};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// I/Os that may wait before submitters block.
const LIMIT: usize = 1024;

/// Where one result goes.
pub(crate) enum JobReply {
    /// The only I/O of its call.
    Alone(Completer<Vec<IoDone>>),
    /// One of several, at this place.
    Part(Arc<ResultBatch>, usize),
}

impl JobReply {
    pub(crate) fn deliver(self, done: IoDone) {
        match self {
            JobReply::Alone(completer) => completer.complete(vec![done]),
            JobReply::Part(batch, place) => batch.put(place, done),
        }
    }

    /// As [`JobReply::deliver`], on an engine's thread, which has to outlive a hook that panics: others wait
    /// for it. What the hook left half done is unknown, so nothing more is written.
    pub(crate) fn deliver_from_engine(self, done: IoDone, target: &FileTarget) {
        if std::panic::catch_unwind(AssertUnwindSafe(|| self.deliver(done))).is_err() {
            target.poison(&DeviceError::Poisoned);
            tracing::error!("the hook of a completion panicked; the device takes no more writes");
        }
    }
}

/// Results of one call, gathered until the last is there.
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

/// One I/O and where its result goes.
pub(crate) struct IoJob {
    pub(crate) io: Io,
    pub(crate) reply: JobReply,
}

struct WaitingJobs {
    classes: [VecDeque<IoJob>; 3],
    running: [usize; 3],
    /// Jobs that were pushed and whose answer was not delivered yet.
    unanswered: usize,
    depth: usize,
    closed: bool,
    /// The ring's thread sleeps in the kernel and has to be woken.
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

/// What an engine's thread gets when it asks for a job.
pub(crate) enum NextJob {
    /// Start this one.
    Job(IoJob),
    /// Nothing may start now.
    Nothing,
    /// Nothing waits, nothing runs, and nothing will come.
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
    /// A queue that lets `depth` I/Os run at once; `wake` is called when something comes for a sleeping
    /// engine.
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

    /// The next job, without blocking. With `Nothing` the engine counts as asleep until something is pushed
    /// that could start at once; at full depth only a completion helps, and that wakes it anyway.
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

    /// A job of `class` has ended: its place is free.
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

    /// Waits until every answer was delivered; whether there was one to wait for. An engine's own thread does
    /// not wait: it may be the one to deliver.
    pub(crate) fn wait_idle(&self) -> bool {
        let mut waiting = self.waiting.lock();
        let busy = waiting.unanswered > 0 && !is_delivering_thread();
        while busy && waiting.unanswered > 0 {
            self.quiet.wait(&mut waiting);
        }
        busy
    }

    /// No more jobs will be pushed; those that wait are still done.
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

    /// The class whose turn it is.
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
