//! What can go wrong with a volume or a file.

use crate::ids::{FileId, VolumeId};

/// Errors of [`VolumeStore`](crate::VolumeStore).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// Another file holds the name; final for the create that got this answer.
    #[error("the name is taken by file {fid}; choose another or delete that file")]
    Exists {
        /// The live file of that name.
        fid: FileId,
    },
    /// Another volume holds the name.
    #[error("a volume of that name exists (id {vid}); choose another name")]
    VolumeExists {
        /// The volume of that name.
        vid: VolumeId,
    },
    /// No such file, or no volume at that path, or not the file that `if_file` asked for.
    #[error("not found")]
    NotFound,
    /// The volume still holds files or volumes.
    #[error("the volume is not empty; delete what it holds first")]
    NotEmpty,
    /// The create may or may not have happened; `settle` decides it.
    #[error("the outcome of file {fid} is unknown; settle it")]
    Unknown {
        /// The file in question.
        fid: FileId,
    },
    /// Stored bytes are not what was written.
    #[error("damaged: {what}; run a check and restore it from another copy")]
    Corrupt {
        /// The file or row that is damaged.
        what: String,
    },
    /// No room for the file; nothing was written.
    #[error("the store is full; delete something or grow it")]
    NoSpace,
    /// The volume's own limit is reached; nothing was written.
    #[error("the quota of the volume is reached: {used} of {quota} bytes used, {wanted} more wanted")]
    QuotaExceeded {
        /// The volume's quota in bytes.
        quota: u64,
        /// Bytes of live files.
        used: u64,
        /// Bytes of the refused create.
        wanted: u64,
    },
    /// The volume was removed, or never existed (ids are not reused, so it is all the same).
    #[error("the volume is gone")]
    VolumeGone,
    /// The store or the credential does not permit the operation.
    #[error("denied: {reason}")]
    Denied {
        /// What forbids it.
        reason: String,
    },
    /// Not now; the same call may work later.
    #[error("unavailable: {reason}; try again")]
    Unavailable {
        /// Why not now.
        reason: String,
    },
    /// The store failed and answers nothing more until it is opened again.
    #[error("the store failed and must be opened again: {reason}")]
    Failed {
        /// The first failure.
        reason: String,
    },
    /// Too few members of the volume's group were up in time; nothing of the operation ever appears.
    #[error(
        "degraded: {have} of the {need} copies needed; start the servers that are down (`copal status` names them), or try again"
    )]
    Degraded {
        /// Copies that there were.
        have: usize,
        /// Copies that an operation needs.
        need: usize,
    },
    /// No whole copy of the volume's group is there.
    #[error(
        "incomplete: no whole copy of {what} is there; start the servers that are down (`copal status` names them)"
    )]
    Incomplete {
        /// What has no whole copy.
        what: String,
    },
    /// No answer in time.
    #[error("no answer in time: {reason}")]
    Deadline {
        /// What was waited for.
        reason: String,
    },
    /// Above a fixed limit.
    #[error("{what} is too large: {bytes} bytes, at most {limit}")]
    TooLarge {
        /// What exceeds its limit.
        what: &'static str,
        /// Its size in bytes.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The name of a file or volume breaks the rules.
    #[error("invalid name: {reason}")]
    InvalidName {
        /// Which rule it breaks.
        reason: String,
    },
}

impl VolumeError {
    /// The same call may succeed later without anything else being done.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            VolumeError::Unavailable { .. }
                | VolumeError::Degraded { .. }
                | VolumeError::Incomplete { .. }
                | VolumeError::Deadline { .. }
        )
    }
    /// The operation may have happened; `settle` tells.
    pub fn is_unknown(&self) -> bool {
        matches!(self, VolumeError::Unknown { .. })
    }
    /// Stored bytes are damaged; another replica or a backup may have them whole.
    pub fn is_corruption(&self) -> bool {
        matches!(self, VolumeError::Corrupt { .. })
    }
}
