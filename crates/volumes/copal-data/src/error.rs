//! Translation of engine errors to errors of volumes, and the fence after a failed write.

use copal_volume::VolumeError;
use parking_lot::Mutex;

/// Translates an engine error of a read, or of a write that certainly did not happen.
pub(crate) fn of_engine(error: &copal_kv::Error) -> VolumeError {
    if error.is_no_space() || error.is_host_full() {
        return VolumeError::NoSpace;
    }
    if error.is_corruption() {
        return VolumeError::Corrupt { what: error.to_string() };
    }
    match error {
        copal_kv::Error::ReadOnly | copal_kv::Error::Object(copal_object::StoreError::ReadOnly) => {
            read_only()
        }
        other => VolumeError::Failed { reason: other.to_string() },
    }
}

/// Error of a write to a store that is open for reading only.
pub(crate) fn read_only() -> VolumeError {
    VolumeError::Denied { reason: "the store is open read-only".to_owned() }
}

/// Whether the engine refused the batch before it wrote any of it.
pub(crate) fn refused_cleanly(error: &copal_kv::Error) -> bool {
    let no_room = matches!(error, copal_kv::Error::OverBudget { .. } | copal_kv::Error::BatchTooLarge { .. });
    no_room || error.is_no_space() || matches!(of_engine(error), VolumeError::Denied { .. })
}

/// Error for a damaged row or body.
pub(crate) fn corrupt(what: impl Into<String>) -> VolumeError {
    VolumeError::Corrupt { what: what.into() }
}

/// The first failed write, if any. Its rows are unknown, so nothing more is written until the store is reopened.
#[derive(Default)]
pub(crate) struct WriteFence {
    stopped: Mutex<Option<WriteStop>>,
}

struct WriteStop {
    reason: String,
    /// Whether the host had no space left during the write: then no disk failed.
    is_host_full: bool,
}

impl WriteFence {
    /// Refuses a write after a failed one; nothing of it reaches the device.
    pub(crate) fn check(&self) -> Result<(), VolumeError> {
        match &*self.stopped.lock() {
            None => Ok(()),
            Some(stop) if stop.is_host_full => Err(VolumeError::NoSpace),
            Some(stop) => Err(VolumeError::Failed { reason: stop.reason.clone() }),
        }
    }

    /// Stops all later writes, and returns the reason. The outcome of the failed write is unknown.
    pub(crate) fn stop(&self, error: &copal_kv::Error) -> String {
        let stop = WriteStop { reason: error.to_string(), is_host_full: error.is_host_full() };
        let reason = stop.reason.clone();
        self.stopped.lock().get_or_insert(stop);
        reason
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.lock().is_some()
    }

    /// Whether the first failed write found the host full.
    pub(crate) fn is_host_full(&self) -> bool {
        self.stopped.lock().as_ref().is_some_and(|stop| stop.is_host_full)
    }

    /// Reason of a failed disk; `None`: no write failed, or the host was full.
    pub(crate) fn failure(&self) -> Option<String> {
        let stopped = self.stopped.lock();
        stopped.as_ref().filter(|stop| !stop.is_host_full).map(|stop| stop.reason.clone())
    }
}
