//! The write fence: whether a store still accepts writes.
//!
//! Invariants
//! - A failed write or flush ends all writing until the store is opened again.

use crate::StoreError;
use copal_device::DeviceError;

/// Accepts writes until the first failure, or until the store is closed.
#[derive(Default)]
pub(crate) struct WriteFence {
    /// First failed write or flush.
    failure: Option<DeviceError>,
    closed: bool,
}

impl WriteFence {
    /// Records a failed write or flush.
    pub(crate) fn fail(&mut self, error: DeviceError) {
        self.failure.get_or_insert(error);
    }

    pub(crate) fn failure(&self) -> Option<&DeviceError> {
        self.failure.as_ref()
    }

    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether writes are accepted. A full host is named on every call: the caller may not be the one whose
    /// write failed.
    pub(crate) fn writable(&self) -> Result<(), StoreError> {
        match &self.failure {
            Some(error) if error.is_host_full() && !self.closed => Err(StoreError::Device(error.clone())),
            Some(_) => Err(StoreError::Fenced),
            None if self.closed => Err(StoreError::Fenced),
            None => Ok(()),
        }
    }
}
