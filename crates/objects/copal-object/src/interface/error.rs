//! Errors of operations and openings; each sentence names the remedy.

use crate::{FramePos, ObjectId};
use copal_device::DeviceError;
use std::ops::Range;

/// Reason why an operation on an open store failed. A failed transaction has no effect.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store is full and cannot grow. Nothing is poisoned: delete something and continue.
    #[error(
        "the store is full: {needed_bytes} bytes needed, {free_bytes} free; delete something or allow it to grow"
    )]
    NoSpace {
        /// Bytes the operation needs.
        needed_bytes: u64,
        /// Available bytes.
        free_bytes: u64,
    },
    /// The id is in use.
    #[error("object {} exists", .0.0)]
    Exists(ObjectId),
    /// The object never existed, or was deleted.
    #[error("object {} does not exist", .0.0)]
    NotFound(ObjectId),
    /// A transaction, frame or object exceeds the limits of its format.
    #[error("too large: split it into smaller transactions, frames or objects")]
    TooLarge,
    /// An append at another offset than the end.
    #[error("object {} is {actual} bytes long, not {given}", .id.0)]
    WrongLength {
        /// The object.
        id: ObjectId,
        /// The offset of the append.
        given: u64,
        /// The object's length.
        actual: u64,
    },
    /// The operation does not fit the kind of object: a write to a sealed one, a frame to a plain one.
    #[error("object {} has a kind that this operation does not support", .0.0)]
    WrongKind(ObjectId),
    /// `after` names a commit or frame that does not exist.
    #[error(
        "the operation depends on something that does not exist: frame {frame:?} of {stream:?}, commit {lsn}"
    )]
    UnknownDependency {
        /// The stream, for a transaction.
        stream: Option<ObjectId>,
        /// The frame, for a transaction.
        frame: Option<FramePos>,
        /// The commit, for a frame.
        lsn: u64,
    },
    /// A stream cannot end there: before its first kept frame, or behind its last one.
    #[error("stream {} has frames {} to {} and cannot be cut at {given}", .id.0, .frames.start, .frames.end)]
    FrameRange {
        /// The stream.
        id: ObjectId,
        /// Its frames.
        frames: Range<u64>,
        /// The first frame that was to be cut.
        given: u64,
    },
    /// The frame was cut off before it was acknowledged. If a crash takes the cut back, the frame may exist again.
    #[error("frame {} of stream {} was cut off before it was acknowledged", .frame.0, .id.0)]
    FrameCut {
        /// The stream.
        id: ObjectId,
        /// The frame.
        frame: FramePos,
    },
    /// A frame for a stream whose space is in use as a raw extent.
    #[error("stream {} is in use as a raw extent and takes no frames", .0.0)]
    InUse(ObjectId),
    /// The bytes on the device differ from the written ones.
    #[error("object {} is damaged at bytes {} to {}: restore it from another copy", .id.0, .range.start, .range.end)]
    Corrupt {
        /// The object.
        id: ObjectId,
        /// The damaged part; for a stream, frame numbers.
        range: Range<u64>,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An earlier write or flush failed, or the store was closed.
    #[error("the store stopped taking writes after an I/O error or was closed; reopen it")]
    Fenced,
    /// The backend of the store has no such operation.
    #[error("the {backend} backend does not support this: {what}")]
    Unsupported {
        /// Name of the backend.
        backend: &'static str,
        /// The operation, and the act that helps.
        what: &'static str,
    },
    /// The store was opened read-only.
    #[error("the store is open read-only")]
    ReadOnly,
}

impl StoreError {
    /// Whether another copy of the data may be good.
    #[must_use]
    pub fn is_corruption(&self) -> bool {
        matches!(self, StoreError::Corrupt { .. })
    }

    /// The host ran full inside a write, and the store refuses writes: free space there, then reopen the
    /// store. Nothing is damaged. It is unknown whether the operation with this answer took effect.
    #[must_use]
    pub fn is_host_full(&self) -> bool {
        matches!(self, StoreError::Device(error) if error.is_host_full())
    }

    /// Whether deleting something helps.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, StoreError::NoSpace { .. })
    }
}

/// Reason why a store could not be made or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreOpenError {
    /// There is no superblock at any of its places.
    #[error("not a Copal store: no superblock was found")]
    NotAStore,
    /// A store, but all superblock copies are damaged.
    #[error("the store is damaged: {what}")]
    Damaged {
        /// Description of the damage and its consequence.
        what: String,
    },
    /// Written by a release that this build cannot read.
    #[error("the store cannot be read by this build: {what}")]
    Version {
        /// Both versions, or the unknown feature.
        what: String,
    },
    /// The file or device is shorter than the store.
    #[error(
        "the store is cut off: it is {store_bytes} bytes long, the device has {device_bytes}; restore the whole file"
    )]
    Truncated {
        /// Length according to the superblock.
        store_bytes: u64,
        /// Length of the device.
        device_bytes: u64,
    },
    /// Acknowledged commits cannot be read back. Opening would drop them.
    #[error("acknowledged commits are damaged ({what}); open with accept_tail_loss to drop them")]
    TailLoss {
        /// Description of the lost commits.
        what: String,
    },
    /// The store was made for another backend.
    #[error("the store was made {is}, not {given}; open it with its own backend")]
    Backend {
        /// "in a directory" or "on a device".
        is: &'static str,
        /// The other one.
        given: &'static str,
    },
    /// A parameter of `mkfs` does not work.
    #[error("cannot make a store: {what}")]
    Options {
        /// The parameter, and the accepted values.
        what: String,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The file could not be opened.
    #[error(transparent)]
    Open(#[from] copal_device::DeviceOpenError),
}
