//! Exports of a server: disks by name, the interface to the owner of the bytes.
//!
//! Not here: the protocol (`handshake`, `transmission`).

use std::sync::Arc;

/// Error of a request on a disk; the client receives its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskError {
    /// The bytes cannot be read or written (EIO).
    Damaged,
    /// The disk has no space for the write (ENOSPC).
    NoSpace,
    /// The disk is read-only (EPERM).
    ReadOnly,
    /// The export is being closed (ESHUTDOWN).
    Closing,
}

impl DiskError {
    /// The error number of the protocol.
    pub(crate) fn errno(self) -> u32 {
        match self {
            DiskError::Damaged => 5,
            DiskError::NoSpace => 28,
            DiskError::ReadOnly => 1,
            DiskError::Closing => 108,
        }
    }
}

/// A run of bytes with equal flags in one metadata context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRun {
    /// Length in bytes, never 0.
    pub len: u64,
    /// Flags of the context: `STATE_HOLE`, `STATE_ZERO` or `STATE_DIRTY`.
    pub flags: u32,
}

/// One disk, shared by all connections. Every call may block on storage.
pub trait ExportDisk: Send + Sync {
    /// Size of the disk, which never changes.
    fn size_bytes(&self) -> u64;

    /// Whether the disk accepts writes.
    fn is_writable(&self) -> bool;

    /// Fills `buf` from `offset`. The range is within the disk.
    /// # Errors
    /// A byte of the range is unreadable; the content of `buf` is undefined then.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DiskError>;

    /// Writes all of `data` at `offset`; durable after the next [`ExportDisk::flush`].
    /// # Errors
    /// `ReadOnly`; those of the storage.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        let _ = (offset, data);
        Err(DiskError::ReadOnly)
    }

    /// Makes a range read as zeroes.
    /// # Errors
    /// As [`ExportDisk::write_at`].
    fn zero(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        let _ = (offset, len);
        Err(DiskError::ReadOnly)
    }

    /// The client does not need a range any more, which may read as anything. By default it reads as zeroes.
    /// # Errors
    /// As [`ExportDisk::write_at`].
    fn trim(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        self.zero(offset, len)
    }

    /// Makes all completed writes durable.
    /// # Errors
    /// Completed writes may be lost: the storage must not be trusted.
    fn flush(&self) -> Result<(), DiskError> {
        Ok(())
    }

    /// Names of the metadata contexts besides `base:allocation`, as `LIST_META_CONTEXT` returns them.
    fn contexts(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether the disk supports this context, listed or not.
    fn has_context(&self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// The run at `offset` in a supported context; at most `len` bytes are examined.
    /// # Errors
    /// The flags cannot be determined.
    fn run_at(&self, context: &str, offset: u64, len: u64) -> Result<StatusRun, DiskError>;
}

/// The disks of a server.
pub trait DiskExports: Send + Sync {
    /// Names of the disks, as `LIST` returns them.
    fn names(&self) -> Vec<String>;

    /// The disk with this name. The empty name means the only disk.
    fn find(&self, name: &str) -> Option<Arc<dyn ExportDisk>>;
}
