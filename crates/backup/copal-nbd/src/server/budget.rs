//! Byte budgets for requests in memory: one per connection, and a pool for all connections.

use parking_lot::{Condvar, Mutex};

/// A number of bytes to be shared.
pub(crate) struct ByteBudget {
    left: Mutex<u64>,
    given_back: Condvar,
}

impl ByteBudget {
    pub(crate) fn new(bytes: u64) -> ByteBudget {
        ByteBudget { left: Mutex::new(bytes), given_back: Condvar::new() }
    }

    /// Takes bytes, at most the total of the budget. Blocks until they are available, so it is used only
    /// where a client waits for its own requests.
    pub(crate) fn take(&self, bytes: u64) -> TakenBytes<'_> {
        let mut left = self.left.lock();
        while *left < bytes {
            self.given_back.wait(&mut left);
        }
        *left -= bytes;
        TakenBytes { budget: self, bytes }
    }

    /// Takes bytes if they are available.
    pub(crate) fn try_take(&self, bytes: u64) -> Option<TakenBytes<'_>> {
        let mut left = self.left.lock();
        *left = left.checked_sub(bytes)?;
        Some(TakenBytes { budget: self, bytes })
    }
}

/// Bytes of a budget, returned on drop.
pub(crate) struct TakenBytes<'a> {
    budget: &'a ByteBudget,
    bytes: u64,
}

impl Drop for TakenBytes<'_> {
    fn drop(&mut self) {
        *self.budget.left.lock() += self.bytes;
        self.budget.given_back.notify_all();
    }
}
