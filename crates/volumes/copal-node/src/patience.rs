//! Waiting for a store that another process has open.

use crate::holder::{LockHolder, holders};
use copal_device::DeviceOpenError;
use copal_object::StoreOpenError;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Least time to wait for a lock, also without any patience.
///
/// After the end of a process the kernel removes its io_uring in the background. Until then the ring's
/// reference to the file keeps the lock: some milliseconds, more on a loaded machine.
const LEAST: Duration = Duration::from_secs(2);
const FIRST_STEP: Duration = Duration::from_millis(10);
/// Interval of attempts once another process is known to work.
const STEP: Duration = Duration::from_millis(100);

/// Called once when a wait is longer than a moment, with the path and its holders.
type WaitReport = dyn Fn(&Path, &[LockHolder]) + Send + Sync;

/// Limit, cancellation and report of a program's waits. Cheap to clone.
#[derive(Clone)]
pub struct Patience {
    limit: Duration,
    is_cancelled: Arc<dyn Fn() -> bool + Send + Sync>,
    tell: Arc<WaitReport>,
}

impl Patience {
    /// Waits up to `limit`, or until `is_cancelled`.
    pub fn new(
        limit: Duration,
        is_cancelled: impl Fn() -> bool + Send + Sync + 'static,
        tell: impl Fn(&Path, &[LockHolder]) + Send + Sync + 'static,
    ) -> Patience {
        Patience { limit, is_cancelled: Arc::new(is_cancelled), tell: Arc::new(tell) }
    }

    /// Waits only for the lock of a process that has just ended: two seconds.
    pub fn none() -> Patience {
        Patience::new(Duration::ZERO, || false, |_, _| ())
    }

    /// Repeats `attempt` until no other process is in the way or patience ends; `path` names the awaited
    /// object. Blocks.
    /// # Errors
    /// The error of the last `attempt`.
    pub fn wait<T, E>(
        &self,
        path: &Path,
        is_held: impl Fn(&E) -> bool,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let began = Instant::now();
        let mut reported = false;
        loop {
            let outcome = attempt();
            let waits = outcome.as_ref().is_err_and(&is_held);
            if !waits || (self.is_cancelled)() || began.elapsed() >= self.limit {
                return outcome;
            }
            if !reported {
                reported = true;
                (self.tell)(path, &[]);
            }
            std::thread::park_timeout(STEP);
        }
    }

    /// Opens the store at `path`; retries while another process holds its lock.
    /// # Errors
    /// Those of `open`; `Locked` when patience ended.
    pub(crate) fn open<T>(
        &self,
        path: &Path,
        open: impl Fn() -> Result<T, StoreOpenError>,
    ) -> Result<T, StoreOpenError> {
        let began = Instant::now();
        let mut reported = false;
        loop {
            let outcome = open();
            let is_locked = matches!(outcome, Err(StoreOpenError::Open(DeviceOpenError::Locked { .. })));
            if !is_locked || (self.is_cancelled)() || began.elapsed() >= self.limit.max(LEAST) {
                return outcome;
            }
            if began.elapsed() < LEAST {
                std::thread::park_timeout(FIRST_STEP);
                continue;
            }
            if !reported {
                reported = true;
                (self.tell)(path, &holders(path));
            }
            std::thread::park_timeout(STEP);
        }
    }
}

impl std::fmt::Debug for Patience {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Patience").field("limit", &self.limit).finish_non_exhaustive()
    }
}
