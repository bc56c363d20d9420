//! Copies of snapshots of another repository: their origin, and their place in the history of the VM.

use crate::request::identity::SnapshotId;
use crate::request::json;
use serde::Serialize;
use uuid::Uuid;

/// Origin of a snapshot that was copied from another repository. A copy of a copy has the origin of the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CopyOrigin {
    /// The repository in which a backup made the snapshot.
    #[serde(serialize_with = "json::text")]
    pub repository: Uuid,
    /// Its id there.
    pub snapshot: SnapshotId,
    /// Its time there, in ms since 1970.
    pub created_ms: u64,
}

/// A snapshot of another repository that a backup copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopiedSnapshot {
    /// Where a backup made it.
    pub origin: CopyOrigin,
    /// The newest readable snapshot of the VM, which the copy follows. A backup that finds another one makes no
    /// snapshot: it may be the same copy, or newer than this one.
    pub follows: Option<SnapshotId>,
}
