//! Reasons why a pipeline ends before its disks do.

use crate::request::error::Error;

/// Reason why the reader stopped early.
pub(crate) enum Stop {
    /// The user cancelled the backup.
    Cancelled,
    /// Another thread has failed and reports the reason.
    Disconnected,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

pub(super) type Stopping<T> = Result<T, Stop>;
