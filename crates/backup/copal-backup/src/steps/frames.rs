//! Frames of a VM's own packs: which a backup may refer to, and what becomes of a pack.

use crate::index::dead_frames::DeadFrames;
use crate::packs::pack::PackNumber;

/// Whether a backup may refer to a frame, and a clean-up give it up: a dead one goes, whoever still sees it
/// (BAK-17).
pub(crate) fn is_in_use(dead: &DeadFrames, pack: PackNumber, slot: u32) -> bool {
    !dead.has(pack, slot)
}

/// What becomes of a pack that nobody backs up beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nothing of it is live.
    Unlink,
    /// It may be rewritten.
    Mixed,
    Stays,
}

/// `frames`: as many as it has.
pub(crate) fn fate(live: u32, frames: u32) -> Fate {
    match live {
        0 => Fate::Unlink,
        _ if live < frames => Fate::Mixed,
        _ => Fate::Stays,
    }
}
