//! Doors: snapshots as disks that other programs read, without a restore.
//!
//! - [`SnapshotExports`]: the disks of one snapshot for the NBD server of `copal-nbd`, each maybe under an
//!   [`Overlay`] that takes writes.
//! - [`Mount`]: all snapshots as a file system (FUSE), for reading.
//!
//! Design: docs/design/backup.md#exports-and-mounts
//! Invariant: a door writes nothing to the repository, and takes one cache of memory however many disks it
//! shows.
//!
//! Not here: reading snapshots (`copal_backup::serve`), the protocol (`copal-nbd`), who may delete what is
//! served, and the command line (`copal`).

mod closing;
mod exports;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod mount;
mod overlay;

pub use closing::Closing;
pub use copal_nbd::{Address as ServerAddress, NbdError, server::Server};
pub use exports::{DIFFERENCES, Others, SnapshotExports};
pub use mount::{Mount, MountError, Shown};
pub use overlay::{Overlay, OverlayError};
