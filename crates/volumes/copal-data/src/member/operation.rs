//! Operations on a group, and their results.

use super::uploads::UploadOrigin;
use bytes::Bytes;
use copal_volume::{
    FileId, OpId, VolumeError, VolumeId,
    group::{Epoch, MemberAnswer, Role},
};

/// The head of a file from its creator: the same on every member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewHead {
    /// The file.
    pub fid: FileId,
    /// Its create.
    pub op: OpId,
    /// Length of the body in bytes.
    pub size: u64,
    /// CRC32C of the body.
    pub crc32c: u32,
    /// Metadata of the caller.
    pub metadata: Bytes,
}

/// Source of a new file's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodySource {
    /// Attached to the operation, at most one piece.
    Attached(Bytes),
    /// Staged before by this server.
    Staged,
    /// Staged before by a client.
    StagedBy(UploadOrigin),
}

/// An operation on a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupOperation {
    /// Accept a file.
    Create {
        /// Its volume.
        vid: VolumeId,
        /// Its name.
        name: Bytes,
        /// Its head.
        head: NewHead,
        /// Its bytes.
        body: BodySource,
    },
    /// Acknowledge again that a file is present.
    Confirm {
        /// Its volume.
        vid: VolumeId,
        /// Its name.
        name: Bytes,
        /// Its head.
        head: NewHead,
    },
    /// Delete a file, which may be unknown here.
    Delete {
        /// Its volume.
        vid: VolumeId,
        /// Its name.
        name: Bytes,
        /// The file.
        fid: FileId,
        /// The delete.
        op: OpId,
    },
    /// Copy a file of another member, of any age.
    CopyCreate {
        /// Its volume.
        vid: VolumeId,
        /// Its name.
        name: Bytes,
        /// Its head.
        head: NewHead,
        /// Its bytes.
        body: BodySource,
        /// Whether its create is journalled: not below the stable point, where no member has a journal.
        is_journalled: bool,
    },
    /// Journal the create of a deleted file: every member has every operation (VOL-18).
    RecordCreate {
        /// The file's volume.
        vid: VolumeId,
        /// Its name.
        name: Bytes,
        /// The file; it has a tombstone here.
        fid: FileId,
        /// The create.
        op: OpId,
    },
    /// Copy a delete of another member.
    CopyDelete {
        /// The file's volume.
        vid: VolumeId,
        /// Its name.
        name: Bytes,
        /// The file.
        fid: FileId,
        /// The delete.
        op: OpId,
    },
}

/// Reason that an operation was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationError {
    /// The request is for another view than the member's.
    OtherEpoch {
        /// Epoch of the member's view.
        own: Epoch,
    },
    /// This disk is not a member of the group.
    NotMember,
    /// The rules refuse it.
    Refused(MemberAnswer),
    /// The caller no longer waits for it; it was not started.
    Cancelled,
    /// The caller has no right to it, or not any more; nothing was done.
    Denied {
        /// The missing right.
        reason: String,
    },
    /// The store failed, or has no memory now.
    Failed(VolumeError),
}

/// Result of an operation: the member's role if it was accepted.
pub type OperationResult = Result<Role, OperationError>;
