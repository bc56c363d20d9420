//! Translation of engine errors to errors of volumes.

use copal_volume::VolumeError;

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

/// Reason that a store accepts no more writes until it is reopened.
#[derive(Clone, Debug)]
pub(crate) struct WriteStop {
    pub(crate) reason: String,
    /// Whether the host had no space left during a write: then no disk failed.
    pub(crate) is_host_full: bool,
}

impl WriteStop {
    pub(crate) fn by(error: &copal_kv::Error) -> WriteStop {
        WriteStop { reason: error.to_string(), is_host_full: error.is_host_full() }
    }

    /// Error of each later write; nothing of that write reaches the device.
    pub(crate) fn refusal(&self) -> VolumeError {
        if self.is_host_full {
            return VolumeError::NoSpace;
        }
        VolumeError::Failed { reason: self.reason.clone() }
    }
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
