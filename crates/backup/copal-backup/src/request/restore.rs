//! Restores: request and summary.

use crate::request::identity::SnapshotId;
use crate::request::json;
use serde::Serialize;
use std::time::Duration;

/// Request to restore one disk.
#[derive(Clone, Debug)]
pub struct RestoreRequest {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// The disk; `None` if the snapshot has only one.
    pub disk: Option<String>,
    /// Packs that are read at once, 1 to 64, if the store is on several servers.
    pub fetches: usize,
    /// Memory of the part of the disk that is being restored, in bytes.
    pub memory_bytes: u64,
}

impl RestoreRequest {
    /// The only disk of `snapshot`, with the defaults.
    pub fn new(snapshot: SnapshotId) -> RestoreRequest {
        RestoreRequest { snapshot, disk: None, fetches: 8, memory_bytes: 40 << 20 }
    }
}

/// Result of a restore.
#[derive(Clone, Debug, Serialize)]
pub struct RestoreSummary {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// Name of the disk.
    pub disk: String,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes left as holes.
    pub hole_bytes: u64,
    /// Bytes fetched from packs.
    pub fetched_bytes: u64,
    /// Chunks written.
    pub chunks: u64,
    /// Wall time of the restore.
    #[serde(rename = "seconds", serialize_with = "json::seconds")]
    pub duration: Duration,
}
