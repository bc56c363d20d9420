//! The mark: which frames do published snapshots name? Exact, under a memory bound.
//!
//! One bit per frame that is named, kept per pack. Packs are taken in slices of their numbers, as many
//! passes over the recipes as the bound asks for; one pass of 24 MiB serves more than 300 GB of packs.
//! What two consecutive snapshots of a VM share is looked at once.
//!
//! Invariants
//! - Marked is the frame that a reader gets: references are resolved by `pack_store`. Where several frames of
//!   one id are known, that takes opening them; where there is one, it is marked unopened.
//! - A reference that leads nowhere is an error: what cannot be understood must not be swept (BAK-8).

use crate::delete::references::is_private;
use crate::packs::pack::{PackNumber, Spot, format};
use crate::packs::pack_store::{FrameReader, PackStore, nowhere};
use crate::packs::volumes::Home;
use crate::request::error::{Error, Result};
use crate::request::peers::ShortId;
use crate::request::progress::{CancelFlag, Progress};
use crate::rules::broken::{self, Flaw};
use crate::snapshot::manifest::Manifest;
use crate::snapshot::recipe::{PAGE_SEGMENTS, Ref, Root};
use crate::snapshot::tree::TreeReader;
use std::collections::HashMap;
use uuid::Uuid;

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
    pack_store: &'a PackStore,
    /// Numbers of all packs there are, ascending.
    present: &'a [PackNumber],
    slice: Slice,
    live: HashMap<PackNumber, Vec<u64>>,
    /// Frames of each pack that are the only known ones of their ids.
    sole: HashMap<PackNumber, u32>,
    /// Whether the snapshots of one VM are walked, for its own packs.
    is_of_vm: bool,
    /// The snapshots that are walked now are of other VMs.
    is_of_others: bool,
    /// Packs that are marked where one of their ids is named, wherever its frame is.
    wanted: HashMap<ShortId, PackNumber>,
    frames: FrameReader<'a>,
}

impl<'a> Marks<'a> {
    /// No marks yet. `vm`: the only one whose snapshots will be walked, in a fleet.
    pub(crate) fn new(
        pack_store: &'a PackStore,
        present: &'a [PackNumber],
        slice: Slice,
        vm: Option<Uuid>,
    ) -> Result<Marks<'a>> {
        Ok(Marks {
            pack_store,
            present,
            slice,
            live: HashMap::new(),
            is_of_vm: vm.is_some(),
            is_of_others: false,
            wanted: HashMap::new(),
            sole: pack_store.index.sole_frames(vm)?,
            frames: FrameReader::new(pack_store)?,
        })
    }

    /// Frames of a pack that are named.
    pub(crate) fn live_frames(&self, pack: PackNumber) -> u32 {
        self.live.get(&pack).map_or(0, |bits| bits.iter().map(|word| word.count_ones()).sum())
    }

    /// Whether a frame is named.
    pub(crate) fn is_live(&self, pack: PackNumber, slot: u32) -> bool {
        let word = self.live.get(&pack).and_then(|bits| bits.get(slot as usize / 64));
        word.is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    fn is_present(&self, pack: PackNumber) -> bool {
        self.present.binary_search(&pack).is_ok()
    }

    /// Whether nothing but its own spot leads to any frame of the pack.
    fn is_alone(&self, pack: PackNumber) -> Result<bool> {
        let Some(&sole) = self.sole.get(&pack) else {
            return Ok(false);
        };
        Ok(self.pack_store.index.pack(pack)?.is_some_and(|entry| entry.frames == sole))
    }

    /// Marks the frame of a chunk that a reader gets.
    fn chunk(&mut self, reference: &Ref) -> Result<()> {
        // What all VMs of a fleet may refer to is not swept for one of them.
        if self.is_of_vm && !is_private(reference) {
            return Ok(());
        }
        let is_there = self.is_present(reference.spot.pack);
        if self.is_of_others {
            // A reader whose frame is damaged looks for another one.
            if let Some(pack) = self.wanted.get(&reference.id.short()) {
                self.live.entry(*pack).or_insert_with(|| vec![1]);
            }
            return match is_there {
                true => self.mark(reference, reference.spot),
                false => Ok(()),
            };
        }
        if is_there && self.is_alone(reference.spot.pack)? {
            return self.mark(reference, reference.spot);
        }
        let mut spots = self.pack_store.other_spots(reference)?;
        if self.is_of_vm && self.has_moved(reference, &spots, is_there)? {
            return Ok(());
        }
        spots.retain(|spot| self.is_present(spot.pack));
        if is_there {
            spots.insert(0, reference.spot);
        }
        match spots[..] {
            [] => Err(nowhere(reference)),
            [only] => self.mark(reference, only),
            _ => match self.opened(reference) {
                Ok(good) => self.mark(reference, good),
                // No reader gets any of them now. What a person may mend is kept.
                Err(error) if error.is_corruption() => {
                    spots.iter().try_for_each(|spot| self.mark(reference, *spot))
                }
                Err(error) => Err(error),
            },
        }
    }

    /// Whether a chunk of the VM moved to a popular frame that is good. While there is a frame of the VM's
    /// own, the popular one is opened: it is about to be the only one.
    fn has_moved(&mut self, reference: &Ref, others: &[Spot], is_there: bool) -> Result<bool> {
        let (popular, own): (Vec<Spot>, Vec<Spot>) =
            others.iter().partition(|spot| spot.home == Home::Shared);
        let has_own = is_there || own.iter().any(|spot| self.is_present(spot.pack));
        for spot in popular {
            let located = match self.pack_store.at(spot, &reference.id.short()) {
                Err(error) if error.is_corruption() => None,
                located => located?,
            };
            if let Some(located) = located
                && (!has_own || self.frames.opens_to(&located, &reference.id)?)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Where the frame of a chunk stands that opens.
    fn opened(&mut self, reference: &Ref) -> Result<Spot> {
        let (pack_store, frames) = (self.pack_store, &mut self.frames);
        pack_store.first_good(reference, |located| match frames.opens_to(located, &reference.id)? {
            true => Ok(located.spot),
            false => Err(located.footer.damaged("a frame of it is lost")),
        })
    }

    /// Marks the recipe that was read last, by the name of `reference`.
    fn recipe(&mut self, tree: &TreeReader<'_>, reference: &Ref) -> Result<()> {
        if self.is_of_others {
            return Ok(());
        }
        self.mark(reference, tree.place().unwrap_or(reference.spot))
    }

    fn mark(&mut self, reference: &Ref, spot: Spot) -> Result<()> {
        let Spot { pack, slot, .. } = spot;
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

    /// No marks yet, of packs that snapshots of any VM may name: `present`, and those of which `wanted` has
    /// an id.
    pub(crate) fn of_others(
        pack_store: &'a PackStore,
        present: &'a [PackNumber],
        wanted: HashMap<ShortId, PackNumber>,
    ) -> Result<Marks<'a>> {
        Ok(Marks {
            pack_store,
            present,
            slice: Slice { index: 0, of: 1 },
            live: HashMap::new(),
            is_of_vm: false,
            is_of_others: true,
            wanted,
            sole: HashMap::new(),
            frames: FrameReader::new(pack_store)?,
        })
    }

    /// From here on snapshots of other VMs are walked, whose chunks are somewhere else: what they name of
    /// these packs is marked, what they name of others is nobody's business here.
    pub(crate) fn walk_others(&mut self) {
        self.is_of_others = true;
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
        let mut tree = TreeReader::new(self.pack_store, first.vm)?;
        let mut before: HashMap<&str, Root> = HashMap::new();
        for manifest in manifests {
            for disk in &manifest.disks {
                let root = tree.root(&disk.root, disk.size_bytes)?;
                self.recipe(&tree, &disk.root)?;
                let old = before.get(disk.name.as_str());
                self.disk(&mut tree, &root, old, cancel)?;
                before.insert(&disk.name, root);
            }
            progress.advance(1);
        }
        Ok(())
    }

    fn disk(
        &mut self,
        tree: &mut TreeReader<'_>,
        root: &Root,
        old: Option<&Root>,
        cancel: &CancelFlag,
    ) -> Result<()> {
        for (index, page) in root.pages.iter().enumerate() {
            let Some(page) = page else { continue };
            let before = old.and_then(|old| old.pages.get(index).copied().flatten());
            let is_named = |before: &Ref| broken::by(Flaw::MarkByName) && before.id == page.id;
            if before.as_ref() == Some(page) || before.as_ref().is_some_and(is_named) {
                continue;
            }
            if cancel.is_cancelled() {
                return Err(Error::Cancelled { kept_bytes: None });
            }
            let index = index as u64;
            let now = tree.page(Some(page), root.size_bytes, index)?;
            self.recipe(tree, page)?;
            let old_size = old.map_or(0, |old| old.size_bytes);
            // Only a shortcut: a page that cannot be read shows nothing to skip.
            let shared = before.and_then(|before| tree.page(Some(&before), old_size, index).ok());
            for (within, segment) in now.segments.iter().enumerate() {
                let Some(segment) = segment else { continue };
                let same = shared.as_ref().and_then(|page| page.segments.get(within).copied().flatten());
                if same.as_ref() == Some(segment) {
                    continue;
                }
                let number = index * PAGE_SEGMENTS as u64 + within as u64;
                let recipe = tree.segment(segment, root.size_bytes, number)?;
                self.recipe(tree, segment)?;
                for chunk in recipe.entries.iter().filter_map(|entry| entry.chunk.as_ref()) {
                    self.chunk(chunk)?;
                }
            }
        }
        Ok(())
    }
}
