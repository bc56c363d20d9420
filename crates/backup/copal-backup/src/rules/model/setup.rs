//! Scope of a search: the operations, their numbers, and the rule that is left out.

use super::moves::ModelMove;
use crate::rules::broken::Flaw;

/// A rule that the model's own part of the steps leaves out. Those of the program's steps are
/// `broken::Flaw`s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WeakRule {
    /// A walk uses the snapshots from its beginning, except those forgotten since.
    NeighbourForgotten,
    /// Only the vectors of the neighbours are merged.
    NeighboursOnly,
    /// A snapshot without a vector counts as one without references.
    MissingVectorIsEmpty,
    /// Sessions are read before packs are listed.
    LogsBeforePacks,
    /// Logs are read by listings that may miss the newest record.
    PlainLogs,
    /// The stamp of a pack decides whether its session is open.
    TimeOfStore,
    /// The chunks of a snapshot are removed before it is forgotten.
    ChunksBeforeSnapshot,
    /// A record names a list of moved chunks that is written after it.
    ListNotDurable,
    /// A pack is removed before its live frames are copied.
    UnlinksUncopied,
    /// Packs are removed without a list.
    RemovesUnlisted,
    /// A repair keeps packs without references.
    KeepsOrphans,
    /// Popular packs are removed with a VM.
    RemovesShared,
    /// A session looks for chunks before it removes listed packs.
    LooksFirst,
    /// A count of popular references leaves no record in the logs of VMs.
    CountsUnmarked,
    /// A prune that records no list of dead frames deletes all lists that it finds.
    DropsAllLists,
    /// The number of a list of dead frames is the next after the existing ones.
    ListNamesComeBack,
    /// A late delete takes any pack of that name.
    DeletesByName,
}

/// Scope of a search.
#[derive(Clone)]
pub(super) struct ModelSetup {
    pub(super) vms: usize,
    /// The possible contents of a disk: one chunk per place.
    pub(super) disks: &'static [[u8; 2]],
    pub(super) left: StepsLeft,
    pub(super) weak: Option<WeakRule>,
    pub(super) flaws: &'static [Flaw],
    /// Steps before the search begins.
    pub(super) before: Vec<ModelMove>,
}

/// Remaining number of each step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct StepsLeft {
    pub(super) backups: u8,
    pub(super) forgets: u8,
    /// Deletions by vectors.
    pub(super) deletions: u8,
    /// Prunes by a walk, which rewrite.
    pub(super) walks: u8,
    pub(super) repairs: u8,
    pub(super) cleanups: u8,
    pub(super) sweeps: u8,
    /// Removals of unneeded popular packs.
    pub(super) unneeded: u8,
    pub(super) retirements: u8,
    pub(super) fences: u8,
    pub(super) crashes: u8,
    /// Appends whose reply is lost, or that take effect late.
    pub(super) lost: u8,
    /// Creates and deletes that take effect late, or a second time.
    pub(super) late: u8,
    /// Popular packs.
    pub(super) popular: u8,
    /// Popular packs that bad memory spoils.
    pub(super) spoilt: u8,
    /// False checks by the writer of a popular pack.
    pub(super) lies: u8,
    /// Lost vectors.
    pub(super) vectors: u8,
}

impl ModelSetup {
    /// One VM, whose disk changes by one chunk each time.
    pub(super) fn new(left: StepsLeft) -> ModelSetup {
        ModelSetup { vms: 1, disks: &[[1, 2], [1, 3]], left, weak: None, flaws: &[], before: Vec::new() }
    }

    /// No list of dead frames that was in force when a VM's log ended at `next_number` has a number from this one on.
    pub(super) fn list_floor(&self, next_number: u64) -> u64 {
        if self.is_weak(WeakRule::ListNamesComeBack) { 0 } else { next_number << 16 }
    }

    pub(super) fn is_weak(&self, weak: WeakRule) -> bool {
        self.weak == Some(weak)
    }
}
