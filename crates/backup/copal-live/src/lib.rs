//! Points in time of running VMs: QEMU preserves the disks for as long as a backup reads them.
//!
//! The guest goes on writing. Before a block is overwritten, `copy-before-write` copies the old data into a
//! fleecing image. A backup reads the old state of the disk through an NBD export. A dirty bitmap that begins
//! at the point in time records the writes for the next backup.
//!
//! Design: docs/design/backup.md#disks-of-vms-that-run BAK-3, BAK-25, BAK-26
//! Invariants
//! - A new bitmap begins to record before the point in time. The old one goes on recording until the snapshot
//!   that names the new one is published. Whenever a process is killed, one of the two bitmaps has every
//!   write since the newest snapshot.
//! - A guest that was stopped or frozen is resumed, also if this process is killed.
//! - If a copy fails, the point in time breaks and the guest's write goes on.
//! - All nodes, exports and jobs carry the name of their session. Teardown follows QEMU's own lists and not
//!   the memory of this process. So the same code works after an error, and in the next backup after a kill.
//!
//! Modules, bottom to top:
//! - `qmp`: control protocol of QEMU and of the guest agent.
//! - `names`: names of nodes, exports and bitmaps. `answers`: replies of QEMU about nodes, graph and schema.
//! - `process`: process behind the QMP socket. `launch`: options of its command line that QMP does not
//!   report.
//! - `write_path`: path of a guest's writes, and its redirection. `fleece`: session directory and
//!   fleecing images.
//! - `images`: completeness of a disk's images. `marks`: detection of a cleared bitmap.
//! - `pause`: stopping a guest for a moment. `freeze`: freezing its file systems.
//! - `teardown`: teardown of a session. `sweep`: removal of session directories whose QEMU has ended.
//! - `iothreads`: disks on which QEMU would abort. `self_test`: read mode of points in time.
//! - `point`: all steps in order. `listing`: bitmaps for `copal bitmap`.
//!
//! Not here: reading the disks (`copal-disk`, `copal-backup`).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

mod answers;
mod error;
mod fleece;
mod freeze;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod images;
mod iothreads;
mod launch;
mod listing;
mod marks;
mod names;
mod own_command;
mod pause;
mod point;
mod process;
mod qmp;
mod request;
mod self_test;
mod sweep;
mod teardown;
mod write_path;

pub use answers::nodes::DirtyBitmap;
pub use error::LiveError;
pub use freeze::{THAW, thaw_guest};
pub use listing::{BitmapListing, NodeBitmap, list_bitmaps, remove_bitmaps};
pub use pause::{RESUME, resume_guest};
pub use point::{BackupEnd, PointInTime};
pub use qmp::{QemuVersion, QmpError};
pub use request::{FleeceOptions, FreezeMethod, LiveDisk, LiveVm};
