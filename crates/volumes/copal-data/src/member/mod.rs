//! Rows of a data server for the groups of its disk.
//!
//! Files have the rows of the embedded store. Additionally there are tombstones, a journal of all operations,
//! and the member's state in each group. The rules (`copal_volume::group`) decide; this module looks up the
//! facts and writes the decisions, one batch for many operations of a group.
//!
//! Design: docs/design/cluster.md#rules VOL-10, VOL-11, VOL-13, VOL-14
//! Invariants
//! - An operation and its journal row are one batch; it is acknowledged when the batch is durable (VOL-13).
//! - A file with a tombstone is never written again.
//! - An id of a file belongs to one name of one volume (VOL-72).
//! - The epoch of a group never falls.
//!
//! Not here: senders of operations, transport of answers, views (`copal-server`).

mod batch_overlay;
mod damage;
mod digest_cache;
mod disk_space;
mod disk_state;
mod file_ids;
mod group_batch;
mod group_queue;
mod heads;
mod identity;
mod in_sync;
mod journal_depth;
mod journal_entry;
mod member_clock;
mod operation;
mod queue_worker;
mod reads;
mod recent_files;
mod resync;
mod roles;
mod seal;
mod stage;
mod store;
mod upload_expiry;
mod upload_rows;
mod uploads;
mod verify;
mod volume_usage;
mod volumes;

pub use damage::{DiskScrub, DroppedRows};
pub use in_sync::ResyncedGroup;
pub use journal_depth::JournalDepth;
pub use journal_entry::JournalEntry;
pub use operation::{BodySource, GroupOperation, NewHead, OperationError, OperationResult};
pub use queue_worker::QueueWorker;
pub use reads::FileState;
pub use resync::{GroupSnapshot, SnapshotEntry};
pub use roles::{AssignedView, GroupMembership};
pub use seal::DisputedName;
pub use stage::StagedPiece;
pub use store::MemberStore;
pub use uploads::UploadOrigin;
pub use verify::{VerifiedSpan, VerifySpan};
pub use volumes::VolumeNotice;

#[cfg(test)]
mod tests;
