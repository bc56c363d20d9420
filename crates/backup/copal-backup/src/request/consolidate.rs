//! Consolidation of common chunks into popular packs, and removal of popular packs.

use crate::request::identity::{SnapshotId, Vm};
use serde::{Serialize, Serializer};

/// Options of a clean-up of a VM of a fleet.
#[derive(Clone, Copy, Debug)]
pub struct CleanUpOptions {
    /// Memory of one round.
    pub memory_bytes: u64,
    /// Ask only about the frames that the backup of this snapshot stored; `None`: about all frames of the
    /// VM's own chunks.
    pub snapshot: Option<SnapshotId>,
    /// Count the frames that would be given up, change nothing.
    pub dry_run: bool,
}

impl CleanUpOptions {
    /// Asks about all frames of the VM's own chunks.
    pub fn all(memory_bytes: u64) -> CleanUpOptions {
        CleanUpOptions { memory_bytes, snapshot: None, dry_run: false }
    }
}

/// Result of a clean-up of one VM of a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CleanUpSummary {
    /// The VM.
    #[serde(skip)]
    pub vm: Option<Vm>,
    /// Own frames of the VM about which other hosts were asked.
    pub asked: u64,
    /// Frames that were given up for popular ones.
    pub moved: u64,
    /// Chunks that were stored as popular ones.
    pub stored_popular: u64,
    /// Bytes of the chunks of `moved`.
    pub moved_bytes: u64,
    /// Stored bytes of frames that became dead; they count as free from then on.
    pub freed_bytes: u64,
    /// Frames without a usable answer in time: the next clean-up asks again.
    pub unanswered: u64,
    /// Frames of chunks that several VMs have and that may not become popular, because the fraction of popular
    /// chunks is used up.
    #[serde(rename = "refused_by_fraction")]
    pub refused: u64,
    /// Bytes of the chunks of `refused`.
    #[serde(skip)]
    pub refused_bytes: u64,
    /// Bytes read from the store.
    #[serde(skip)]
    pub read_bytes: u64,
}

impl CleanUpSummary {
    /// Adds the counts of another clean-up.
    pub fn add(&mut self, other: &CleanUpSummary) {
        self.asked += other.asked;
        self.moved += other.moved;
        self.stored_popular += other.stored_popular;
        self.moved_bytes += other.moved_bytes;
        self.freed_bytes += other.freed_bytes;
        self.unanswered += other.unanswered;
        self.refused += other.refused;
        self.refused_bytes += other.refused_bytes;
        self.read_bytes += other.read_bytes;
    }
}

/// Writes VMs as a list of their names.
fn names_of_vms<S: Serializer>(vms: &[Vm], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(vms.iter().map(|vm| &vm.name))
}

/// Result of the removal of popular packs that no snapshot needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UnneededPacks {
    /// VMs that are being backed up: until their backups have ended, no pack is removed or spared.
    #[serde(serialize_with = "names_of_vms")]
    pub waiting_for: Vec<Vm>,
    /// Packs of which no snapshot needed a chunk at first.
    pub unneeded_packs: u64,
    /// Packs that are still condemned: they take no new references, and the next run decides.
    pub condemned_packs: u64,
    /// Packs that turned out to be needed.
    pub spared_packs: u64,
    /// Packs that no snapshot needs.
    pub gone_packs: u64,
    /// Packs whose files were removed, including those left by earlier runs and dead writers.
    pub removed_packs: u64,
    /// Their bytes.
    pub removed_bytes: u64,
}
