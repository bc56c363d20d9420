//! Where a restore puts a disk's bytes: the seam between a restore and what it writes.
//!
//! Invariants
//! - Before the first write the target learns the size of the disk.
//! - Every byte of the disk is covered exactly once, by `write_at` or by `hole`.
//! - An ordered target is fed in ascending order from one thread; any other in any order from several.
//!
//! Not here: the targets themselves (`file`, `device`, `stream`, `nbd`; `open` chooses).

pub mod device;
pub mod file;
mod lock;
pub mod nbd;
pub mod open;
mod punch;
pub mod stream;
#[cfg(test)]
mod tests;

/// Why a target refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The system refused.
    #[error("cannot {action} {what}: {error}; check the path, its permissions and the space there")]
    Io {
        /// What was tried: "open", "write", "punch a hole in", "flush".
        action: &'static str,
        /// The target, as the user named it.
        what: String,
        /// What the system said.
        #[source]
        error: std::io::Error,
    },
    /// Something is there that the caller did not allow to be overwritten.
    #[error("{reason}")]
    Exists {
        /// A sentence that says what to do.
        reason: String,
    },
    /// The target cannot take this disk, for example a device that is too small.
    #[error("{reason}")]
    Unusable {
        /// A sentence that says what to do.
        reason: String,
    },
}

/// A place for one disk.
pub trait Target: Send + Sync {
    /// Whether writes must come in ascending order (a pipe); such a target is written by one thread.
    fn is_ordered(&self) -> bool {
        false
    }

    /// Announces the size of the disk; called once, before anything else.
    /// # Errors
    /// The target cannot hold that much.
    fn begin(&self, size_bytes: u64) -> Result<(), TargetError>;

    /// Writes all of `data` at `offset`. Blocks.
    /// # Errors
    /// The write failed; the restore ends.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), TargetError>;

    /// Makes the range read as zero bytes, without storing them where the target can.
    /// # Errors
    /// The target refused; the restore ends.
    fn hole(&self, offset: u64, length: u64) -> Result<(), TargetError>;

    /// Makes everything durable; called once, after the last write of a restore that succeeded.
    /// # Errors
    /// The flush failed: the target must not be trusted.
    fn finish(&self) -> Result<(), TargetError>;
}
