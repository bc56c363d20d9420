//! The flag that ends all writing after a failed write, until the store is opened again.
//!
//! Invariants
//! - `NoSpace` never sets it: a full store is refused before anything is written.
//! - Once set it stays; the first reason is the one that is told.

use crate::Error;
use copal_object::StoreError;
use std::sync::OnceLock;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Poison {
    reason: OnceLock<String>,
}

impl Poison {
    /// # Errors
    /// `Poisoned` after an earlier failure.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.reason.get() {
            None => Ok(()),
            Some(reason) => Err(Error::Poisoned {
                reason: reason.clone(),
            }),
        }
    }

    pub(crate) fn set(&self, reason: &str) {
        if self.reason.set(reason.to_owned()).is_ok() {
            tracing::error!(
                reason,
                "the key-value store takes no more writes until it is reopened"
            );
        }
    }

    /// Turns a failed write into this crate's error, setting the flag unless the store was only full.
    pub(crate) fn failed_write(&self, error: StoreError) -> Error {
        match error {
            StoreError::NoSpace { .. } => Error::NoSpace,
            other => {
                self.set(&other.to_string());
                Error::Poisoned {
                    reason: other.to_string(),
                }
            }
        }
    }
}
