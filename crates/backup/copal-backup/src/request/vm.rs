//! Space of one VM of a fleet.

use crate::request::identity::Vm;
use serde::Serialize;

/// Size and shape of one VM of a fleet.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VmStats {
    /// The VM.
    #[serde(skip)]
    pub vm: Option<Vm>,
    /// Published snapshots.
    pub snapshots: u64,
    /// Published snapshots with an unreadable manifest.
    pub damaged_snapshots: u64,
    /// Forgotten snapshots whose space is not freed yet.
    pub forgotten: u64,
    /// Sum of the logical sizes of all readable snapshots.
    pub logical_bytes: u64,
    /// Bytes of packs of the VM's own chunks.
    pub chunk_pack_bytes: u64,
    /// Bytes of packs of recipes.
    pub recipe_pack_bytes: u64,
    /// Bytes of manifests, summary vectors and lists of dead frames.
    pub metadata_bytes: u64,
    /// Number of packs.
    pub packs: u64,
    /// Known dead frames in them.
    pub dead_frames: u64,
    /// Bytes of the known dead frames.
    pub dead_bytes: u64,
    /// Estimate of dead bytes that are not known as dead; `copal repair leak` finds them.
    pub leak_estimate_bytes: u64,
    /// Backups that have not ended.
    pub unfinished_sessions: u64,
    /// Chunks that were stored without an answer of other hosts, and that no clean-up has asked about since.
    #[serde(skip)]
    pub unresolved_chunks: u64,
    /// Chunks whose own frames the VM gave up for popular ones.
    #[serde(skip)]
    pub moved_chunks: u64,
}

impl VmStats {
    /// Share of a VM's bytes above which its leak is repaired, in percent: the paper's tau.
    pub const LEAK_SHARE_PERCENT: u8 = 10;

    /// Whether the estimated leak exceeds a share of the VM's bytes, so that a walk of its snapshots pays
    /// off.
    pub fn leaks_more_than(&self, share_percent: u8) -> bool {
        let bytes = u128::from(self.chunk_pack_bytes) + u128::from(self.recipe_pack_bytes);
        u128::from(self.leak_estimate_bytes) * 100 > bytes * u128::from(share_percent)
    }
}
