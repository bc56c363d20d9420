//! Popular packs, as a detector learns of them: the seam to the log that has them.

use copal_backup::peers::ShortId;
use std::io;

/// A popular pack, as an entry of the log tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PopularPack {
    /// Number of the entry, from 1; strictly ascending.
    pub position: u64,
    /// Ordinal of the first frame; those of the others follow.
    pub first_ordinal: u32,
    /// Short ids of its frames.
    pub ids: Vec<ShortId>,
    /// A second agent has opened all frames and found them right.
    pub is_checked: bool,
}

/// The log of popular packs. A pack is in it once when it is stored, and again, later, when it is checked.
pub trait PopularPacks {
    /// Number of the last entry; 0 of an empty log.
    fn newest(&self) -> u64;

    /// Changes when packs that were visited are visited no more, or again; 0: that never was. What was made
    /// of entries in another generation is of no use.
    fn generation(&self) -> u64 {
        0
    }

    /// Whether a VM is being backed up, as far as is known; asked of VMs that were told to store something
    /// and have not for a while.
    fn is_backing_up(&self, vm: u32) -> bool {
        let _ = vm;
        true
    }

    /// Visits the entries after number `after`, in their order, at least up to what [`PopularPacks::newest`]
    /// has said.
    /// # Errors
    /// The log cannot be read; or what `visit` fails with.
    fn for_each_since(
        &self,
        after: u64,
        visit: &mut dyn FnMut(PopularPack) -> io::Result<()>,
    ) -> io::Result<()>;
}
