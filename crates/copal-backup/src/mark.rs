//! The mark: which frames do published snapshots name? Exact, under a memory bound.
//!
//! One bit per frame that is named, kept per pack. Packs are taken in slices of their numbers, as many
//! passes over the recipes as the bound asks for; one pass of 24 MiB serves more than 300 GB of packs.
//! What two consecutive snapshots of a VM share is looked at once.
//!
//! Invariants
//! - Nothing is unmarked that a reader could be led to: references are resolved as `vault` does.
//! - A reference that leads nowhere is an error: what cannot be understood must not be swept.

use crate::error::{Error, Result};
use crate::manifest::Manifest;
use crate::pack::{PackNumber, format};
use crate::progress::{CancelFlag, Progress};
use crate::recipe::{PAGE_SEGMENTS, Ref, Root};
use crate::tree::TreeReader;
use crate::vault::Vault;
use crate::volumes::Home;
use std::collections::HashMap;

/// Memory a pack takes in the map at most, in bytes.
const PACK_MEMORY_BYTES: u64 = format::MAX_FRAMES as u64 / 8 + 64;

/// Which packs a pass looks at: those whose number falls in slice `index` of `of`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    pub(crate) index: u64,
    pub(crate) of: u64,
}

impl Slice {
    /// How many slices keep the mark of `packs` packs within `memory_bytes`.
    pub(crate) fn count(packs: u64, memory_bytes: u64) -> u64 {
        packs.div_ceil((memory_bytes / PACK_MEMORY_BYTES).max(1)).max(1)
    }
    /// Whether the pack belongs to the slice. Pack numbers are random, so slices are even.
    pub(crate) fn has(self, pack: PackNumber) -> bool {
        pack.0 % self.of == self.index
    }
}

/// Bits of the frames that are named.
pub(crate) struct Marks<'a> {
    vault: &'a Vault,
    /// Numbers of all packs there are, ascending.
    present: &'a [PackNumber],
    slice: Slice,
    live: HashMap<PackNumber, Vec<u64>>,
}

impl<'a> Marks<'a> {
    pub(crate) fn new(vault: &'a Vault, present: &'a [PackNumber], slice: Slice) -> Marks<'a> {
        Marks {
            vault,
            present,
            slice,
            live: HashMap::new(),
        }
    }

    /// Frames of a pack that are named.
    pub(crate) fn live_frames(&self, pack: PackNumber) -> u32 {
        self.live
            .get(&pack)
            .map_or(0, |bits| bits.iter().map(|word| word.count_ones()).sum())
    }

    /// Whether a frame is named.
    pub(crate) fn is_live(&self, pack: PackNumber, slot: u32) -> bool {
        let word = self.live.get(&pack).and_then(|bits| bits.get(slot as usize / 64));
        word.is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    fn mark(&mut self, home: Home, reference: &Ref) -> Result<()> {
        let spot = reference.spot;
        let (pack, slot) = if self.present.binary_search(&spot.pack).is_ok() {
            (spot.pack, spot.slot)
        } else {
            match self.vault.index.find(&reference.id.short())? {
                Some((row, entry)) if entry.home == home && self.present.binary_search(&row.pack).is_ok() => {
                    (row.pack, row.slot)
                }
                _ => {
                    return Err(Error::Damaged {
                        what: format!("frame {:?}", reference.id),
                        detail: format!("pack {} is gone, and the index knows no other place", spot.pack),
                    });
                }
            }
        };
        if slot >= format::MAX_FRAMES {
            return Err(Error::Damaged {
                what: format!("frame {:?}", reference.id),
                detail: format!("no pack has a frame {slot}"),
            });
        }
        if self.slice.has(pack) {
            let bits = self.live.entry(pack).or_default();
            let word = slot as usize / 64;
            if bits.len() <= word {
                bits.resize(word + 1, 0);
            }
            bits[word] |= 1 << (slot % 64);
        }
        Ok(())
    }

    /// Marks everything the snapshots of one VM name; `manifests` are all of them, oldest first.
    pub(crate) fn vm(
        &mut self,
        manifests: &[Manifest],
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<()> {
        let Some(first) = manifests.first() else {
            return Ok(());
        };
        let home = Home::Recipes(first.vm);
        let mut tree = TreeReader::new(self.vault, first.vm)?;
        let mut before: HashMap<&str, Root> = HashMap::new();
        for manifest in manifests {
            for disk in &manifest.disks {
                self.mark(home, &disk.root)?;
                let root = tree.root(&disk.root, disk.size_bytes)?;
                let old = before.get(disk.name.as_str());
                self.disk(&mut tree, home, &root, old, cancel)?;
                before.insert(&disk.name, root);
            }
            progress.advance(1);
        }
        Ok(())
    }

    fn disk(
        &mut self,
        tree: &mut TreeReader<'_>,
        home: Home,
        root: &Root,
        old: Option<&Root>,
        cancel: &CancelFlag,
    ) -> Result<()> {
        for (index, page) in root.pages.iter().enumerate() {
            let Some(page) = page else { continue };
            let before = old.and_then(|old| old.pages.get(index).copied().flatten());
            if before.as_ref() == Some(page) {
                continue;
            }
            if cancel.is_cancelled() {
                return Err(Error::Cancelled { kept_bytes: None });
            }
            self.mark(home, page)?;
            let index = index as u64;
            let now = tree.page(Some(page), root.size_bytes, index)?;
            let old_size = old.map_or(0, |old| old.size_bytes);
            // Only a shortcut: a page that cannot be read shows nothing to skip.
            let shared = before.and_then(|before| tree.page(Some(&before), old_size, index).ok());
            for (within, segment) in now.segments.iter().enumerate() {
                let Some(segment) = segment else { continue };
                let same = shared
                    .as_ref()
                    .and_then(|page| page.segments.get(within).copied().flatten());
                if same.as_ref() == Some(segment) {
                    continue;
                }
                self.mark(home, segment)?;
                let number = index * PAGE_SEGMENTS as u64 + within as u64;
                let recipe = tree.segment(segment, root.size_bytes, number)?;
                for chunk in recipe.entries.iter().filter_map(|entry| entry.chunk.as_ref()) {
                    self.mark(Home::Chunks, chunk)?;
                }
            }
        }
        Ok(())
    }
}
