//! Why a pipeline ends before its disks do.

use crate::request::error::Error;

/// Why the reader stopped early.
pub(crate) enum Stop {
    /// The user asked.
    Cancelled,
    /// Another thread has failed and says why.
    Disconnected,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

pub(super) type Stopping<T> = Result<T, Stop>;
