//! Data node: volumes of immutable files on the key-value engine.
//!
//! [`LocalStore`] is the embedded node: all of [`VolumeStore`](copal_volume::VolumeStore) in one `copal-kv`
//! store, in one process, without a network. [`MemberStore`] keeps groups that have replicas on other disks.
//! It has the same rows, and additionally tombstones, a journal, and the disk's own state in each group. In
//! an embedded store the group is 0 and the epoch constant.
//!
//! Format: docs/formats/data-rows.md v1
//!
//! Invariants
//! - One operation is one atomic batch. A name, the head of its file and the file's last piece appear
//!   together or not at all (VOL-3).
//! - An acknowledged operation is durable on the device (VOL-5).
//! - Everything is checked before it is returned: heads by a checksum that covers their key, bodies by their
//!   own checksums (VOL-6).
//!
//! Design: docs/design/volume.md#rows
//!
//! Not here: rules of replication, ids, names and the promises of a volume store (`copal-volume`); servers.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

mod check;
mod error;
mod format;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod keys;
mod keyspaces;
mod local;
mod member;
mod name_locks;
mod operation_clock;
mod rescue;
mod second_copies;

pub use check::{CheckOptions, VolumeCheckReport, VolumeDamage};
pub use format::MemberIdentity;
pub use local::{LocalOptions, LocalStore};
pub use member::{
    AssignedView, BodySource, DiskScrub, DisputedName, DroppedRows, FileState, GroupMembership,
    GroupOperation, GroupSnapshot, JournalDepth, JournalEntry, MemberStore, NewHead, OperationError,
    OperationResult, QueueWorker, ResyncedGroup, SnapshotEntry, StagedPiece, UploadOrigin, VerifiedSpan,
    VerifySpan, VolumeNotice,
};
pub use rescue::{RescueReport, rescue};
