//! A value behind a lock that threads wait for, as the commit queue uses it; tests put a scheduler's in its
//! place.
//!
//! Invariants
//! - One call wakes everyone who waits; with no one waiting it costs no system call.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A value behind a lock, and those who wait for it to change.
pub(crate) trait Monitor<T>: Send + Sync {
    fn new(value: T) -> Self;
    /// Looks at the value, or changes it in a way that nobody waits for. Nothing inside blocks.
    fn with<R>(&self, look: impl FnOnce(&mut T) -> R) -> R;
    /// Changes the value; those who wait look again.
    fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R;
    /// Waits until `look` finds what it looks for; it is asked again after every [`Monitor::change`].
    fn wait_for<R>(&self, look: impl FnMut(&mut T) -> Option<R>) -> R;
}

/// Which monitors: those of threads, or a test's.
pub(crate) trait MonitorKind: Send + Sync + 'static {
    type Of<T: Send>: Monitor<T>;
}

/// Monitors of the operating system's threads.
#[derive(Debug)]
pub(crate) struct ThreadMonitors;

impl MonitorKind for ThreadMonitors {
    type Of<T: Send> = ThreadMonitor<T>;
}

/// See [`ThreadMonitors`].
#[derive(Debug)]
pub(crate) struct ThreadMonitor<T> {
    inner: Mutex<WatchedValue<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct WatchedValue<T> {
    value: T,
    waiting: u32,
}

impl<T> ThreadMonitor<T> {
    /// A panic of another holder left the value whole: nothing that is called under the lock is half done.
    fn lock(&self) -> MutexGuard<'_, WatchedValue<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send> Monitor<T> for ThreadMonitor<T> {
    fn new(value: T) -> ThreadMonitor<T> {
        ThreadMonitor { inner: Mutex::new(WatchedValue { value, waiting: 0 }), changed: Condvar::new() }
    }

    fn with<R>(&self, look: impl FnOnce(&mut T) -> R) -> R {
        look(&mut self.lock().value)
    }

    fn wait_for<R>(&self, mut look: impl FnMut(&mut T) -> Option<R>) -> R {
        let mut inner = self.lock();
        loop {
            if let Some(found) = look(&mut inner.value) {
                return found;
            }
            inner.waiting += 1;
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
            inner.waiting -= 1;
        }
    }

    fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut inner = self.lock();
        let result = change(&mut inner.value);
        let waiting = inner.waiting;
        drop(inner);
        if waiting > 0 {
            self.changed.notify_all();
        }
        result
    }
}
