//! The background thread that adjusts while Gets go on.
//!
//! Invariants
//! - It sleeps until enough was sampled or a table came or went; it never polls.
//! - It ends, and is joined, with the memory it serves.

use super::adjust::Elastic;
use parking_lot::{Condvar, Mutex};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

/// Wakes and ends the thread.
#[derive(Default)]
pub(super) struct Wake {
    due: AtomicBool,
    stop: AtomicBool,
    lock: Mutex<()>,
    condition: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Wake {
    /// There is something to do. Takes a lock only when nobody has said so since the last time.
    pub(super) fn wake(&self) {
        if !self.due.swap(true, Ordering::AcqRel) {
            let _guard = self.lock.lock();
            self.condition.notify_one();
        }
    }

    pub(super) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Waits for something to do; `false`: to stop.
    fn wait(&self) -> bool {
        let mut guard = self.lock.lock();
        while !self.stopping() && !self.due.load(Ordering::Acquire) {
            self.condition.wait(&mut guard);
        }
        self.due.store(false, Ordering::Release);
        !self.stopping()
    }
}

impl Elastic {
    /// Starts the thread, once, if there is to be one.
    pub(super) fn start(self: &Arc<Self>) {
        if !self.options.background {
            return;
        }
        let mut thread = self.wake.thread.lock();
        if thread.is_some() || self.wake.stopping() {
            return;
        }
        let elastic = self.clone();
        let spawned = std::thread::Builder::new()
            .name("copal-kv-filters".to_owned())
            .spawn(move || {
                while elastic.wake.wait() {
                    elastic.adjust();
                }
            });
        match spawned {
            Ok(handle) => *thread = Some(handle),
            Err(error) => tracing::warn!(%error, "no thread for the filters: they stay as they are"),
        }
    }

    /// Ends the thread. Waits for the read it is doing.
    pub(crate) fn stop(&self) {
        self.wake.stop.store(true, Ordering::Release);
        {
            let _guard = self.wake.lock.lock();
            self.wake.condition.notify_one();
        }
        let thread = self.wake.thread.lock().take();
        // The thread itself may drop the last table, and the memory with it: then it is on its way out already.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id())
            && thread.join().is_err()
        {
            tracing::error!("the thread that adjusts filters panicked");
        }
    }
}
