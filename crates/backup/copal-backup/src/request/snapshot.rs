//! Listed snapshots and their disks.

use crate::request::backup::{BackupCounts, DiskMode};
use crate::request::copied::CopyOrigin;
use crate::request::identity::{SnapshotId, Vm};
use crate::retention::Misdated;
use copal_disk::doubt::DiskDoubt;
use copal_disk::source::BitmapState;
use serde::Serialize;

/// One disk of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SnapshotDisk {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Serial that distinguishes it from another disk of its name; empty if unknown.
    pub serial: String,
    /// How it was read.
    pub mode: DiskMode,
    /// Why it was not read incrementally; empty if it was.
    pub reason: String,
    /// The dirty bitmap that had recorded all later writes at the time of the backup.
    pub bitmap: Option<String>,
    /// The sentinel beside the dirty bitmap: it shows whether the bitmap was cleared.
    #[serde(skip)]
    pub sentinel: Option<BitmapState>,
    /// Identity that distinguishes the disk from another one; empty if unknown.
    #[serde(skip)]
    pub identity: String,
}

/// The readable snapshots, and the VMs whose log is damaged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Oldest first.
    pub snapshots: Vec<Snapshot>,
    /// VMs with a damaged log, each with the damage as a sentence.
    pub damaged: Vec<(Vm, String)>,
}

/// A published snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// Its identity.
    pub id: SnapshotId,
    /// Its VM.
    pub vm: Vm,
    /// Position in the VM's history, ascending.
    pub sequence: u64,
    /// Time of the store's clock when it became visible. May go back if a clock was wrong.
    pub created_ms: u64,
    /// Why that time is impossible, compared with the present clock and with other snapshots.
    pub misdated: Option<Misdated>,
    /// Its base snapshot.
    pub base: Option<SnapshotId>,
    /// Tags given at backup.
    pub tags: Vec<String>,
    /// Text given at backup.
    pub description: String,
    /// Its disks.
    pub disks: Vec<SnapshotDisk>,
    /// Counters of the backup that made it.
    pub counts: BackupCounts,
    /// A verification decoded every chunk of it and found no damage.
    #[serde(rename = "verified")]
    pub is_verified: bool,
    /// It may not be forgotten before this time, in ms since 1970; 0: it is not held.
    #[serde(skip)]
    pub held_until_ms: u64,
    /// Reasons why its content may differ from its disks.
    pub doubts: Vec<DiskDoubt>,
    /// An operator has accepted the snapshot despite its doubts.
    #[serde(skip)]
    pub is_accepted: bool,
    /// The snapshot of another repository that it is a copy of.
    pub copied_from: Option<CopyOrigin>,
    /// Why its manifest cannot be read; then base, tags, description, disks and counts are empty.
    pub damage: Option<String>,
}

impl Snapshot {
    /// Whether it has a doubt that no operator has accepted.
    pub fn is_doubtful(&self) -> bool {
        !self.doubts.is_empty() && !self.is_accepted
    }

    /// The id that the snapshot and all its copies share.
    pub fn first_id(&self) -> SnapshotId {
        self.copied_from.map_or(self.id, |origin| origin.snapshot)
    }
}

/// Content of one disk of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskListing {
    /// The disk.
    pub disk: SnapshotDisk,
    /// Bytes that are not holes.
    pub data_bytes: u64,
    /// Bytes of holes.
    pub hole_bytes: u64,
    /// Chunk references.
    pub chunks: u64,
    /// Segments with data.
    pub segments: u64,
}
