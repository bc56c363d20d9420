//! What the steps of a clean-up of one VM have in common.

use crate::backup::Collaboration;
use crate::error::{Error, Result};
use crate::pack::PackNumber;
use crate::parts::Parts;
use crate::progress::{CancelFlag, Progress};
use crate::request::CleanUpSummary;

/// A clean-up of one VM.
pub(super) struct CleanUp<'a> {
    pub(super) parts: &'a Parts,
    pub(super) others: &'a Collaboration<'a>,
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

/// A pack of the VM's own chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnPack {
    pub(super) volume: u32,
    pub(super) number: PackNumber,
    /// How many it has; 0 until somebody has looked.
    pub(super) frames: u32,
}
