//! What a search looks at: who may do what, how often, and which rule is left out.

use super::moves::Move;
use crate::rules::broken::Flaw;

/// A rule that the model's own part of the steps leaves out. Those of the program's steps are
/// `broken::Flaw`s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weak {
    /// A walk goes by the snapshots there were when it began, but for those that were forgotten since.
    NeighbourForgotten,
    /// The vectors of the neighbours are merged, and no others.
    NeighboursOnly,
    /// A snapshot without a vector refers to nothing.
    MissingVectorIsEmpty,
    /// Sessions are looked for before packs are.
    LogsBeforePacks,
    /// Logs are read by lists that may not show the newest record.
    PlainLogs,
    /// Whether a pack is of a session that is open is told by its time.
    TimeOfStore,
    /// The chunks of a snapshot go before it is forgotten.
    ChunksBeforeSnapshot,
    /// A record names a list of moved chunks that is written after it.
    ListNotDurable,
    /// A pack goes before its live frames are copied.
    UnlinksUncopied,
    /// Packs go that were not announced.
    RemovesUnlisted,
    /// A repair leaves packs alone that no snapshot names.
    KeepsOrphans,
    /// What all share goes with a VM.
    RemovesShared,
    /// A session looks for chunks before it removes what is going.
    LooksFirst,
    /// Whoever counts what popular packs are needed leaves no record in the logs that he reads.
    CountsUnmarked,
}

/// See the module.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) vms: usize,
    /// What a disk may consist of: a chunk a place.
    pub(super) disks: &'static [[u8; 2]],
    pub(super) left: Left,
    pub(super) weak: Option<Weak>,
    pub(super) flaws: &'static [Flaw],
    /// What has happened already.
    pub(super) before: Vec<Move>,
}

/// How often it may happen still.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Left {
    pub(super) backups: u8,
    pub(super) forgets: u8,
    /// Deletions by vectors.
    pub(super) deletions: u8,
    /// Prunes by a walk, which rewrite.
    pub(super) walks: u8,
    pub(super) repairs: u8,
    pub(super) cleanups: u8,
    pub(super) sweeps: u8,
    /// Removals of popular packs that nobody needs.
    pub(super) unneeded: u8,
    pub(super) retirements: u8,
    pub(super) fences: u8,
    pub(super) crashes: u8,
    /// Appends whose reply is lost, or that come about late.
    pub(super) lost: u8,
    /// Popular packs.
    pub(super) popular: u8,
    /// Those of them that bad memory spoils.
    pub(super) spoilt: u8,
    /// Times that a host says of its own popular pack that it has checked it.
    pub(super) lies: u8,
    /// Vectors that are lost.
    pub(super) vectors: u8,
}

impl Setup {
    /// One VM, whose disk changes by one chunk each time.
    pub(super) fn new(left: Left) -> Setup {
        Setup { vms: 1, disks: &[[1, 2], [1, 3]], left, weak: None, flaws: &[], before: Vec::new() }
    }

    pub(super) fn is_weak(&self, weak: Weak) -> bool {
        self.weak == Some(weak)
    }
}
