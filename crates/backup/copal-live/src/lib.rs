//! Disks of VMs that run: QEMU holds a point in time of them for as long as a backup reads.
//!
//! The guest writes on. What it overwrites is copied before (`copy-before-write`) into a fleecing image, and
//! a backup reads the disk as it was through an NBD export of that. A dirty bitmap that begins at the point
//! in time tells the next backup what was written since.
//!
//! Design: docs/design/backup.md#disks-of-vms-that-run BAK-3, BAK-25, BAK-26
//! Invariants
//! - A new bitmap records before the point in time, and the old one goes on recording until the snapshot that
//!   names the new one is published. So whoever is killed, whenever, one of them has every write since the
//!   newest snapshot.
//! - A guest that was stopped or frozen goes on, also when this process is killed.
//! - Whatever stands in the way of a copy breaks the point in time and not the guest's write.
//! - What was put up carries the name of its session, and is taken down by what is found, not by what is
//!   remembered: after an error, and by the next backup after a kill, with the same code.
//!
//! Inside, bottom to top:
//! - `qmp`: the control protocol of QEMU and of the guest agent.
//! - `names`: what carries whose name. `answers`: what QEMU says of nodes, of their graph, and of what it can
//!   do.
//! - `process`: the process behind the socket. `launch`: options of its command line that QMP does not tell.
//! - `path_of_writes`: where a guest's writes pass, and how they are sent another way. `fleece`: the
//!   directory and the images of a session.
//! - `whole`: whether the images of a disk are whole. `marks`: how a bitmap that was cleared is known.
//! - `pause`: a guest that is stopped for a moment. `freeze`: file systems of a guest that hold still.
//! - `clear`: takes down what a session has put up. `sweep`: removes the files of a session whose QEMU has
//!   ended.
//! - `iothreads`: disks that QEMU would abort over. `self_test`: how points in time of this QEMU are read.
//! - `point`: all of it in order. `listing`: bitmaps as a person looks at them.
//!
//! Not here: reading the disks (`copal-disk`, `copal-backup`).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

mod answers;
mod clear;
mod error;
mod fleece;
mod freeze;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod iothreads;
mod launch;
mod listing;
mod marks;
mod names;
mod own_command;
mod path_of_writes;
mod pause;
mod point;
mod process;
mod qmp;
mod request;
mod self_test;
mod sweep;
mod whole;

pub use answers::nodes::DirtyBitmap;
pub use error::LiveError;
pub use freeze::{THAW, thaw_guest};
pub use listing::{BitmapListing, NodeBitmap, list_bitmaps, remove_bitmaps};
pub use pause::{RESUME, resume_guest};
pub use point::{Ended, PointInTime};
pub use qmp::{QmpError, Version};
pub use request::{Fleece, Freeze, LiveDisk, LiveVm};
