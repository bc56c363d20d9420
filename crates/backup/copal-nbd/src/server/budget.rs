//! Bytes of requests that are held in memory: those of one connection, and a pool that all connections share.

use parking_lot::{Condvar, Mutex};

/// A number of bytes that is shared out.
pub(crate) struct Budget {
    left: Mutex<u64>,
    given_back: Condvar,
}

impl Budget {
    pub(crate) fn new(bytes: u64) -> Budget {
        Budget { left: Mutex::new(bytes), given_back: Condvar::new() }
    }

    /// Takes so many bytes, which must not be more than there are in all. Blocks until they are there, so
    /// only for what one client waits for through its own fault.
    pub(crate) fn take(&self, bytes: u64) -> Taken<'_> {
        let mut left = self.left.lock();
        while *left < bytes {
            self.given_back.wait(&mut left);
        }
        *left -= bytes;
        Taken { budget: self, bytes }
    }

    /// Takes so many bytes if they are there.
    pub(crate) fn try_take(&self, bytes: u64) -> Option<Taken<'_>> {
        let mut left = self.left.lock();
        *left = left.checked_sub(bytes)?;
        Some(Taken { budget: self, bytes })
    }
}

/// Bytes of a budget; given back when it is dropped.
pub(crate) struct Taken<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.budget.left.lock() += self.bytes;
        self.budget.given_back.notify_all();
    }
}
