//! Disks of VMs outside of a repository: sources that a backup reads, targets that a restore writes.
//!
//! A [`source::Source`] answers which ranges hold data and reads bytes; a [`target::Target`] takes bytes and
//! holes. Files, devices, qcow2 images, NBD exports and pipes are both or one of them. [`doubt`] names what
//! looks wrong about a disk.
//!
//! Design: docs/design/backup.md#sources
//! Not here: what a backup does with a disk (`copal-backup`), running machines (`copal-live`), the NBD
//! protocol (`copal-nbd`).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

pub mod doubt;
pub mod source;
pub mod target;
