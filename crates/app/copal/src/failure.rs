//! Failure of a command: a sentence, a code for programs, an exit code.

use crate::{
    holder_text::{self, HolderFields},
    human,
};
use copal_backup::Error;
use copal_disk::{source::SourceError, target::TargetError};
use copal_node::holders;
use copal_volume::VolumeError;
use serde::Serialize;
use std::path::Path;

/// The failure that ends a command; serialized as its JSON line.
#[derive(Debug, Serialize)]
pub(crate) struct Failure {
    /// Exit code, as documented in `--help`.
    pub(crate) exit_code: u8,
    /// Short, stable code: `wrong_password`.
    pub(crate) code: &'static str,
    /// Cause and remedy.
    #[serde(rename = "message")]
    pub(crate) sentence: String,
    #[serde(flatten)]
    pub(crate) more: Box<FailureFields>,
}

/// Further fields of the JSON line of a failure.
#[derive(Debug, Default, Serialize)]
pub(crate) struct FailureFields {
    /// Processes that use the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holders: Option<Vec<HolderFields>>,
    /// Content of a device that would be overwritten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) found: Option<String>,
    /// Id of the cluster's file that the failure is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fid: Option<String>,
    /// Trace id of the operation in the logs of the cluster's servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace: Option<String>,
}

/// Result of all fallible functions of this program.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// Exit codes of this program; others come from `copal_backup::Error`.
pub(crate) mod exit {
    pub(crate) const FAILURE: u8 = 1;
    pub(crate) const USAGE: u8 = 2;
    pub(crate) const SOURCE: u8 = 3;
    pub(crate) const NO_REPOSITORY: u8 = 10;
    pub(crate) const BUSY: u8 = 11;
    pub(crate) const PASSWORD: u8 = 12;
    pub(crate) const DAMAGED: u8 = 20;
    pub(crate) const DENIED: u8 = 21;
    pub(crate) const FULL: u8 = 28;
    pub(crate) const NOT_FOUND: u8 = 40;
    pub(crate) const EXISTS: u8 = 41;
    pub(crate) const TOO_FEW: u8 = 42;
    pub(crate) const UNKNOWN: u8 = 43;
    pub(crate) const NO_ROOM: u8 = 44;
    pub(crate) const INTERRUPTED: u8 = 130;
    /// Of `copal device fsck`, `df`, `dump` and `scrub`: damage was found.
    pub(crate) const CHECK_DAMAGE: u8 = 1;
    /// Of these: the command could not run.
    pub(crate) const CHECK_FAILED: u8 = 2;
}

impl Failure {
    pub(crate) fn new(exit_code: u8, code: &'static str, sentence: impl Into<String>) -> Failure {
        Failure { exit_code, code, sentence: sentence.into(), more: Box::default() }
    }

    /// Another process is using the store at `path`.
    pub(crate) fn busy(path: &Path) -> Failure {
        let holders = holders(path);
        let holder = match holder_text::as_text(&holders) {
            text if text.is_empty() => String::new(),
            text => format!(": {text}"),
        };
        let mut failure = Failure::new(
            exit::BUSY,
            "busy",
            format!(
                "another process is using {}{holder}; wait for it to end and try again, or let this command wait \
                 (--wait 30m)",
                path.display()
            ),
        );
        failure.more.holders = Some(holders.iter().map(HolderFields::from).collect());
        failure
    }

    /// Invalid arguments.
    pub(crate) fn usage(sentence: impl Into<String>) -> Failure {
        Failure::new(exit::USAGE, "usage", sentence)
    }

    /// A signal ended the wait for the content of a file.
    pub(crate) fn interrupted_read(file: &Path) -> Failure {
        let sentence = format!(
            "interrupted while {} was read; nothing was changed, run the command again",
            file.display()
        );
        Failure::new(exit::INTERRUPTED, "cancelled", sentence)
    }

    /// A failure with exit code 1.
    pub(crate) fn plain(code: &'static str, sentence: impl Into<String>) -> Failure {
        Failure::new(exit::FAILURE, code, sentence)
    }

    /// The store is open read-only.
    pub(crate) fn read_only(sentence: impl Into<String>) -> Failure {
        Failure::new(exit::DENIED, "read_only", sentence)
    }

    /// Replaces the failure of an interrupted operation: a source that was stopped reports a failed read.
    pub(crate) fn or_interrupted(self, interrupted: bool) -> Failure {
        if interrupted && self.exit_code != exit::INTERRUPTED {
            return Failure::new(
                exit::INTERRUPTED,
                "cancelled",
                "interrupted; the store is consistent and keeps the data of finished backups, run the command again",
            );
        }
        self
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let sentence = match &error {
            Error::Cancelled { kept_bytes: Some(0) } => {
                "interrupted; data of earlier backups is kept and nothing was added to it, run the command again"
                    .to_owned()
            }
            Error::Cancelled {
                kept_bytes: Some(kept),
            } => format!(
                "interrupted; {} already stored are kept for the next backup, run the command again",
                human::bytes(*kept)
            ),
            error => error.to_string(),
        };
        Failure::new(error.exit_code(), error.code(), sentence)
    }
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Failure {
        Failure::new(exit::SOURCE, "source", error.to_string())
    }
}

impl From<TargetError> for Failure {
    fn from(error: TargetError) -> Failure {
        let exit_code = match &error {
            TargetError::Exists { .. } => exit::DENIED,
            _ => exit::FAILURE,
        };
        Failure::new(exit_code, "target", error.to_string())
    }
}

impl From<VolumeError> for Failure {
    fn from(error: VolumeError) -> Failure {
        Failure::from(Error::from(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: `interrupted; 16961536 bytes already stored are kept`.
    /// Cause: the number of the library was printed without a unit.
    /// Fix: sizes are printed in human-readable form.
    #[test]
    fn an_interrupted_backup_prints_the_stored_bytes_with_a_unit() {
        let failure = Failure::from(Error::Cancelled { kept_bytes: Some(16_961_536) });
        assert_eq!(failure.exit_code, exit::INTERRUPTED);
        assert!(failure.sentence.contains("; 17.0 MB already stored"), "{}", failure.sentence);
        // Symptom: `0 B already stored are kept`, although an earlier try had stored data.
        // Cause: the number counts this try only. Fix: for zero there is a sentence without a number.
        let nothing = Failure::from(Error::Cancelled { kept_bytes: Some(0) });
        assert!(nothing.sentence.starts_with("interrupted; "));
        assert!(!nothing.sentence.contains("0 B"), "{}", nothing.sentence);
    }
}
