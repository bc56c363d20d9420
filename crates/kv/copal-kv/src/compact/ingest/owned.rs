//! What ingests under way own: the engine sweeps everything else.

use copal_object::ObjectId;
use parking_lot::Mutex;
use std::{
    collections::HashSet,
    sync::atomic::{AtomicU64, Ordering},
};

/// What ingests under way own, and whether one waits for the worker.
#[derive(Debug, Default)]
pub(crate) struct Ingests {
    /// Value objects that exist and are in no manifest yet.
    objects: Mutex<HashSet<ObjectId>>,
    pub(super) waiting: AtomicU64,
}

impl Ingests {
    /// Value objects of unfinished ingests.
    pub(crate) fn objects(&self) -> Vec<ObjectId> {
        self.objects.lock().iter().copied().collect()
    }

    /// An ingest waits for the merge under way to end its table.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    pub(super) fn own(&self, object: ObjectId) -> ObjectId {
        self.objects.lock().insert(object);
        object
    }

    pub(super) fn forget(&self, objects: &[ObjectId]) {
        let mut owned = self.objects.lock();
        owned.retain(|object| !objects.contains(object));
    }
}
