//! Data node: volumes of immutable files on the key-value engine.
//!
//! Here is the embedded node, [`LocalStore`]: all of [`VolumeStore`](copal_volume::VolumeStore) in one
//! `copal-kv` store, one process, no network. [`MemberStore`] keeps groups that other disks keep, too: the
//! same rows, and beside them what was deleted, a journal, and what the disk knows about itself in each
//! group. In an embedded store the group's number is 0 and the epoch constant.
//!
//! Format: docs/formats/data-rows.md v1
//!
//! Invariants
//! - One operation is one atomic batch: a name, its file's head and the last of its pieces appear
//!   together or not at all (VOL-3).
//! - Acknowledged means durable on the device (VOL-5).
//! - Nothing is read before it is checked: heads against a checksum that covers their key, bodies
//!   against theirs (VOL-6).
//!
//! Design: docs/design/volume.md#rows
//!
//! Not here: the rules of replication (`copal-volume`), servers; ids, names and the promises
//! of a volume store (`copal-volume`).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

mod check;
mod error;
mod format;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod keys;
mod local;
mod member;
mod name_locks;
mod rescue;
mod spaces;
mod spare;
mod times;

pub use check::{CheckOptions, CheckReport, Damage};
pub use format::MemberIdentity;
pub use local::{LocalOptions, LocalStore};
pub use member::{
    Body, Disputed, GivenUp, GroupSnapshot, JournalDepth, JournalEntry, Known, MemberStore, Membership,
    NewHead, NotHeld, Operation, Piece, Reply, Scrubbing, SnapshotEntry, Span, Taken, Told, ToldView,
    UploadOrigin, Verified, Work,
};
pub use rescue::{Rescued, rescue};
