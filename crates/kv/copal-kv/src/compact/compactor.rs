//! State and locks of flusher and worker, and the lock that stops both between two steps.

use super::{deletions::Deletions, picker::MergeQueue, value_separation::WorkerValues};
use parking_lot::{Mutex, MutexGuard};

/// State of flushes and merges; see the module.
pub(crate) struct CompactorState {
    /// Held by the worker for the length of a step, so that other threads can read the tree between two
    /// steps.
    pub(crate) step: Mutex<()>,
    /// Held for the length of a flush, and of a merge step that moves values.
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

    /// Waits until neither flusher nor worker is inside a step, and keeps it so while the guards are held.
    pub(crate) fn stand_still(&self) -> (MutexGuard<'_, ()>, MutexGuard<'_, WorkerValues>) {
        let step = self.step.lock();
        (step, self.worker_values.lock())
    }
}
