//! Primitives of [`super::slot`]; the model checker substitutes its own.

use std::sync::atomic::{AtomicU32, Ordering};
pub(crate) use std::{sync::Arc, thread::yield_now};

/// A pointer that is read without a lock and swapped.
pub(crate) struct Cell<T>(arc_swap::ArcSwapOption<T>);

impl<T> Default for Cell<T> {
    fn default() -> Cell<T> {
        Cell(arc_swap::ArcSwapOption::const_empty())
    }
}

impl<T> Cell<T> {
    pub(crate) fn with<R>(&self, look: impl FnOnce(Option<&T>) -> R) -> R {
        look(self.0.load().as_deref())
    }

    /// Stores `new` and returns the previous contents. Once this returns, readers of the previous contents
    /// hold counted references.
    pub(crate) fn swap(&self, new: Option<Arc<T>>) -> Option<Arc<T>> {
        self.0.swap(new)
    }
}

/// A number that any thread may read and set.
pub(crate) struct Number(AtomicU32);

impl Number {
    pub(crate) const fn new(number: u32) -> Number {
        Number(AtomicU32::new(number))
    }

    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, number: u32) {
        self.0.store(number, Ordering::Relaxed);
    }
}
