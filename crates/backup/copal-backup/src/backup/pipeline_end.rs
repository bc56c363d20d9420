//! Reasons why a pipeline ends before its disks are read to the end.

use crate::request::error::Error;

/// Reason why the reader stopped early.
pub(crate) enum PipelineEnd {
    /// The user cancelled the backup.
    Cancelled,
    /// Another thread has failed and reports the reason.
    Disconnected,
    Failed(Error),
}

impl From<Error> for PipelineEnd {
    fn from(error: Error) -> PipelineEnd {
        PipelineEnd::Failed(error)
    }
}

pub(super) type PipelineResult<T> = Result<T, PipelineEnd>;
