//! What a detector fails with: its own disk, or the log of popular packs.

use std::io;
use std::path::{Path, PathBuf};

/// Why a detector cannot go on. What it has may be deleted; it starts again from the log of popular packs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DetectError {
    /// A file of the detector.
    #[error(
        "cannot {action} {path}, a file of the duplicate detector: {source}; see to the disk of its directory"
    )]
    Io {
        /// What was tried.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The popular packs cannot be learned.
    #[error("cannot read the log of popular packs: {0}; requests are kept and compared later")]
    Popular(#[source] io::Error),
    /// There are fewer partitions.
    #[error(
        "there is no partition {partition}: this detector has {partitions}; agree on one number in the fleet"
    )]
    NoSuchPartition {
        /// The one that was asked for.
        partition: u32,
        /// How many there are.
        partitions: u32,
    },
    /// More bits than short ids are divided by.
    #[error("{bits} bits make too many partitions; at most 16 are allowed")]
    TooManyBits {
        /// Bits that were given.
        bits: u8,
    },
    /// A file was damaged again each time it had been made anew.
    #[error("a file of partition {partition} was damaged {tries} times in a row: {what}; see to the disk")]
    KeepsBreaking {
        /// The partition.
        partition: u32,
        /// How often it was tried.
        tries: u32,
        /// What was wrong at last.
        what: String,
    },
}

impl DetectError {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> DetectError {
        DetectError::Io { action, path: path.to_owned(), source }
    }
}

pub(crate) type Result<T> = std::result::Result<T, DetectError>;

/// Why a batch is not taken. Its sender goes on without an answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchRefusal {
    /// The detector has no such partition.
    #[error("there is no partition {0} here; read the members of the fleet again")]
    NoSuchPartition(u32),
    /// An id does not belong to the partition that the batch is for.
    #[error("an id of the batch is not of partition {0}; sort requests by partition")]
    OutsidePartition(u32),
    /// No ids, or more than a batch may have.
    #[error("a batch of {0} requests is not within 1 to 4096; divide it")]
    Len(usize),
    /// The spools hold as much as they may.
    #[error("{spooled_bytes} bytes of requests wait already; ask the stand-in, or again later")]
    SpoolFull {
        /// Bytes that wait.
        spooled_bytes: u64,
    },
    /// The spool cannot be written.
    #[error(transparent)]
    Disk(#[from] DetectError),
}
