//! Wake-ups between writers, readers, flusher and worker. No thread spins.
//!
//! Invariants
//! - `wake_workers` may be called under any lock: the lock here is a leaf.

use parking_lot::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// A thread that sleeps while it has nothing to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BackgroundThread {
    Flusher,
    Worker,
}

#[derive(Debug, Default)]
struct SignalState {
    /// Per thread: it may have work.
    woken: [bool; 2],
    stop: bool,
    /// The last flush found no space.
    flush_stuck: bool,
    /// Freeze the memtable soon, even if it is not full.
    rotate: bool,
    /// Count of finished steps of flusher and worker; waiters check their condition again when it changes.
    progress: u64,
    /// Threads that sleep until `progress` changes.
    #[cfg(test)]
    asleep: usize,
}

/// Wake-ups of one store; see the module.
#[derive(Debug, Default)]
pub(crate) struct WakeSignal {
    inner: Mutex<SignalState>,
    sleepers: [Condvar; 2],
    waiters: Condvar,
}

impl WakeSignal {
    /// Wakes flusher and worker.
    pub(crate) fn wake_workers(&self) {
        self.inner.lock().woken = [true; 2];
        self.notify_sleepers();
    }

    fn notify_sleepers(&self) {
        for sleeper in &self.sleepers {
            sleeper.notify_one();
        }
    }

    /// Wakes one of the background threads.
    pub(crate) fn wake_worker(&self, who: BackgroundThread) {
        self.inner.lock().woken[who as usize] = true;
        self.sleepers[who as usize].notify_one();
    }

    /// Clears the wake-ups and returns whether there were any; for callers that do the background work
    /// themselves.
    pub(crate) fn take_wakes(&self) -> bool {
        std::mem::take(&mut self.inner.lock().woken).contains(&true)
    }

    /// Makes flusher and worker end after their current step.
    pub(crate) fn stop(&self) {
        self.inner.lock().stop = true;
        self.notify_sleepers();
        self.waiters.notify_all();
    }

    pub(crate) fn stopping(&self) -> bool {
        self.inner.lock().stop
    }

    /// Sleeps until woken, stopped, or `timeout` has passed.
    pub(crate) fn sleep(&self, who: BackgroundThread, timeout: Option<Duration>) {
        let who = who as usize;
        let mut inner = self.inner.lock();
        if !inner.woken[who] && !inner.stop {
            match timeout {
                Some(timeout) => drop(self.sleepers[who].wait_for(&mut inner, timeout)),
                None => self.sleepers[who].wait(&mut inner),
            }
        }
        inner.woken[who] = false;
    }

    /// Flusher or worker finished a step: waiters check their condition again.
    pub(crate) fn progressed(&self, flush_stuck: Option<bool>) {
        let mut inner = self.inner.lock();
        inner.progress += 1;
        if let Some(stuck) = flush_stuck {
            inner.flush_stuck = stuck;
        }
        drop(inner);
        self.waiters.notify_all();
    }

    pub(crate) fn flush_is_stuck(&self) -> bool {
        self.inner.lock().flush_stuck
    }

    /// Requests that the memtable be frozen as soon as that needs no waiting.
    pub(crate) fn request_rotation(&self) {
        self.inner.lock().rotate = true;
        self.wake_worker(BackgroundThread::Flusher);
    }

    /// Like [`WakeSignal::request_rotation`], but wakes no thread; the next wake-up handles it.
    pub(crate) fn request_rotation_quietly(&self) {
        self.inner.lock().rotate = true;
    }

    /// Whether a requested rotation is still pending.
    pub(crate) fn rotation_wanted(&self) -> bool {
        self.inner.lock().rotate
    }

    pub(crate) fn take_rotation_request(&self) -> bool {
        std::mem::take(&mut self.inner.lock().rotate)
    }

    /// Waits until `done`, a flush without space, or the end of the session.
    pub(crate) fn wait_for_flush(&self, done: impl Fn() -> bool) {
        self.wait_until(|inner| inner.flush_stuck || done());
    }

    /// Waits until `done` or the end of the session.
    pub(crate) fn wait_for(&self, done: impl Fn() -> bool) {
        self.wait_until(|_| done());
    }

    fn wait_until(&self, done: impl Fn(&SignalState) -> bool) {
        loop {
            let before = self.inner.lock().progress;
            // `done` may take other locks, so it runs without this one; a change of `progress` reveals a
            // missed wake-up.
            let snapshot = {
                let inner = self.inner.lock();
                SignalState { flush_stuck: inner.flush_stuck, stop: inner.stop, ..SignalState::default() }
            };
            if snapshot.stop || done(&snapshot) {
                return;
            }
            let mut inner = self.inner.lock();
            if inner.progress == before && !inner.stop {
                #[cfg(test)]
                {
                    inner.asleep += 1;
                }
                self.waiters.wait(&mut inner);
                #[cfg(test)]
                {
                    inner.asleep -= 1;
                }
            }
        }
    }

    /// Whether a thread waits for a step to finish.
    #[cfg(test)]
    pub(crate) fn someone_waits(&self) -> bool {
        self.inner.lock().asleep > 0
    }

    /// Delays a writer for `delay`, or less if `settled` becomes true.
    pub(crate) fn delay_writer(&self, delay: Duration, settled: impl Fn() -> bool) {
        let deadline = Instant::now() + delay;
        loop {
            let before = {
                let inner = self.inner.lock();
                if inner.stop {
                    return;
                }
                inner.progress
            };
            // Called without this lock, which is a leaf; a change of `progress` reveals a missed wake-up.
            if settled() {
                return;
            }
            let mut inner = self.inner.lock();
            while inner.progress == before && !inner.stop {
                if self.waiters.wait_until(&mut inner, deadline).timed_out() {
                    return;
                }
            }
        }
    }
}
