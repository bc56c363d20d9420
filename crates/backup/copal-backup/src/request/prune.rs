//! Deletion: forgotten snapshots, pruned packs, ended sessions.

use crate::request::identity::{SnapshotId, Vm};
use crate::request::open_session::{HolderId, Session};
use serde::Serialize;
use std::collections::HashSet;

/// Options of `forget`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ForgetOptions {
    /// Trust the clock even if it is further ahead of all snapshots than
    /// [`PAUSE_MS`](crate::retention::PAUSE_MS).
    pub accept_clock: bool,
}

/// Result of `forget`.
#[derive(Clone, Debug, Default)]
pub struct ForgetSummary {
    /// Snapshots that are no longer visible.
    pub forgotten: Vec<SnapshotId>,
}

/// Method to find the frames that only forgotten snapshots of a VM of a fleet refer to. In the layout solo it
/// is always exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FreeMethod {
    /// Merged summary vectors: reads the recipes that differ between neighbours, and misses one frame in a
    /// thousand. Without a complete set of vectors, as `Exact`.
    #[default]
    Summary,
    /// A walk of all snapshots of the VM: reads all recipes, misses nothing.
    Exact,
    /// As `Exact`, but as if chunks belonged to no VM: the snapshots of all VMs are walked for each. For
    /// comparison.
    MarkSweep,
    /// As `MarkSweep`, but of the other VMs only those with forgotten snapshots are walked, since marks of
    /// the rest are unchanged. For comparison.
    Grouped,
}

/// Options of `prune`.
#[derive(Clone, Debug)]
pub struct PruneOptions {
    /// Method to find dead frames, in a fleet.
    pub method: FreeMethod,
    /// Only this VM, in a fleet.
    pub vm: Option<uuid::Uuid>,
    /// Packs are rewritten until at most this share of the stored bytes is unused, in percent; 0 to 100.
    /// Rewriting the rest costs more than it frees.
    pub max_unused_percent: u8,
    /// Determine and report the result, change nothing.
    pub dry_run: bool,
    /// Memory of the mark, in bytes; a larger repository is marked in several passes.
    pub memory_bytes: u64,
    /// Snapshots that a dry run treats as forgotten; ignored otherwise.
    pub without: HashSet<SnapshotId>,
}

impl Default for PruneOptions {
    fn default() -> PruneOptions {
        PruneOptions {
            method: FreeMethod::Summary,
            vm: None,
            max_unused_percent: 5,
            dry_run: false,
            memory_bytes: 24 << 20,
            without: HashSet::new(),
        }
    }
}

/// Result of `prune` or `delete`, or of their dry run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PruneSummary {
    /// Unfinished backups ended and swept.
    pub swept_sessions: u64,
    /// VMs of a fleet that were skipped because they are being backed up.
    pub busy_vms: u64,
    /// VMs of a fleet whose dead frames were found by summary vectors, and by a walk.
    #[serde(skip)]
    pub by_summary: u64,
    /// See `by_summary`.
    #[serde(skip)]
    pub by_walk: u64,
    /// By summary vectors: examined references of forgotten snapshots. By a walk: frames. Each is dead or
    /// kept.
    pub candidates: u64,
    /// Of these, the ones that no other snapshot has.
    #[serde(rename = "dead")]
    pub candidates_dead: u64,
    /// Of these, the ones that another snapshot has, or seems to have.
    #[serde(rename = "kept")]
    pub candidates_kept: u64,
    /// Stored bytes of frames that became dead; they count as free from then on.
    #[serde(skip)]
    pub freed_bytes: u64,
    /// Bytes read from the store, in a fleet.
    pub read_bytes: u64,
    /// Estimate of dead bytes that the deletions of these VMs have missed since their last repair.
    pub leak_estimate_bytes: u64,
    /// Frames that a snapshot refers to.
    pub live_frames: u64,
    /// Frames that no snapshot refers to.
    pub dead_frames: u64,
    /// Packs unlinked because all of their frames were dead.
    pub removed_packs: u64,
    /// Packs rewritten because some of their frames were dead.
    pub rewritten_packs: u64,
    /// Stored bytes before.
    pub before_bytes: u64,
    /// Stored bytes after.
    pub after_bytes: u64,
    /// Bytes of new packs with frames of rewritten ones.
    pub written_bytes: u64,
    /// Bytes of dead frames in packs that were not rewritten, as far as these are readable.
    pub unused_bytes: u64,
    /// Passes of the mark under its memory bound.
    pub mark_passes: u64,
}

/// A session that was ended because its holder was silent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedSession {
    /// The VM of the backup.
    pub vm: Vm,
    /// The session.
    pub session: Session,
    /// Its holder.
    pub holder: HolderId,
}

/// Packs that were removed because no record names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweptPacks {
    /// Number of packs.
    pub packs: u64,
    /// Their bytes.
    pub bytes: u64,
}
