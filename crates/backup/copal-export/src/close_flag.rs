//! Close flag of an export: once it is set, every read is an I/O error.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Flag shared by an export and its owner.
#[derive(Clone, Debug, Default)]
pub struct CloseFlag(Arc<AtomicBool>);

impl CloseFlag {
    /// Closes the export for good.
    pub fn close(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the export is closed.
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
