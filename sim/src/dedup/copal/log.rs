//! Log of popular packs in memory: the contents of log `k` of a repository, as a detector reads it.

use copal_agent::detect::{PopularPack, PopularPacks};
use copal_backup::peers::{Answer, ShortId};
use std::io;

/// Number of a pack.
pub(super) type PackNumber = usize;

/// Log of one domain.
#[derive(Default)]
pub(super) struct Log {
    /// Entries by ordinal.
    ids: Vec<ShortId>,
    /// Ordinals of each pack.
    packs: Vec<std::ops::Range<usize>>,
    /// Order of the entries: stored packs and checked packs.
    entries: Vec<(PackNumber, bool)>,
}

impl Log {
    /// Enters a stored pack that no other host has checked yet.
    pub(super) fn store(&mut self, ids: &[ShortId]) -> PackNumber {
        let first = self.ids.len();
        self.ids.extend_from_slice(ids);
        self.packs.push(first..self.ids.len());
        let pack = self.packs.len() - 1;
        self.entries.push((pack, false));
        pack
    }

    /// Enters that another host has read a pack and found it correct.
    pub(super) fn check(&mut self, pack: PackNumber) -> &[ShortId] {
        self.entries.push((pack, true));
        &self.ids[self.packs[pack].clone()]
    }

    /// Whether an answer points to the frame of an id.
    pub(super) fn has_at(&self, answer: Answer, id: &ShortId) -> bool {
        let ordinal = answer.ordinal().map(|ordinal| ordinal as usize);
        ordinal.and_then(|ordinal| self.ids.get(ordinal)) == Some(id)
    }
}

impl PopularPacks for Log {
    fn newest(&self) -> u64 {
        self.entries.len() as u64
    }

    fn for_each_since(
        &self,
        after: u64,
        visit: &mut dyn FnMut(PopularPack) -> io::Result<()>,
    ) -> io::Result<()> {
        let since = self.entries.iter().enumerate().skip(after as usize);
        since
            .map(|(at, &(pack, is_checked))| PopularPack {
                position: at as u64 + 1,
                first_ordinal: self.packs[pack].start as u32,
                ids: self.ids[self.packs[pack].clone()].to_vec(),
                is_checked,
            })
            .try_for_each(visit)
    }
}
