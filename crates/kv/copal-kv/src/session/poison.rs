//! The flag that ends all writing after a failed write, until the store is opened again.
//!
//! Invariants
//! - `NoSpace` never sets it: a full store is refused before anything is written. A host that runs full
//!   inside a write does, and is told as that (`Error::is_host_full`): no disk failed.
//! - Once set it stays; the first reason is the one that is told.

use crate::Error;
use copal_object::StoreError;
use std::sync::OnceLock;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct PoisonFlag {
    reason: OnceLock<PoisonReason>,
}

#[derive(Debug)]
struct PoisonReason {
    text: String,
    host_full: bool,
}

impl PoisonFlag {
    /// # Errors
    /// `Poisoned` after an earlier failure.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.reason.get() {
            None => Ok(()),
            Some(reason) => Err(Error::Poisoned { reason: reason.text.clone(), host_full: reason.host_full }),
        }
    }

    /// For a failure of the engine's own.
    pub(crate) fn set(&self, reason: &str) {
        self.set_for(reason.to_owned(), false);
    }

    /// For an error that a call was answered with.
    pub(crate) fn set_by(&self, error: &Error) {
        match error {
            Error::Poisoned { reason, host_full } => self.set_for(reason.clone(), *host_full),
            other => self.set_for(other.to_string(), other.is_host_full()),
        }
    }

    fn set_for(&self, text: String, host_full: bool) {
        if let Err(reason) = self.reason.set(PoisonReason { text, host_full }) {
            tracing::debug!(reason = reason.text, "another failure of a store that takes no more writes");
        } else if let Some(reason) = self.reason.get() {
            let reason = &reason.text;
            tracing::error!(reason, "the key-value store takes no more writes until it is reopened");
        }
    }

    /// Turns a failed write into this crate's error, setting the flag unless the store was only full.
    pub(crate) fn failed_write(&self, error: StoreError) -> Error {
        match error {
            StoreError::NoSpace { .. } => Error::NoSpace,
            other => {
                let error = Error::Poisoned { reason: other.to_string(), host_full: other.is_host_full() };
                self.set_by(&error);
                error
            }
        }
    }
}
