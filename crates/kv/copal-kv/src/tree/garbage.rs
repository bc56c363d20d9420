//! Garbage list: objects and bytes that no new reader needs but an old one may still read.
//!
//! Invariants
//! - An item becomes garbage when a version is installed that does not name it. It is freed when no version
//!   from before that moment is pinned any more.
//! - A crash may lose a pending free, but nothing is freed too early: the next opening sweeps objects that no
//!   manifest names.

use crate::session::signal::WakeSignal;
use copal_object::ObjectId;
use parking_lot::Mutex;
use std::{
    collections::{BTreeSet, VecDeque},
    ops::Range,
    sync::Arc,
};

/// One item to free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GarbageItem {
    Delete(ObjectId),
    Punch(ObjectId, Range<u64>),
}

/// Numbers of the versions in use.
#[derive(Debug, Default)]
pub(crate) struct VersionEpochs {
    alive: Mutex<BTreeSet<u64>>,
    signal: Arc<WakeSignal>,
}

impl VersionEpochs {
    /// `signal` wakes the workers when a version is dropped, since garbage may be free then.
    pub(crate) fn new(signal: Arc<WakeSignal>) -> VersionEpochs {
        VersionEpochs { alive: Mutex::default(), signal }
    }

    pub(crate) fn enter(&self, epoch: u64) {
        self.alive.lock().insert(epoch);
    }

    pub(crate) fn leave(&self, epoch: u64) {
        self.alive.lock().remove(&epoch);
        self.signal.wake_workers();
    }

    fn oldest(&self) -> u64 {
        self.alive.lock().first().copied().unwrap_or(u64::MAX)
    }
}

/// Garbage that waits for old versions to be dropped.
#[derive(Debug, Default)]
pub(crate) struct GarbageList {
    waiting: Mutex<VecDeque<(u64, Vec<GarbageItem>)>>,
}

impl GarbageList {
    /// Adds `items`, which readers of versions up to `epoch` may still read.
    pub(crate) fn add(&self, epoch: u64, items: Vec<GarbageItem>) {
        if !items.is_empty() {
            self.waiting.lock().push_back((epoch, items));
        }
    }

    /// All pending items.
    pub(crate) fn items(&self) -> Vec<GarbageItem> {
        self.waiting.lock().iter().flat_map(|(_, items)| items.iter().cloned()).collect()
    }

    /// Takes the items that no version in use can reach.
    pub(crate) fn take(&self, epochs: &VersionEpochs) -> Vec<GarbageItem> {
        let mut waiting = self.waiting.lock();
        let oldest = epochs.oldest();
        let mut free = Vec::new();
        while waiting.front().is_some_and(|(epoch, _)| *epoch < oldest) {
            free.extend(waiting.pop_front().map(|(_, items)| items).unwrap_or_default());
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_freed_while_an_older_version_lives() {
        let (epochs, garbage) = (VersionEpochs::default(), GarbageList::default());
        epochs.enter(1);
        epochs.enter(2);
        garbage.add(1, vec![GarbageItem::Delete(ObjectId(7))]);
        epochs.enter(3);
        garbage.add(2, vec![GarbageItem::Punch(ObjectId(8), 0..4096)]);
        epochs.leave(2);
        assert!(garbage.take(&epochs).is_empty());
        epochs.leave(1);
        assert_eq!(garbage.take(&epochs).len(), 2);
        assert!(garbage.take(&epochs).is_empty());
    }
}
