//! Failures of copies: the side that failed, and the snapshots that are not worth a try after them.

use crate::request::error::Error;

/// A repository of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopySide {
    /// The repository to copy from.
    Source,
    /// The repository to copy to.
    Target,
}

/// Why a snapshot was not copied.
#[derive(Debug)]
pub struct CopyFailure {
    /// The repository that failed.
    pub side: CopySide,
    /// Its error.
    pub error: Error,
}

/// The snapshots that a failure concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureScope {
    /// One snapshot: later ones can be copied.
    Snapshot,
    /// The VM: a later snapshot of it must wait, since an older one could not follow it.
    Vm,
    /// All snapshots.
    All,
}

impl CopyFailure {
    pub(super) fn of_source(error: Error) -> CopyFailure {
        CopyFailure { side: CopySide::Source, error }
    }

    pub(super) fn of_target(error: Error) -> CopyFailure {
        CopyFailure { side: CopySide::Target, error }
    }

    /// The snapshots that the failure concerns.
    pub fn scope(&self) -> FailureScope {
        let is_gone = matches!(self.error, Error::NotFound { .. });
        match (self.side, &self.error) {
            (_, Error::SelfCheck) => FailureScope::All,
            (CopySide::Source, error) if error.is_corruption() || is_gone => FailureScope::Snapshot,
            (CopySide::Target, error) if error.is_corruption() || is_gone => FailureScope::Vm,
            (
                _,
                Error::Busy { .. }
                | Error::SessionOpen { .. }
                | Error::Fenced
                | Error::Denied { .. }
                | Error::Invalid { .. }
                | Error::Source { .. },
            ) => FailureScope::Vm,
            _ => FailureScope::All,
        }
    }
}
