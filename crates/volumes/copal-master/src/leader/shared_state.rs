//! Parts of a leader that calls use without the lock of its state, and the waiters for a new map.

use crate::names::path_leases::PathLeases;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicI64},
    },
    time::Duration,
};

/// Parts of a leader that calls use without the lock of its state.
#[derive(Default)]
pub(crate) struct SharedState {
    pub(crate) path_leases: Mutex<PathLeases>,
    pub(crate) is_stale: AtomicBool,
    /// How far the reference is ahead of the ruler.
    pub(crate) reference_ahead_ms: AtomicI64,
    /// The clock of at least one data server was measured.
    pub(crate) has_server_clock: AtomicBool,
    pub(crate) watchers: MapWatchers,
}

/// Threads that wait for a new map, and the hook that is called for each new map.
#[derive(Default)]
pub(crate) struct MapWatchers {
    waiting: Condvar,
    hook: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl MapWatchers {
    /// Sets the hook; the first one stays.
    pub(crate) fn set_hook(&self, hook: Box<dyn Fn() + Send + Sync>) {
        // The process that serves the master sets it once.
        let _ = self.hook.set(hook);
    }

    pub(crate) fn notify_all(&self) {
        self.waiting.notify_all();
        if let Some(hook) = self.hook.get() {
            hook();
        }
    }

    pub(crate) fn wait_while_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        condition: impl FnMut(&mut T) -> bool,
        limit: Duration,
    ) {
        self.waiting.wait_while_for(guard, condition, limit);
    }
}
