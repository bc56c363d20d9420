//! Reasons for which a process has no open store.

use copal_object::BackendKind;
use copal_volume::VolumeError;
use std::{io, path::PathBuf};

/// Content of the place where a store was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingStore {
    /// Nothing.
    Nothing,
    /// A directory where the store's file should be.
    Directory,
    /// A file where a directory should be.
    NotADirectory,
}

/// Errors of finding, making, opening and closing a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The directory already holds a store.
    #[error("a store exists in {}", .directory.display())]
    Taken {
        /// The named directory.
        directory: PathBuf,
    },
    /// There is no store at the named place.
    #[error("there is no store at {}", .directory.display())]
    NotFound {
        /// The named directory.
        directory: PathBuf,
        /// Content of that place.
        found: MissingStore,
    },
    /// The store's file has no write permission, and the caller wanted to write.
    #[error("the store {} is read-only", .path.display())]
    ReadOnly {
        /// File, device or directory of the store.
        path: PathBuf,
    },
    /// The block device takes no writes, and the caller wanted to write.
    #[error("{} is a read-only block device", .path.display())]
    ReadOnlyDevice {
        /// The block device.
        path: PathBuf,
    },
    /// Another process makes a store in the directory.
    #[error("another process makes a store in {}; wait for it to end", .directory.display())]
    InTheMaking {
        /// The named directory.
        directory: PathBuf,
    },
    /// Another process works in the directory.
    #[error("another process uses {}; wait for it to end", .path.display())]
    InUse {
        /// The lock file of that process.
        path: PathBuf,
    },
    /// The block device for a new store is not empty.
    #[error("{} is not empty: it holds {found}", .path.display())]
    NotEmpty {
        /// The block device.
        path: PathBuf,
        /// Description of its data, with an article.
        found: String,
    },
    /// A probe would destroy the data of a block device.
    #[error("a probe of {} would destroy its data", .path.display())]
    NotProbed {
        /// The block device.
        path: PathBuf,
    },
    /// A store has no range of free bytes for a probe.
    #[error("the store on {} has no free range for a probe: {source}", .path.display())]
    NoFreeRange {
        /// The block device.
        path: PathBuf,
        /// Reason.
        source: copal_object::StoreError,
    },
    /// A file or device is too short for a probe.
    #[error("{} has {bytes} bytes, a probe takes {least}", .path.display())]
    TooShort {
        /// The file or device.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// Least length.
        least: u64,
    },
    /// A store of files needs a directory.
    #[error("{} is a block device, a store of files takes a directory", .path.display())]
    BlockDevice {
        /// The block device.
        path: PathBuf,
    },
    /// No store can be made at the place: it is neither a directory nor a block device.
    #[error("{} is {found}; a store is made in a directory or on a block device", .path.display())]
    Occupied {
        /// The named place.
        path: PathBuf,
        /// The part of it that is no directory; equal to `path`, or above it.
        at: PathBuf,
        /// Its kind, with an article.
        found: &'static str,
    },
    /// Too few bytes for a store.
    #[error("{bytes} bytes are too few for a store of the backend {}, it takes {least}", .backend.name())]
    TooSmall {
        /// Requested size, or that of the device.
        bytes: u64,
        /// Least size of a store with the backend.
        least: u64,
        /// Backend of the new store.
        backend: BackendKind,
    },
    /// Too little memory for the process.
    #[error("{bytes} bytes of memory are too few, at least {least} are needed")]
    TooLittleMemory {
        /// Allowed memory.
        bytes: u64,
        /// Least memory of the process.
        least: u64,
    },
    /// The file system refused an operation for another reason.
    #[error("cannot {action} {}: {source}", .path.display())]
    System {
        /// Path of the operation.
        path: PathBuf,
        /// A verb: `create`, `look at`.
        action: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// The object store does not open.
    #[error("{}: {source}", .path.display())]
    Objects {
        /// File, device or directory of the store.
        path: PathBuf,
        /// Reason.
        source: copal_object::StoreOpenError,
    },
    /// The engine does not open or close.
    #[error("{}: {source}", .path.display())]
    Engine {
        /// File, device or directory of the store.
        path: PathBuf,
        /// Reason.
        source: copal_kv::Error,
    },
    /// The volumes do not open or close.
    #[error(transparent)]
    Volumes(#[from] VolumeError),
    /// The object store did not close.
    #[error("closing the store: {0}")]
    Close(#[source] copal_object::StoreError),
}
