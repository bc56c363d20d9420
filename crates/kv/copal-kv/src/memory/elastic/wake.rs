//! Wake-up and end of the thread that adjusts filters.

use parking_lot::{Condvar, Mutex};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread::JoinHandle,
};

/// Wakes and ends the thread.
#[derive(Default)]
pub(super) struct AdjusterWake {
    due: AtomicBool,
    stop: AtomicBool,
    lock: Mutex<()>,
    condition: Condvar,
    /// The thread, once started.
    pub(super) thread: Mutex<Option<JoinHandle<()>>>,
}

impl AdjusterWake {
    /// Wakes the thread. Takes a lock only if no wake-up is pending.
    pub(super) fn wake(&self) {
        if !self.due.swap(true, Ordering::AcqRel) {
            let _guard = self.lock.lock();
            self.condition.notify_one();
        }
    }

    pub(super) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Waits for a wake-up; `false`: the thread should end.
    pub(super) fn wait(&self) -> bool {
        let mut guard = self.lock.lock();
        while !self.stopping() && !self.due.load(Ordering::Acquire) {
            self.condition.wait(&mut guard);
        }
        self.due.store(false, Ordering::Release);
        !self.stopping()
    }
    /// Makes the thread end, and returns its handle to be joined.
    pub(super) fn stop(&self) -> Option<JoinHandle<()>> {
        self.stop.store(true, Ordering::Release);
        {
            let _guard = self.lock.lock();
            self.condition.notify_one();
        }
        self.thread.lock().take()
    }
}
