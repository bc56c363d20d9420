//! Exports: snapshots as disks for other programs, without a restore.
//!
//! - [`SnapshotExports`]: the disks of one snapshot for the NBD server of `copal-nbd`, optionally with an
//!   [`Overlay`] that takes writes.
//! - [`SnapshotMount`]: all snapshots as a read-only file system (FUSE).
//!
//! Design: docs/design/backup.md#exports-and-mounts
//! Invariant: an export writes nothing to the repository, and uses one cache for any number of disks.
//!
//! Not here: reading snapshots (`copal_backup::serve`), the protocol (`copal-nbd`), pins and the command line
//! (`copal`).

mod close_flag;
mod exports;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod mount;
mod overlay;

pub use close_flag::CloseFlag;
pub use copal_nbd::{NbdError, ServerAddress, server::Server};
pub use exports::{DIFF_PREFIX, OtherSnapshots, SnapshotExports};
pub use mount::{MountContent, MountError, SnapshotMount};
pub use overlay::{Overlay, OverlayError};
