//! What the threads own that flush and merge, and those that look at the tree between two of their steps.

use super::{deletions::Deletions, picker::MergeQueue, value_separation::WorkerValues};
use parking_lot::{Mutex, MutexGuard};

/// See the module.
pub(crate) struct CompactorState {
    /// Held by the worker for the length of a step, so that others can look at the tree between two steps.
    pub(crate) step: Mutex<()>,
    /// Held for the length of a flush, and of a step that moves values.
    pub(crate) worker_values: Mutex<WorkerValues>,
    pub(crate) jobs: MergeQueue,
    pub(crate) deletions: Deletions,
}

impl CompactorState {
    pub(crate) fn new(worker_values: WorkerValues) -> CompactorState {
        CompactorState {
            step: Mutex::new(()),
            worker_values: Mutex::new(worker_values),
            jobs: MergeQueue::default(),
            deletions: Deletions::default(),
        }
    }

    /// Neither flusher nor worker is in the middle of something while this is held.
    pub(crate) fn stand_still(&self) -> (MutexGuard<'_, ()>, MutexGuard<'_, WorkerValues>) {
        let step = self.step.lock();
        (step, self.worker_values.lock())
    }
}
