//! What a member is asked to do, and what it answers.

use super::uploads::UploadOrigin;
use bytes::Bytes;
use copal_volume::{
    FileId, OpId, VolumeError, VolumeId,
    group::{Answer, Epoch, Role},
};

/// The head of a file as its creator made it: the same on every member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewHead {
    /// The file.
    pub fid: FileId,
    /// Its create.
    pub op: OpId,
    /// Bytes of the body.
    pub size: u64,
    /// CRC32C of the body.
    pub crc32c: u32,
    /// The caller's.
    pub metadata: Bytes,
}

/// Where the bytes of a new file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Here, up to one piece.
    Here(Bytes),
    /// Staged before, piece by piece, by this server.
    Staged,
    /// Staged before, piece by piece, by a client.
    StagedBy(UploadOrigin),
}

/// What a client asks a member to do to a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Take a file.
    Create {
        /// Its volume.
        vid: VolumeId,
        /// Its name.
        name: Bytes,
        /// Its head.
        head: NewHead,
        /// Its bytes.
        body: Body,
    },
    /// Say again that a file is held.
    Confirm {
        /// Its volume.
        vid: VolumeId,
        /// Its name.
        name: Bytes,
        /// Its head.
        head: NewHead,
    },
    /// Delete a file, or bury one that may never have come.
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
    /// Take over a file that another member has: however old it is.
    TakeOver {
        /// Its volume.
        vid: VolumeId,
        /// Its name.
        name: Bytes,
        /// Its head.
        head: NewHead,
        /// Its bytes.
        body: Body,
        /// Whether its create is journalled here: not from before the horizon, where no member has a journal.
        is_journalled: bool,
    },
    /// Journal a create whose file is deleted: every member has every operation (VOL-18).
    Record {
        /// The file's volume.
        vid: VolumeId,
        /// Its name.
        name: Bytes,
        /// The file, which stands among the deleted here.
        fid: FileId,
        /// The create.
        op: OpId,
    },
    /// Take over a delete that another member has.
    TakeOverDelete {
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

/// Why an operation is not held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotHeld {
    /// The caller means another view than this member is in.
    OtherEpoch {
        /// The member's own.
        own: Epoch,
    },
    /// This disk is no member of the group.
    NoMember,
    /// The rules refuse it.
    Refused(Answer),
    /// Nobody waits for it any more; it was not begun.
    Unwanted,
    /// The caller may not do it, or not any more; nothing was done.
    Denied {
        /// What forbids it.
        reason: String,
    },
    /// The store failed, or has no room in memory now.
    Failed(VolumeError),
}

/// What becomes of an operation: the member's state when it is held.
pub type Reply = Result<Role, NotHeld>;
