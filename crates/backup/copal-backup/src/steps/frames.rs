//! Rules for frames and packs of a VM: which frames may be referred to, which packs are removed.

use crate::index::dead_frames::DeadFrames;
use crate::packs::pack::PackNumber;

/// Whether a backup may refer to a frame, and a clean-up may give it up. A dead frame is removed later, even
/// if it is still visible to a process (BAK-17).
pub(crate) fn is_in_use(dead: &DeadFrames, pack: PackNumber, slot: u32) -> bool {
    !dead.has(pack, slot)
}

/// Treatment of a pack by a prune that runs beside no backup of the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PackFate {
    /// No frame is live: the pack is removed.
    Unlink,
    /// Some frames are live: the pack may be rewritten.
    Mixed,
    Stays,
}

/// The treatment of a pack with `live` of `frames` frames in use.
pub(crate) fn fate(live: u32, frames: u32) -> PackFate {
    match live {
        0 => PackFate::Unlink,
        _ if live < frames => PackFate::Mixed,
        _ => PackFate::Stays,
    }
}
