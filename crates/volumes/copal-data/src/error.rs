//! What an error of the engine means to a user of volumes.

use copal_volume::VolumeError;

/// The meaning of an engine error in a read, or in a write that certainly did not happen.
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

/// A write to a store that is open for reading only.
pub(crate) fn read_only() -> VolumeError {
    VolumeError::Denied { reason: "the store is open read-only".to_owned() }
}

/// Why a store takes no more writes until it is opened again.
#[derive(Clone, Debug)]
pub(crate) struct Stop {
    pub(crate) reason: String,
    /// The host ran full inside a write: no disk failed.
    pub(crate) is_host_full: bool,
}

impl Stop {
    pub(crate) fn by(error: &copal_kv::Error) -> Stop {
        Stop { reason: error.to_string(), is_host_full: error.is_host_full() }
    }

    /// The answer to a write that comes later: nothing of it is written.
    pub(crate) fn refusal(&self) -> VolumeError {
        if self.is_host_full {
            return VolumeError::NoSpace;
        }
        VolumeError::Failed { reason: self.reason.clone() }
    }
}

/// The engine refused the batch before writing any of it.
pub(crate) fn refused_cleanly(error: &copal_kv::Error) -> bool {
    let no_room = matches!(error, copal_kv::Error::OverBudget { .. } | copal_kv::Error::BatchTooLarge { .. });
    no_room || error.is_no_space() || matches!(of_engine(error), VolumeError::Denied { .. })
}

/// Damage found in a row or a body.
pub(crate) fn corrupt(what: impl Into<String>) -> VolumeError {
    VolumeError::Corrupt { what: what.into() }
}
