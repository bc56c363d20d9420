//! What flusher and worker do, done inside the calls of a store that has no threads: after a commit, and
//! wherever a caller would wait for one of them. Merges that failed are tried again with the next call, and
//! deferred writes go with the next write, since nothing here looks at a clock.
//!
//! Invariant: the same calls on the same device do the same in the same order.
//!
//! Not here: the work itself (`flusher`, `worker`), who calls (`engine`).

use parking_lot::Mutex;

/// Flusher and worker as what a call does.
pub(crate) trait InlineWork: Send {
    /// One piece of work; `false` when there was nothing to do, or it failed.
    fn step(&mut self) -> bool;
    /// There are no more steps; whoever asked for a merge is told.
    fn end(&mut self);
}

/// See the module; empty in a store with threads, and once the store has ended.
#[derive(Default)]
pub(crate) struct InlineWorker {
    work: Mutex<Option<Box<dyn InlineWork>>>,
}

impl InlineWorker {
    /// From now on the calls do the work.
    pub(crate) fn begin(&self, work: Box<dyn InlineWork>) {
        *self.work.lock() = Some(work);
    }

    /// No call does any more.
    pub(crate) fn end(&self) {
        let work = self.work.lock().take();
        if let Some(mut work) = work {
            work.end();
        }
    }

    /// Does what there is to do; nothing within itself.
    pub(crate) fn run(&self) {
        if let Some(mut work) = self.work.try_lock()
            && let Some(work) = work.as_mut()
        {
            while work.step() {}
        }
    }
}
