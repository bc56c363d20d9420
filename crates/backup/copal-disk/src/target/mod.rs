//! Targets: the interface between a restore and the disk it writes.
//!
//! Invariants
//! - `begin` announces the size of the disk before the first write.
//! - Every byte of the disk is covered exactly once, by `write_at` or by `hole`.
//! - One thread writes an ordered target, in ascending order. Several threads write any other, in any order.
//!
//! Not here: the targets themselves (`file`, `device`, `stream`, `nbd`; `open` selects one).

pub mod device;
pub mod file;
mod lock;
pub mod nbd;
pub mod open;
mod punch;
pub mod stream;
#[cfg(test)]
mod tests;

/// Error of a target.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The system refused.
    #[error("cannot {action} {what}: {error}; check the path, its permissions and the space there")]
    Io {
        /// The failed action: "open", "write", "punch a hole in", "flush".
        action: &'static str,
        /// The target, as the user named it.
        what: String,
        /// The error of the system.
        #[source]
        error: std::io::Error,
    },
    /// The target exists, and the caller did not allow overwriting.
    #[error("{reason}")]
    Exists {
        /// A sentence with advice.
        reason: String,
    },
    /// The target cannot take this disk, for example a device that is too small.
    #[error("{reason}")]
    Unusable {
        /// A sentence with advice.
        reason: String,
    },
}

/// A disk to write.
pub trait Target: Send + Sync {
    /// Whether writes must come in ascending order (a pipe). One thread writes such a target.
    fn is_ordered(&self) -> bool {
        false
    }

    /// Announces the size of the disk; called once, before anything else.
    /// # Errors
    /// The target is too small.
    fn begin(&self, size_bytes: u64) -> Result<(), TargetError>;

    /// Writes all of `data` at `offset`. Blocks.
    /// # Errors
    /// The write failed; the restore ends.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), TargetError>;

    /// Makes the range read as zero bytes, without storing them where possible.
    /// # Errors
    /// The target refused; the restore ends.
    fn hole(&self, offset: u64, length: u64) -> Result<(), TargetError>;

    /// Makes everything durable; called once, after the last write of a restore that succeeded.
    /// # Errors
    /// The flush failed: the target must not be trusted.
    fn finish(&self) -> Result<(), TargetError>;
}
