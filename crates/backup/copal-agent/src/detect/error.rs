//! Errors of a detector: its own disk, or the log of popular packs.

use std::io;
use std::path::{Path, PathBuf};

/// Reason why a detector cannot continue. Its files may be deleted; it then restarts from the log of popular
/// packs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DetectError {
    /// A file operation failed.
    #[error(
        "cannot {action} {path}, a file of the duplicate detector: {source}; see to the disk of its directory"
    )]
    Io {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The log of popular packs cannot be read.
    #[error("cannot read the log of popular packs: {0}; requests are kept and compared later")]
    Popular(#[source] io::Error),
    /// The partition does not exist.
    #[error(
        "there is no partition {partition}: this detector has {partitions}; agree on one number in the fleet"
    )]
    NoSuchPartition {
        /// The requested partition.
        partition: u32,
        /// Number of partitions.
        partitions: u32,
    },
    /// More bits than short ids allow.
    #[error("{bits} bits make too many partitions; at most 16 are allowed")]
    TooManyBits {
        /// Bits that were given.
        bits: u8,
    },
    /// A file was damaged again each time it had been created.
    #[error("a file of partition {partition} was damaged {tries} times in a row: {what}; see to the disk")]
    KeepsBreaking {
        /// The partition.
        partition: u32,
        /// Number of tries.
        tries: u32,
        /// The last damage.
        what: String,
    },
}

impl DetectError {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> DetectError {
        DetectError::Io { action, path: path.to_owned(), source }
    }
}

pub(crate) type Result<T> = std::result::Result<T, DetectError>;

/// Reason why a batch is refused. Its sender continues without an answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchRefusal {
    /// The detector has no such partition.
    #[error("there is no partition {0} here; read the members of the fleet again")]
    NoSuchPartition(u32),
    /// An id does not belong to the batch's partition.
    #[error("an id of the batch is not of partition {0}; sort requests by partition")]
    OutsidePartition(u32),
    /// No ids, or more than a batch may have.
    #[error("a batch of {0} requests is not within 1 to 4096; divide it")]
    Len(usize),
    /// The spools are full.
    #[error("{spooled_bytes} bytes of requests wait already; ask the stand-in, or again later")]
    SpoolFull {
        /// Bytes in the spools.
        spooled_bytes: u64,
    },
    /// The spool cannot be written.
    #[error(transparent)]
    Disk(#[from] DetectError),
}
