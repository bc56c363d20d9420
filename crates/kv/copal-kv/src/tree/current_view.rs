//! The current view of a store: readers take it without a lock.
//!
//! Invariant: a reader's memtables hold everything up to its sequence. So the view that a reader takes was the current
//! one when it took its sequence: a write enters a memtable of the current view before its sequence becomes visible.

use super::version::SuperVersion;
use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use std::sync::Arc;

/// See the module.
pub(crate) struct CurrentView {
    view: ArcSwap<SuperVersion>,
    /// Held for the length of a change.
    change: Mutex<()>,
}

impl CurrentView {
    pub(crate) fn new(view: SuperVersion) -> CurrentView {
        CurrentView { view: ArcSwap::from_pointee(view), change: Mutex::new(()) }
    }

    pub(crate) fn get(&self) -> Guard<Arc<SuperVersion>> {
        self.view.load()
    }

    /// The view, and the newest sequence at which it may be read; `visible` gives the newest one of the store.
    pub(crate) fn now(&self, visible: impl Fn() -> u64) -> (Guard<Arc<SuperVersion>>, u64) {
        loop {
            let view = self.view.load();
            let seq = visible();
            // No view becomes the current one twice, and this one cannot be freed and replaced by another in its place.
            if Arc::ptr_eq(&view, &self.view.load()) {
                return (view, seq);
            }
        }
    }

    /// Replaces the view by one derived from it.
    pub(crate) fn change(&self, change: impl FnOnce(&SuperVersion) -> SuperVersion) {
        let changing = self.change.lock();
        let new = change(&self.view.load());
        let old = self.view.swap(Arc::new(new));
        drop(changing);
        // Dropped after the lock is released: dropping the last reference to a version frees tables.
        drop(old);
    }
}
