//! Bytes of requests that all connections of a server may hold at once.

use parking_lot::{Condvar, Mutex};

/// A number of bytes that is shared out; who wants more than is left waits.
pub(crate) struct Budget {
    left: Mutex<u64>,
    given_back: Condvar,
}

impl Budget {
    pub(crate) fn new(bytes: u64) -> Budget {
        Budget {
            left: Mutex::new(bytes),
            given_back: Condvar::new(),
        }
    }

    #[cfg(test)]
    pub(crate) fn left(&self) -> u64 {
        *self.left.lock()
    }

    /// Takes so many bytes, which must not be more than there are in all. Blocks until they are there.
    pub(crate) fn take(&self, bytes: u64) -> Taken<'_> {
        let mut left = self.left.lock();
        while *left < bytes {
            self.given_back.wait(&mut left);
        }
        *left -= bytes;
        Taken { budget: self, bytes }
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
