//! Checks: damage found, lost frames, packs entered in the index.

use crate::packs::home::PackHome;
use crate::request::identity::SnapshotId;
use crate::retention::Misdated;
use copal_volume::FileId;
use serde::Serialize;
use std::collections::HashSet;

/// One damaged object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The object: a pack, a recipe, a manifest, a record.
    pub what: String,
    /// The mismatch.
    pub detail: String,
    /// Snapshots that refer to it; a check names all of them.
    pub snapshots: Vec<SnapshotId>,
}

/// Result of a check or a verification.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckReport {
    /// The damages found; empty if there are none.
    #[serde(skip)]
    pub damages: Vec<Damage>,
    /// Damages beyond the first thousand are only counted.
    #[serde(skip)]
    pub more_damages: u64,
    /// Snapshots that are affected by the damages beyond the limit, or that refer to a pack with one of them.
    #[serde(skip)]
    pub more_snapshots: Vec<SnapshotId>,
    /// Snapshots walked.
    pub snapshots: u64,
    /// Packs whose structure was checked.
    pub packs: u64,
    /// Recipes, pages and roots read.
    pub recipes: u64,
    /// Chunk references that resolve.
    pub references: u64,
    /// Frames decoded.
    pub decoded_frames: u64,
    /// Stored bytes decoded.
    pub decoded_bytes: u64,
    /// Snapshots with an impossible time. This is no damage: no data of them is lost.
    #[serde(skip)]
    pub misdated: Vec<(SnapshotId, Misdated)>,
    /// Packs of backups that never finished; the next backup uses them or `prune` frees them.
    pub unfinished_packs: u64,
    /// Packs of which every byte was read and nothing is damaged.
    #[serde(skip)]
    pub verified_packs: HashSet<FileId>,
}

impl CheckReport {
    /// Whether no damage was found.
    pub fn is_clean(&self) -> bool {
        self.damages.is_empty() && self.more_damages == 0
    }
}

/// A damaged frame of a pack, for [`Repository::note_lost`](crate::Repository::note_lost).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostFrame {
    pub(crate) home: PackHome,
    pub(crate) pack: u64,
    pub(crate) slot: u32,
    pub(crate) id: [u8; 16],
}

/// Share of the packs that a check decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReadData {
    /// None: structure only.
    #[default]
    No,
    /// The packs whose number falls in slice `index` (from 1) of `of`.
    Slice {
        /// From 1 to `of`.
        index: u32,
        /// Number of slices.
        of: u32,
    },
    /// All packs.
    All,
}

/// Result of a rebuild of the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IndexSummary {
    /// Packs whose footers were read.
    pub packs: u64,
    /// Rows added.
    pub rows: u64,
    /// Packs with an unreadable footer; their chunks are unknown until the packs are repaired.
    pub damaged_packs: u64,
}
