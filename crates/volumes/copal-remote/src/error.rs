//! Errors of an object store, as a person can act on them.
//!
//! Invariant: no sentence holds a header, a signature or a secret: they are made from the status and the code of an answer.

use copal_volume::{RefusalCause, VolumeError};

/// Kind of failure; each has one exit code and one kind of remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteFailure {
    /// The address or an option is wrong.
    Usage,
    /// The store does not accept the credentials, or none were found.
    Credentials,
    /// The credentials do not permit the request.
    Denied,
    /// There is no such bucket, or not in this region.
    Bucket,
    /// No connection, or no answer in time.
    Network,
    /// The store lacks a property that a repository needs.
    Unsuitable,
    /// The object is in an archive and has to be brought back first.
    Archived,
    /// The command was stopped.
    Stopped,
}

/// A failure and its sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct RemoteError {
    /// Kind of failure.
    pub failure: RemoteFailure,
    sentence: String,
}

impl RemoteError {
    /// A failure with its sentence.
    pub(crate) fn new(failure: RemoteFailure, sentence: impl Into<String>) -> RemoteError {
        RemoteError { failure, sentence: sentence.into() }
    }
}

impl From<RemoteError> for VolumeError {
    fn from(error: RemoteError) -> VolumeError {
        let reason = error.sentence;
        match error.failure {
            RemoteFailure::Network => VolumeError::Deadline { reason },
            RemoteFailure::Stopped => VolumeError::Unavailable { reason },
            RemoteFailure::Credentials => VolumeError::Refused { cause: RefusalCause::Credentials, reason },
            RemoteFailure::Bucket => VolumeError::Refused { cause: RefusalCause::Bucket, reason },
            RemoteFailure::Archived => VolumeError::Refused { cause: RefusalCause::Archived, reason },
            RemoteFailure::Usage | RemoteFailure::Denied | RemoteFailure::Unsuitable => {
                VolumeError::Denied { reason }
            }
        }
    }
}
