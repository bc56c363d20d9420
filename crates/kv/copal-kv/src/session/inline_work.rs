//! Flushes and merges inside the calls of a store without threads: after each commit, and wherever a caller
//! would otherwise wait for a background thread.
//!
//! A failed merge is retried by the next call. Deferred writes are logged with the next write, since no code
//! here reads a clock.
//!
//! Invariant: the same calls on the same device do the same work in the same order.
//!
//! Not here: the work itself (`flusher`, `worker`), its callers (`engine`).

use parking_lot::Mutex;

/// Flusher and worker as steps of a call.
pub(crate) trait InlineWork: Send {
    /// Does one step; `false` when there was nothing to do or the step failed.
    fn step(&mut self) -> bool;
    /// No further step will run; callers that wait for a merge are notified.
    fn end(&mut self);
}

/// Inline worker of a store; empty in a store with threads, and after the store was closed.
#[derive(Default)]
pub(crate) struct InlineWorker {
    work: Mutex<Option<Box<dyn InlineWork>>>,
}

impl InlineWorker {
    /// Starts to run `work` inside calls.
    pub(crate) fn begin(&self, work: Box<dyn InlineWork>) {
        *self.work.lock() = Some(work);
    }

    /// Stops running work inside calls.
    pub(crate) fn end(&self) {
        let work = self.work.lock().take();
        if let Some(mut work) = work {
            work.end();
        }
    }

    /// Runs all pending steps; a recursive call does nothing.
    pub(crate) fn run(&self) {
        if let Some(mut work) = self.work.try_lock()
            && let Some(work) = work.as_mut()
        {
            while work.step() {}
        }
    }
}
