//! Errors of device commands and of opening a device.

use rustix::io::Errno;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// Reason of a failed I/O.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The operating system or the device reported an error. A failed read means damage of that range, unless
    /// the error passes ([`DeviceError::is_passing`]).
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
    /// The host had no space for a write into the device: a copy-on-write file system, a thin volume, a file
    /// with holes, the files of a directory. Part of it may have been written; the medium did not fail.
    #[error(
        "{op} of {len} bytes at {at} found no space on the host; free space there, then reopen the store"
    )]
    HostFull {
        /// As in `Io`.
        op: &'static str,
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// An earlier write or flush failed; the medium's state is unknown.
    #[error("an earlier write or flush failed; reopen the store")]
    Poisoned,
    /// A bug of Copal, or a store that is larger than its device.
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
        /// Current bytes, which stay.
        size: u64,
        /// Requested bytes.
        wanted: u64,
        /// "its file system is full" and the like.
        reason: &'static str,
    },
    /// The device was opened read-only.
    #[error("the device is open read-only")]
    ReadOnly,
}

impl DeviceError {
    /// Error for a system error of `op`; [`DeviceError::HostFull`] if the host has no space.
    #[must_use]
    pub fn io(op: &'static str, at: u64, len: u64, source: std::io::Error) -> DeviceError {
        if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
            return DeviceError::HostFull { op, at, len };
        }
        DeviceError::Io { op, at, len, source: Arc::new(source) }
    }

    /// The system's error number, if there is one.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            DeviceError::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// The error says nothing about the bytes: the system had no descriptor or memory for the command, or
    /// cannot reach the device at this time. The same command may succeed later. After any other read error
    /// the range counts as damaged.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            DeviceError::Io { source, .. } => !is_of_medium(source),
            DeviceError::HostFull { .. }
            | DeviceError::Poisoned
            | DeviceError::OutOfRange { .. }
            | DeviceError::CannotGrow { .. }
            | DeviceError::ReadOnly => false,
        }
    }

    /// The host ran full inside a write or flush, and the device refuses writes until it is reopened. The
    /// medium is intact: free space on the host, then reopen.
    #[must_use]
    pub fn is_host_full(&self) -> bool {
        matches!(self, DeviceError::HostFull { .. })
    }

    /// The host is full: free space there, then grow again. Nothing was damaged.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, DeviceError::CannotGrow { .. })
    }
}

/// Whether the error means that the medium cannot be read there: a bad sector, a wrong checksum, a damaged
/// file system, a file that is too short.
fn is_of_medium(error: &std::io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    match number {
        Some(number) => matches!(
            number,
            Errno::IO
                | Errno::NODATA
                | Errno::BADMSG
                | Errno::ILSEQ
                | Errno::REMOTEIO
                | Errno::UCLEAN
                | Errno::OVERFLOW
                | Errno::FBIG
        ),
        None => error.kind() == ErrorKind::UnexpectedEof,
    }
}

/// Reason why a device could not be opened. Every variant names the path as the caller gave it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceOpenError {
    /// The path does not exist.
    #[error("{path} does not exist; check the path, or create it first")]
    NotFound {
        /// As given by the caller.
        path: String,
    },
    /// The file was to be created and already exists.
    #[error("{path} exists already; choose another path, or open it instead of creating it")]
    Exists {
        /// As given by the caller.
        path: String,
    },
    /// The operating system denies access.
    #[error("{path} may not be {access} by this user; change its permissions or run as its owner")]
    Permission {
        /// As given by the caller.
        path: String,
        /// "read" or "read and written".
        access: &'static str,
    },
    /// Its file system or device is read-only.
    #[error("{path} is on read-only storage; remount it writable, or open it read-only")]
    ReadOnlyStorage {
        /// As given by the caller.
        path: String,
    },
    /// Another process or handle has it open.
    #[error("{path} is in use by another process; wait for it to finish")]
    Locked {
        /// As given by the caller.
        path: String,
    },
    /// The kernel uses it: a mounted file system, swap space, a mapped device. Waiting does not help.
    #[error("{path} {by}")]
    Claimed {
        /// As given by the caller.
        path: String,
        /// "is mounted at /mnt; unmount it first" and the like.
        by: String,
    },
    /// The file system has no space to create it.
    #[error("there is no room for {bytes} bytes at {path}; free some space or choose a smaller size")]
    NoSpace {
        /// As given by the caller.
        path: String,
        /// Bytes to be reserved.
        bytes: u64,
    },
    /// Neither a file nor a block device.
    #[error("{path} is {found}; give a regular file or a block device")]
    WrongKind {
        /// As given by the caller.
        path: String,
        /// "a directory", "a pipe" and so on.
        found: &'static str,
    },
    /// Its file system writes preallocated space elsewhere at every write.
    #[error(
        "{path} is on {file_system}, which writes elsewhere each time; use another file system or allow it"
    )]
    CopyOnWrite {
        /// As given by the caller.
        path: String,
        /// Name of the file system.
        file_system: &'static str,
    },
    /// A zoned device that takes writes in the order of its zones only; a store writes anywhere.
    #[error(
        "{path} is a host-managed zoned device, which takes writes in order only; make XFS with zones on it and use a \
         directory there"
    )]
    HostManaged {
        /// As given by the caller.
        path: String,
    },
    /// Its file system is in memory.
    #[error("{path} is on {file_system}, which loses everything at a reboot; use a disk or accept the loss")]
    Volatile {
        /// As given by the caller.
        path: String,
        /// Name of the file system.
        file_system: &'static str,
    },
    /// Any other system error.
    #[error("{path}: {source}")]
    Io {
        /// As given by the caller.
        path: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl DeviceOpenError {
    /// The variant for a system error on `path`.
    pub(crate) fn from_errno(path: &Path, read_only: bool, error: Errno) -> DeviceOpenError {
        let path = path.display().to_string();
        match error {
            Errno::NOENT | Errno::NOTDIR => DeviceOpenError::NotFound { path },
            Errno::EXIST => DeviceOpenError::Exists { path },
            Errno::ACCESS | Errno::PERM => DeviceOpenError::Permission {
                path,
                access: if read_only { "read" } else { "read and written" },
            },
            Errno::ROFS => DeviceOpenError::ReadOnlyStorage { path },
            Errno::BUSY | Errno::WOULDBLOCK => DeviceOpenError::Locked { path },
            other => DeviceOpenError::Io { path, source: other.into() },
        }
    }

    /// Whether waiting and retrying may help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, DeviceOpenError::Locked { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_are_distinguished_from_medium_errors() {
        let of = |number: Errno| DeviceError::io("read", 0, 1, number.into()).is_passing();
        for number in [
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOMEM,
            Errno::STALE,
            Errno::TIMEDOUT,
            Errno::HOSTDOWN,
            Errno::NXIO,
            Errno::NOTCONN,
            Errno::INTR,
        ] {
            assert!(of(number), "{number}");
        }
        for number in [Errno::IO, Errno::NODATA, Errno::BADMSG, Errno::UCLEAN] {
            assert!(!of(number), "{number}");
        }
        for number in [Errno::NOSPC, Errno::DQUOT] {
            let full = DeviceError::io("write", 0, 1, number.into());
            assert!(full.is_host_full() && !full.is_passing(), "{full}");
        }
        let short = DeviceError::io("read", 0, 1, ErrorKind::UnexpectedEof.into());
        assert!(!short.is_passing() && !DeviceError::Poisoned.is_passing());
    }
}
