//! Exclusive ownership of a store by an upper engine, so that two engines do not use the same objects.
//!
//! Invariant: either one owner that writes, or any number of owners that only read.
//! Not here: separation of processes, which the lock of the device ensures.

use crate::state::StoreCore;
use std::sync::Arc;

/// Ownership of a store until it is dropped.
pub struct StoreOwnership {
    inner: Arc<StoreCore>,
    read_only: bool,
}

impl StoreOwnership {
    pub(crate) fn take(inner: &Arc<StoreCore>, read_only: bool) -> Option<StoreOwnership> {
        let mut owners = inner.owners.0.lock();
        if owners.writer || !read_only && owners.readers > 0 {
            return None;
        }
        if read_only {
            owners.readers += 1;
        } else {
            owners.writer = true;
        }
        Some(StoreOwnership { inner: inner.clone(), read_only })
    }
}

impl Drop for StoreOwnership {
    fn drop(&mut self) {
        let mut owners = self.inner.owners.0.lock();
        if self.read_only {
            owners.readers -= 1;
        } else {
            owners.writer = false;
        }
    }
}

impl std::fmt::Debug for StoreOwnership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreOwnership").field("read_only", &self.read_only).finish_non_exhaustive()
    }
}
