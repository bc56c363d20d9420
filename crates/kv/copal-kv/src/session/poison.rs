//! Poison flag: ends all writing after a failed write, until the store is reopened.
//!
//! Invariants
//! - `NoSpace` never sets it: a full store refuses a write before anything is written.
//! - A host that runs out of space inside a write does set it. The error says so (`Error::is_host_full`): no
//!   disk failed.
//! - The flag is never cleared, and the first reason is the one that is reported.

use crate::Error;
use copal_object::StoreError;
use std::sync::OnceLock;

/// The flag of one store; see the module.
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

    /// Sets the flag for an internal failure.
    pub(crate) fn set(&self, reason: &str) {
        self.set_for(reason.to_owned(), false);
    }

    /// Sets the flag for an error that a call returned.
    pub(crate) fn set_by(&self, error: &Error) {
        match error {
            Error::Poisoned { reason, host_full } => self.set_for(reason.clone(), *host_full),
            other => self.set_for(other.to_string(), other.is_host_full()),
        }
    }

    fn set_for(&self, text: String, host_full: bool) {
        if let Err(reason) = self.reason.set(PoisonReason { text, host_full }) {
            tracing::debug!(reason = reason.text, "another failure of a poisoned store");
        } else if let Some(reason) = self.reason.get() {
            let reason = &reason.text;
            tracing::error!(reason, "the key-value store takes no more writes until it is reopened");
        }
    }

    /// Converts a failed write to this crate's error, and sets the flag unless the store was only full.
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
