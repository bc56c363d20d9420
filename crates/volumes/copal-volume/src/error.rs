//! Errors of volumes and files.

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
    /// No such file, no volume at that path, or another file than the one in `if_file`.
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
    /// Stored bytes differ from those written.
    #[error("damaged: {what}; run a check and restore it from another copy")]
    Corrupt {
        /// The file or row that is damaged.
        what: String,
    },
    /// Not enough space for the file; nothing was written.
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
    /// The volume was removed, or never existed. Ids are not reused, so both have one answer.
    #[error("the volume is gone")]
    VolumeGone,
    /// The store or the credential does not permit the operation.
    #[error("denied: {reason}")]
    Denied {
        /// Reason of the refusal.
        reason: String,
    },
    /// An object store of other people serves nothing until a person has acted.
    #[error("{reason}")]
    Refused {
        /// Kind of reason.
        cause: RefusalCause,
        /// The reason, and the act that helps.
        reason: String,
    },
    /// Temporarily impossible; the same call may work later.
    #[error("unavailable: {reason}; try again")]
    Unavailable {
        /// Reason.
        reason: String,
    },
    /// The store failed and refuses all calls until it is reopened.
    #[error("the store failed and must be opened again: {reason}")]
    Failed {
        /// The first failure.
        reason: String,
    },
    /// Too few members of the volume's group were up in time; no effect of the operation ever appears.
    #[error(
        "degraded: {have} of the {need} copies needed; start the servers that are down (`copal status` names them), or try again"
    )]
    Degraded {
        /// Number of available copies.
        have: usize,
        /// Number of copies that an operation needs.
        need: usize,
    },
    /// No in-sync copy of the volume's group is available.
    #[error(
        "incomplete: no in-sync replica of {what} is available; start the servers that are down (`copal status` names them)"
    )]
    Incomplete {
        /// Name of the group or volume without such a copy.
        what: String,
    },
    /// No answer in time.
    #[error("no answer in time: {reason}")]
    Deadline {
        /// Awaited event.
        reason: String,
    },
    /// A value above a fixed limit.
    #[error("{what} is too large: {bytes} bytes, at most {limit}")]
    TooLarge {
        /// Name of the value that exceeds its limit.
        what: &'static str,
        /// Its size in bytes.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The name of a file or volume breaks the rules.
    #[error("invalid name: {reason}")]
    InvalidName {
        /// Broken rule.
        reason: String,
    },
}

/// Reason for which an object store of other people serves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalCause {
    /// It does not accept the credentials.
    Credentials,
    /// There is no such bucket.
    Bucket,
    /// The file is in an archive.
    Archived,
}

impl VolumeError {
    /// Whether the same call may succeed later without any other action.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            VolumeError::Unavailable { .. }
                | VolumeError::Degraded { .. }
                | VolumeError::Incomplete { .. }
                | VolumeError::Deadline { .. }
        )
    }
    /// Whether the operation may have happened; `settle` decides it.
    pub fn is_unknown(&self) -> bool {
        matches!(self, VolumeError::Unknown { .. })
    }
    /// Whether stored bytes are damaged; another replica or a backup may have intact ones.
    pub fn is_corruption(&self) -> bool {
        matches!(self, VolumeError::Corrupt { .. })
    }
}
