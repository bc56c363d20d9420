//! Disk I/O of backup and restore: sources that a backup reads, targets that a restore writes.
//!
//! A [`source::Source`] reports which ranges hold data and reads bytes. A [`target::Target`] takes bytes and
//! holes. Files, devices, qcow2 images, NBD exports and pipes implement one of the two or both. [`doubt`]
//! defines warnings that make a snapshot doubtful.
//!
//! Design: docs/design/backup.md#sources
//! Not here: the backup itself (`copal-backup`), points in time of running VMs (`copal-live`), the NBD
//! protocol (`copal-nbd`).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

pub mod doubt;
pub mod source;
pub mod target;
