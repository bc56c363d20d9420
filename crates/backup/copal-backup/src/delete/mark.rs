//! The mark: finds the frames that published snapshots refer to. Exact, with bounded memory.
//!
//! One bit per frame, kept per pack. Packs are divided into slices of their numbers, with one pass over the
//! recipes for each slice; one pass of 24 MiB serves more than 300 GB of packs. The parts that two
//! consecutive snapshots of a VM share are read once.
//!
//! Invariants
//! - The marked frame is the one that a reader gets: `pack_store` resolves references for both. If several
//!   frames of one id are known, they are decrypted to choose; a single frame is marked without that.
//! - An unresolvable reference is an error: nothing is swept while a reference is not understood (BAK-8).

use crate::delete::references::is_private;
use crate::index::IndexRow;
use crate::packs::frame_reader::FrameReader;
use crate::packs::home::PackHome;
use crate::packs::pack::{FrameLocation, PackNumber, format};
use crate::packs::pack_store::{PackStore, unresolved};
use crate::request::error::{Error, Result};
use crate::request::peers::ShortId;
use crate::request::progress::{CancelFlag, Progress};
use crate::rules::broken::{self, Flaw};
use crate::snapshot::manifest::Manifest;
use crate::snapshot::recipe::{DiskRoot, FrameRef, PAGE_SEGMENTS};
use crate::snapshot::tree::TreeReader;
use std::collections::{BTreeMap, HashMap};
use uuid::Uuid;

/// Chunks that are marked together: their rows are looked up together.
const MOST_NOTED: usize = 16 << 10;
/// Most memory of a pack in the map, in bytes.
const PACK_MEMORY_BYTES: u64 = format::MAX_FRAMES as u64 / 8 + 64;

/// Packs of one pass: those whose number falls in slice `index` of `of`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackSlice {
    pub(crate) index: u64,
    pub(crate) of: u64,
}

impl PackSlice {
    /// Number of slices that keep the mark of `packs` packs within `memory_bytes`.
    pub(crate) fn count(packs: u64, memory_bytes: u64) -> u64 {
        packs.div_ceil((memory_bytes / PACK_MEMORY_BYTES).max(1)).max(1)
    }
    /// Whether the pack belongs to the slice. Pack numbers are random, so slices are even.
    pub(crate) fn has(self, pack: PackNumber) -> bool {
        pack.0 % self.of == self.index
    }
}

/// Bits of the frames that snapshots refer to.
pub(crate) struct FrameMarks<'a> {
    pack_store: &'a PackStore,
    /// Numbers of all packs, ascending.
    present: &'a [PackNumber],
    slice: PackSlice,
    live: HashMap<PackNumber, Vec<u64>>,
    /// For each pack, the number of its frames that are the only known ones of their ids.
    sole: HashMap<PackNumber, u32>,
    /// Whether the snapshots of one VM are walked, for its own packs.
    is_of_vm: bool,
    /// Whether the snapshots of other VMs are being walked.
    is_of_others: bool,
    /// Packs that are marked if a snapshot refers to one of these ids, wherever the frame is.
    wanted: HashMap<ShortId, PackNumber>,
    frames: FrameReader<'a>,
    /// Chunks whose frames are not marked yet.
    noted: Vec<FrameRef>,
}

impl<'a> FrameMarks<'a> {
    /// Creates an empty mark. `vm`: the only VM whose snapshots will be walked, in a fleet.
    pub(crate) fn new(
        pack_store: &'a PackStore,
        present: &'a [PackNumber],
        slice: PackSlice,
        vm: Option<Uuid>,
    ) -> Result<FrameMarks<'a>> {
        Ok(FrameMarks {
            pack_store,
            present,
            slice,
            live: HashMap::new(),
            is_of_vm: vm.is_some(),
            is_of_others: false,
            wanted: HashMap::new(),
            sole: pack_store.index.sole_frames(vm)?,
            frames: FrameReader::new(pack_store)?,
            noted: Vec::new(),
        })
    }

    /// Number of marked frames of a pack.
    pub(crate) fn live_frames(&self, pack: PackNumber) -> u32 {
        self.live.get(&pack).map_or(0, |bits| bits.iter().map(|word| word.count_ones()).sum())
    }

    /// Whether a frame is marked.
    pub(crate) fn is_live(&self, pack: PackNumber, slot: u32) -> bool {
        let word = self.live.get(&pack).and_then(|bits| bits.get(slot as usize / 64));
        word.is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    fn is_present(&self, pack: PackNumber) -> bool {
        self.present.binary_search(&pack).is_ok()
    }

    /// Whether the frames of the pack are reachable only by their own locations: no other frame of their ids is
    /// known.
    pub(crate) fn is_alone(&self, pack: PackNumber) -> Result<bool> {
        let Some(&sole) = self.sole.get(&pack) else {
            return Ok(false);
        };
        Ok(self.pack_store.index.pack(pack)?.is_some_and(|entry| entry.frames == sole))
    }

    /// Marks the frames of the chunks that were noted, and empties the list of them.
    fn noted_chunks(&mut self) -> Result<()> {
        let mut chunks = std::mem::take(&mut self.noted);
        let mut by_home: BTreeMap<PackHome, Vec<[u8; 16]>> = BTreeMap::new();
        for chunk in &chunks {
            if self.needs_rows(chunk)? {
                by_home.entry(chunk.location.home).or_default().push(chunk.id.short());
            }
        }
        let mut rows = HashMap::new();
        for (home, ids) in by_home {
            let found = self.pack_store.index.rows_of(home, &ids)?;
            rows.extend(ids.into_iter().map(move |id| (home, id)).zip(found));
        }
        for chunk in &chunks {
            let rows = rows.get(&(chunk.location.home, chunk.id.short())).cloned();
            self.chunk(chunk, rows.unwrap_or_default())?;
        }
        chunks.clear();
        self.noted = chunks;
        Ok(())
    }

    /// Whether the index decides about the frame of a chunk.
    fn needs_rows(&self, reference: &FrameRef) -> Result<bool> {
        let pack = reference.location.pack;
        Ok(!(self.is_of_others || self.is_present(pack) && self.is_alone(pack)?))
    }

    /// Notes a chunk, whose frame is then marked with those of many others.
    fn note_chunk(&mut self, reference: &FrameRef) -> Result<()> {
        // A popular frame is not swept for a single VM.
        if self.is_of_vm && !is_private(reference) {
            return Ok(());
        }
        self.noted.push(*reference);
        if self.noted.len() < MOST_NOTED {
            return Ok(());
        }
        self.noted_chunks()
    }

    /// Marks the frame of a chunk that a reader gets. `rows`: those of its id, if `needs_rows`.
    fn chunk(&mut self, reference: &FrameRef, rows: Vec<IndexRow>) -> Result<()> {
        let is_there = self.is_present(reference.location.pack);
        if self.is_of_others {
            // A reader whose frame is damaged looks for another frame of the id.
            if let Some(pack) = self.wanted.get(&reference.id.short()) {
                self.live.entry(*pack).or_insert_with(|| vec![1]);
            }
            return match is_there {
                true => self.mark(reference, reference.location),
                false => Ok(()),
            };
        }
        if !self.needs_rows(reference)? {
            return self.mark(reference, reference.location);
        }
        let mut locations = self.pack_store.others_of(reference.location, rows)?;
        if self.is_of_vm && self.has_moved(reference, &locations, is_there)? {
            return Ok(());
        }
        locations.retain(|location| self.is_present(location.pack));
        if is_there {
            locations.insert(0, reference.location);
        }
        match locations[..] {
            [] => Err(unresolved(reference)),
            [only] => self.mark(reference, only),
            _ => match self.opened(reference) {
                Ok(good) => self.mark(reference, good),
                // No reader gets any of them now. They are kept, since an operator may repair one.
                Err(error) if error.is_corruption() => {
                    locations.iter().try_for_each(|location| self.mark(reference, *location))
                }
                Err(error) => Err(error),
            },
        }
    }

    /// Whether a chunk of the VM moved to a good popular frame. While a frame of the VM's own exists, the
    /// popular one is decrypted, since it is about to be the only one.
    fn has_moved(&mut self, reference: &FrameRef, others: &[FrameLocation], is_there: bool) -> Result<bool> {
        let (popular, own): (Vec<FrameLocation>, Vec<FrameLocation>) =
            others.iter().partition(|location| location.home == PackHome::Shared);
        let has_own = is_there || own.iter().any(|location| self.is_present(location.pack));
        for location in popular {
            let located = match self.pack_store.at(location, &reference.id.short()) {
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

    /// Location of a frame of the chunk that decrypts.
    fn opened(&mut self, reference: &FrameRef) -> Result<FrameLocation> {
        let (pack_store, frames) = (self.pack_store, &mut self.frames);
        pack_store.first_good(reference, |located| match frames.opens_to(located, &reference.id)? {
            true => Ok(located.location),
            false => Err(located.footer.damaged("a frame of it is lost")),
        })
    }

    /// Marks the recipe that was read last, which `reference` names.
    fn recipe(&mut self, tree: &TreeReader<'_>, reference: &FrameRef) -> Result<()> {
        if self.is_of_others {
            return Ok(());
        }
        self.mark(reference, tree.place().unwrap_or(reference.location))
    }

    fn mark(&mut self, reference: &FrameRef, location: FrameLocation) -> Result<()> {
        let FrameLocation { pack, slot, .. } = location;
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

    /// Creates an empty mark of packs that snapshots of any VM may refer to: `present`, and packs that have
    /// an id in `wanted`.
    pub(crate) fn of_others(
        pack_store: &'a PackStore,
        present: &'a [PackNumber],
        wanted: HashMap<ShortId, PackNumber>,
    ) -> Result<FrameMarks<'a>> {
        Ok(FrameMarks {
            pack_store,
            present,
            slice: PackSlice { index: 0, of: 1 },
            live: HashMap::new(),
            is_of_vm: false,
            is_of_others: true,
            wanted,
            sole: HashMap::new(),
            frames: FrameReader::new(pack_store)?,
            noted: Vec::new(),
        })
    }

    /// From here on snapshots of other VMs are walked. Only their references to packs of this mark count.
    pub(crate) fn walk_others(&mut self) {
        self.is_of_others = true;
    }

    /// Marks all references of the snapshots of one VM; `manifests` are all of them, oldest first.
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
        let mut before: HashMap<&str, DiskRoot> = HashMap::new();
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
        self.noted_chunks()
    }

    fn disk(
        &mut self,
        tree: &mut TreeReader<'_>,
        root: &DiskRoot,
        old: Option<&DiskRoot>,
        cancel: &CancelFlag,
    ) -> Result<()> {
        for (index, page) in root.pages.iter().enumerate() {
            let Some(page) = page else { continue };
            let before = old.and_then(|old| old.pages.get(index).copied().flatten());
            let is_named = |before: &FrameRef| broken::by(Flaw::MarkByName) && before.id == page.id;
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
            // Only a shortcut: with an unreadable page nothing is skipped.
            let shared = before.and_then(|before| tree.page(Some(&before), old_size, index).ok());
            let is_new = |(within, segment): &(usize, &FrameRef)| {
                shared.as_ref().and_then(|page| page.segments.get(*within).copied().flatten())
                    != Some(**segment)
            };
            let segments = now.segments.iter().enumerate();
            let segments = segments.filter_map(|(within, segment)| Some((within, segment.as_ref()?)));
            let segments: Vec<(usize, &FrameRef)> = segments.filter(is_new).collect();
            tree.announce(segments.iter().map(|(_, segment)| *segment));
            for (within, segment) in segments {
                let number = index * PAGE_SEGMENTS as u64 + within as u64;
                let recipe = tree.segment(segment, root.size_bytes, number)?;
                self.recipe(tree, segment)?;
                for chunk in recipe.entries.iter().filter_map(|entry| entry.chunk.as_ref()) {
                    self.note_chunk(chunk)?;
                }
            }
        }
        Ok(())
    }
}
