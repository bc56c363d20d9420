//! Why a process has no store to work on.

use copal_volume::VolumeError;
use std::{io, path::PathBuf};

/// What stands where a store was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
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
    /// The directory holds a store.
    #[error("a store exists in {}", .directory.display())]
    Taken {
        /// The directory that was named.
        directory: PathBuf,
    },
    /// No store where one was looked for.
    #[error("there is no store at {}", .directory.display())]
    NotFound {
        /// The directory that was named.
        directory: PathBuf,
        /// What is there instead.
        found: Missing,
    },
    /// The store's file has no write permission, and it was to be written.
    #[error("the store {} is read-only", .path.display())]
    ReadOnly {
        /// File, device or directory of the store.
        path: PathBuf,
    },
    /// Another process makes a store in the directory.
    #[error("another process makes a store in {}; wait for it to end", .directory.display())]
    InTheMaking {
        /// The directory that was named.
        directory: PathBuf,
    },
    /// Another process works in the directory.
    #[error("another process uses {}; wait for it to end", .path.display())]
    InUse {
        /// What that process has locked.
        path: PathBuf,
    },
    /// A block device that holds something was to become a store.
    #[error("{} is not empty: it holds {found}", .path.display())]
    NotEmpty {
        /// The block device.
        path: PathBuf,
        /// What it holds, with its article.
        found: String,
    },
    /// A store of files needs a directory.
    #[error("{} is a block device, a store of files takes a directory", .path.display())]
    BlockDevice {
        /// The block device.
        path: PathBuf,
    },
    /// Too few bytes for a store.
    #[error("{bytes} bytes are too few for a store, it takes {least}")]
    TooSmall {
        /// What was asked for.
        bytes: u64,
        /// What a store takes at least.
        least: u64,
    },
    /// Too little memory for the process.
    #[error("{bytes} bytes of memory are too few, at least {least} are needed")]
    TooLittleMemory {
        /// What was allowed.
        bytes: u64,
        /// What the process takes at least.
        least: u64,
    },
    /// The file system refused something that has no case of its own.
    #[error("cannot {action} {}: {source}", .path.display())]
    System {
        /// What it was about.
        path: PathBuf,
        /// A verb: `create`, `look at`.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The object store does not open.
    #[error("{}: {source}", .path.display())]
    Objects {
        /// File, device or directory of the store.
        path: PathBuf,
        /// Why.
        source: copal_object::OpenError,
    },
    /// The engine does not open or close.
    #[error("{}: {source}", .path.display())]
    Engine {
        /// File, device or directory of the store.
        path: PathBuf,
        /// Why.
        source: copal_kv::Error,
    },
    /// The volumes do not open or close.
    #[error(transparent)]
    Volumes(#[from] VolumeError),
    /// The object store did not close.
    #[error("closing the store: {0}")]
    Close(#[source] copal_object::StoreError),
}
