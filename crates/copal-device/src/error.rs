//! What can go wrong on a device, and when opening one.

use std::sync::Arc;

/// Why an I/O failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The operating system or the device reported an error. On a read: damage of that range.
    #[error("{op} of {len} bytes at {at} failed: {source}")]
    Io {
        /// "read", "write", "flush", "discard", "write zeroes" or "grow".
        op: &'static str,
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
        /// The system's error.
        source: Arc<std::io::Error>,
    },
    /// A write or flush failed before; what reached the device is unknown.
    #[error("an earlier write or flush failed; reopen the store")]
    Poisoned,
    /// Our own bug, or a store that is larger than its device.
    #[error("{op} of {len} bytes at {at} is outside the device or not aligned")]
    OutOfRange {
        /// As in `Io`.
        op: &'static str,
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// The device cannot become larger.
    #[error("the device cannot grow from {size} to {wanted} bytes: {reason}")]
    CannotGrow {
        /// Bytes it has, and keeps.
        size: u64,
        /// Bytes asked for.
        wanted: u64,
        /// "its file system is full" and the like.
        reason: &'static str,
    },
    /// The device was opened without the right to write.
    #[error("the device is open read-only")]
    ReadOnly,
}

impl DeviceError {
    /// A system error met by `op`.
    #[must_use]
    pub fn io(op: &'static str, at: u64, len: u64, source: std::io::Error) -> DeviceError {
        DeviceError::Io {
            op,
            at,
            len,
            source: Arc::new(source),
        }
    }

    /// The system's error number, when there is one.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            DeviceError::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// A full host: free space there, then grow again. Nothing was damaged.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, DeviceError::CannotGrow { .. })
    }
}

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Any other system error.
    #[error("{path}: {source}")]
    Io {
        /// As given by the caller.
        path: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Somebody else has it open.
    #[error("{path} is in use by another process; wait for it to finish")]
    Locked {
        /// As given by the caller.
        path: String,
    },
}
