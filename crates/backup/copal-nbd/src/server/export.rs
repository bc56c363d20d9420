//! What a server serves: disks by name. The seam between the protocol and whoever has the bytes.
//!
//! Not here: the protocol (`handshake`, `transmit`).

use std::sync::Arc;

/// Why a request on a disk failed; the client hears its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskError {
    /// The bytes cannot be read or written (EIO).
    Damaged,
    /// There is no room for what was written (ENOSPC).
    NoSpace,
    /// The disk is not for writing (EPERM).
    ReadOnly,
    /// The disk is being taken away (ESHUTDOWN).
    Closing,
}

impl DiskError {
    /// The protocol's number.
    pub(crate) fn errno(self) -> u32 {
        match self {
            DiskError::Damaged => 5,
            DiskError::NoSpace => 28,
            DiskError::ReadOnly => 1,
            DiskError::Closing => 108,
        }
    }
}

/// A run of bytes that are alike to one metadata context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Length in bytes, never 0.
    pub len: u64,
    /// Flags of the context: `STATE_HOLE`, `STATE_ZERO` or `STATE_DIRTY`.
    pub flags: u32,
}

/// One disk. Shared by all connections; every call may block on storage.
pub trait Disk: Send + Sync {
    /// Its size, which never changes.
    fn size_bytes(&self) -> u64;

    /// Whether it takes writes.
    fn is_writable(&self) -> bool;

    /// Fills `buf` from `offset`. The server asks for nothing outside of the disk.
    /// # Errors
    /// A byte of the range cannot be had; `buf` holds anything then.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DiskError>;

    /// Writes all of `data` at `offset`; durable after the next [`Disk::flush`].
    /// # Errors
    /// `ReadOnly`; what the storage says.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        let _ = (offset, data);
        Err(DiskError::ReadOnly)
    }

    /// Makes a range read as zeroes.
    /// # Errors
    /// As [`Disk::write_at`].
    fn zero(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        let _ = (offset, len);
        Err(DiskError::ReadOnly)
    }

    /// Makes everything durable that was written before.
    /// # Errors
    /// What was written may be lost: the storage must not be trusted.
    fn flush(&self) -> Result<(), DiskError> {
        Ok(())
    }

    /// Names of its metadata contexts beside `base:allocation`, as `LIST_META_CONTEXT` shows them.
    fn contexts(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether it can answer about a context of this name; also of one that it does not list.
    fn has_context(&self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// What lies at `offset`, to a context that it has; looks no further than `len`.
    /// # Errors
    /// It cannot be told.
    fn run_at(&self, context: &str, offset: u64, len: u64) -> Result<Run, DiskError>;
}

/// The disks of a server.
pub trait Exports: Send + Sync {
    /// Their names, as `LIST` shows them.
    fn names(&self) -> Vec<String>;

    /// The disk of that name. The empty name means the only disk there is.
    fn find(&self, name: &str) -> Option<Arc<dyn Disk>>;
}
