//! Popular packs as a detector sees them: the interface to their log.

use copal_backup::peers::ShortId;
use std::io;

/// A popular pack, as recorded by a log entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PopularPack {
    /// Number of the entry, from 1; strictly ascending.
    pub position: u64,
    /// Ordinal of the first frame; those of the others follow.
    pub first_ordinal: u32,
    /// Short ids of its frames.
    pub ids: Vec<ShortId>,
    /// A second agent has opened all frames and found them correct.
    pub is_checked: bool,
}

/// The log of popular packs. It records a pack when it is stored, and again when it is checked.
pub trait PopularPacks {
    /// Number of the last entry; 0 of an empty log.
    fn newest(&self) -> u64;

    /// Changes when visited packs are removed or restored; 0 if that never happened. Data derived from
    /// entries of another generation is invalid.
    fn generation(&self) -> u64 {
        0
    }

    /// Whether a VM is being backed up, as far as is known; queried for VMs with unused grants.
    fn is_backing_up(&self, vm: u32) -> bool {
        let _ = vm;
        true
    }

    /// Visits the entries after number `after`, in order, at least up to the last result of
    /// [`PopularPacks::newest`].
    /// # Errors
    /// The log cannot be read; or the error of `visit`.
    fn for_each_since(
        &self,
        after: u64,
        visit: &mut dyn FnMut(PopularPack) -> io::Result<()>,
    ) -> io::Result<()>;
}
