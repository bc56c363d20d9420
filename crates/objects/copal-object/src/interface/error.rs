//! What can go wrong, in sentences a person can act on.

use crate::{FramePos, ObjectId};
use copal_device::DeviceError;
use std::ops::Range;

/// Why an operation on an open store failed. Nothing of a failed transaction took effect.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store and, where it may grow, the device below it are full. Poisons nothing: delete and go on.
    #[error(
        "the store is full: {needed_bytes} bytes needed, {free_bytes} free; delete something or allow it to grow"
    )]
    NoSpace {
        /// Bytes the operation needs.
        needed_bytes: u64,
        /// Bytes there are.
        free_bytes: u64,
    },
    /// The name is taken.
    #[error("object {} exists", .0.0)]
    Exists(ObjectId),
    /// Never existed, or deleted.
    #[error("object {} does not exist", .0.0)]
    NotFound(ObjectId),
    /// One transaction, frame or object is beyond what its format holds.
    #[error("too large: split it into smaller transactions, frames or objects")]
    TooLarge,
    /// An append at another offset than the end.
    #[error("object {} is {actual} bytes long, not {given}", .id.0)]
    WrongLength {
        /// The object.
        id: ObjectId,
        /// The offset of the append.
        given: u64,
        /// The length.
        actual: u64,
    },
    /// The operation does not fit the kind of object: a write to a sealed one, a frame to a plain one.
    #[error("object {} is of a kind that this operation does not work on", .0.0)]
    WrongKind(ObjectId),
    /// `after` names a commit or frame that does not exist.
    #[error(
        "the operation is to come after something that does not exist: frame {frame:?} of {stream:?}, commit {lsn}"
    )]
    UnknownDependency {
        /// The stream, for a transaction.
        stream: Option<ObjectId>,
        /// The frame, for a transaction.
        frame: Option<FramePos>,
        /// The commit, for a frame.
        lsn: u64,
    },
    /// A frame for a stream whose space somebody uses as a raw extent.
    #[error("stream {} is in use as a raw extent and takes no frames", .0.0)]
    InUse(ObjectId),
    /// The bytes on the device are not those that were written.
    #[error("object {} is damaged at bytes {} to {}: restore it from another copy", .id.0, .range.start, .range.end)]
    Corrupt {
        /// The object.
        id: ObjectId,
        /// The damaged part; for a stream the numbers of frames.
        range: Range<u64>,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An earlier write or flush failed, or the store was closed.
    #[error("the store stopped taking writes after an I/O error or was closed; reopen it")]
    Fenced,
    /// Opened for reading.
    #[error("the store is open read-only")]
    ReadOnly,
}

impl StoreError {
    /// Another copy of the data may be good.
    #[must_use]
    pub fn is_corruption(&self) -> bool {
        matches!(self, StoreError::Corrupt { .. })
    }

    /// The host ran full inside a write, and the store takes no more of them: free space there, then reopen
    /// the store. Nothing is damaged; of an operation that answers this it is unknown whether it took effect.
    #[must_use]
    pub fn is_host_full(&self) -> bool {
        matches!(self, StoreError::Device(error) if error.is_host_full())
    }

    /// Deleting something helps.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, StoreError::NoSpace { .. })
    }
}

/// Why a store could not be made or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreOpenError {
    /// No superblock at any of its places.
    #[error("not a Copal store: no superblock was found")]
    NotAStore,
    /// A store, but all superblock copies are damaged.
    #[error("the store is damaged: {what}")]
    Damaged {
        /// What is damaged, and what that means.
        what: String,
    },
    /// Written by a release this build does not know.
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
        /// Length the superblock gives.
        store_bytes: u64,
        /// Length of the device.
        device_bytes: u64,
    },
    /// Acknowledged commits cannot be read back. Opening would drop them.
    #[error("acknowledged commits are damaged ({what}); open with accept_tail_loss to drop them")]
    TailLoss {
        /// Which.
        what: String,
    },
    /// Made with another backend than it is opened with.
    #[error("this is a store {is}, not {given}; open it as what it is")]
    Backend {
        /// "in a directory" or "on a device".
        is: &'static str,
        /// The other one.
        given: &'static str,
    },
    /// A parameter of `mkfs` does not work.
    #[error("cannot make a store: {what}")]
    Options {
        /// Which, and what works.
        what: String,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The file could not be opened.
    #[error(transparent)]
    Open(#[from] copal_device::DeviceOpenError),
}
