//! Tells everybody behind a door that it is being closed: from then on every read is an I/O error.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Shared by a door and whoever closes it.
#[derive(Clone, Debug, Default)]
pub struct Closing(Arc<AtomicBool>);

impl Closing {
    /// Closes the door; it stays so.
    pub fn close(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
