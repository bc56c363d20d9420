//! Context that the steps of a clean-up of one VM share.

use crate::backup::Collaboration;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress};
use crate::request::{CleanUpOptions, CleanUpSummary};
use crate::sessions::parts::RepositoryParts;

/// A clean-up of one VM.
pub(super) struct CleanUp<'a> {
    pub(super) parts: &'a RepositoryParts,
    pub(super) others: &'a Collaboration<'a>,
    pub(super) options: CleanUpOptions,
    pub(super) progress: &'a dyn Progress,
    pub(super) cancel: &'a CancelFlag,
    pub(super) summary: CleanUpSummary,
}

impl CleanUp<'_> {
    pub(super) fn check_cancel(&self) -> Result<()> {
        match self.cancel.is_cancelled() {
            true => Err(Error::Cancelled { kept_bytes: None }),
            false => Ok(()),
        }
    }
}
