//! Finds the snapshots that are affected by the damage of a check.
//!
//! A check records a damage by its place in a pack: a scan of packs does not know the snapshots, and a walk
//! skips parts that older snapshots share. If there is damage, a second walk visits every snapshot and looks
//! for references to a damaged place.
//!
//! Memory: the listed damages, the packs of damages that are only counted, and one bit per segment of the
//! disks of one VM. A segment whose bit is clear is not read again for the next snapshot that shares it.

use crate::packs::pack::{FrameLocation, PackNumber};
use crate::packs::pack_store::LocatedFrame;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress, Stage};
use crate::request::{CheckReport, SnapshotId, Vm};
use crate::sessions::parts::RepositoryParts;
use crate::snapshot::recipe::{DiskRoot, FrameRef, PAGE_SEGMENTS, RecipePage};
use crate::snapshot::tree::TreeReader;
use std::collections::{HashMap, HashSet};

/// Lost frames, with the numbers of their damages in the report.
#[derive(Debug, Default)]
pub(crate) struct DamagedPlaces {
    frames: HashMap<(PackNumber, u32), Vec<usize>>,
    /// Packs with damages that the report only counts.
    more: HashSet<PackNumber>,
}

impl DamagedPlaces {
    /// Adds a lost frame; `damage` is `None` if the report only counts it.
    pub(crate) fn add(&mut self, pack: PackNumber, slot: u32, damage: Option<usize>) {
        match damage {
            Some(damage) => self.frames.entry((pack, slot)).or_default().push(damage),
            None => drop(self.more.insert(pack)),
        }
    }

    /// The damages at a location; none if the frame is good.
    fn damages(&self, location: FrameLocation) -> impl Iterator<Item = Option<usize>> {
        let frame = self.frames.get(&(location.pack, location.slot)).into_iter().flatten();
        let counted = self.more.contains(&location.pack).then_some(None);
        frame.map(|damage| Some(*damage)).chain(counted)
    }
}

/// Adds the affected snapshots to the damages in `report`.
pub(crate) fn affected_snapshots(
    parts: &RepositoryParts,
    vms: &[Vm],
    places: &DamagedPlaces,
    report: &mut CheckReport,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<()> {
    progress.stage(Stage::Walk, "affected snapshots", 0);
    for vm in vms {
        let state = match parts.vm_state(vm.uuid) {
            Ok(state) => state,
            // The check has reported it; snapshots in the damaged part are unknown.
            Err(error) if error.is_corruption() => continue,
            Err(error) => return Err(error),
        };
        let mut walk =
            AffectedWalk { parts, places, cancel, tree: TreeReader::new(parts.pack_store(), vm.uuid)? };
        let mut before: HashMap<String, WalkedDisk> = HashMap::new();
        for published in &state.published {
            progress.advance(1);
            let manifest = match parts.manifest(vm.uuid, published) {
                Ok(manifest) => manifest,
                Err(error) if error.is_corruption() => continue,
                Err(error) => return Err(error),
            };
            let mut met = SnapshotReport { report: &mut *report, snapshot: published.snapshot };
            for disk in &manifest.disks {
                let mut is_hurt = false;
                walk.look(&disk.root, &mut met, &mut is_hurt)?;
                let root = walk.tree.root(&disk.root, disk.size_bytes);
                let Some(root) = met.value(root, &mut is_hurt)? else {
                    continue;
                };
                let walked = walk.disk(root, before.remove(&disk.name), &mut met)?;
                before.insert(disk.name.clone(), walked);
            }
        }
    }
    Ok(())
}

/// A disk of an older snapshot, and which of its segments are affected.
struct WalkedDisk {
    root: DiskRoot,
    hurt: SegmentBits,
}

/// A bit per segment.
#[derive(Default)]
struct SegmentBits {
    words: Vec<u64>,
}

impl SegmentBits {
    fn has(&self, at: u64) -> bool {
        let word = self.words.get((at / 64) as usize);
        word.is_some_and(|word| word >> (at % 64) & 1 == 1)
    }
    fn set(&mut self, at: u64) {
        let word = (at / 64) as usize;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (at % 64);
    }
}

/// The report, and the snapshot that is being walked.
struct SnapshotReport<'a> {
    report: &'a mut CheckReport,
    snapshot: SnapshotId,
}

impl SnapshotReport<'_> {
    /// The value; damage is noted and sets `is_hurt`.
    fn value<T>(&mut self, read: Result<T>, is_hurt: &mut bool) -> Result<Option<T>> {
        match read {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                *is_hurt = true;
                self.report.met(error, self.snapshot).map(|()| None)
            }
        }
    }
}

/// Walks the disks of one VM, snapshot by snapshot.
struct AffectedWalk<'a> {
    parts: &'a RepositoryParts,
    places: &'a DamagedPlaces,
    cancel: &'a CancelFlag,
    tree: TreeReader<'a>,
}

impl AffectedWalk<'_> {
    /// Resolves a reference; sets `is_hurt` if it leads nowhere, or only to damaged places.
    fn look(
        &self,
        reference: &FrameRef,
        met: &mut SnapshotReport<'_>,
        is_hurt: &mut bool,
    ) -> Result<Option<LocatedFrame>> {
        let mut damages = Vec::new();
        let located = self.parts.pack_store().first_good(reference, |located| {
            let known = damages.len();
            damages.extend(self.places.damages(located.location));
            match damages.len() == known {
                true => Ok(located.clone()),
                false => Err(located.footer.damaged("a frame of it is lost")),
            }
        });
        if located.is_err() && !damages.is_empty() {
            *is_hurt = true;
            damages.into_iter().for_each(|damage| met.report.hurts(damage, met.snapshot));
            return Ok(None);
        }
        met.value(located, is_hurt)
    }

    fn disk(
        &mut self,
        root: DiskRoot,
        old: Option<WalkedDisk>,
        met: &mut SnapshotReport<'_>,
    ) -> Result<WalkedDisk> {
        let mut hurt = SegmentBits::default();
        for (index, page) in root.pages.iter().enumerate() {
            let Some(page) = page else { continue };
            let numbers = |within: usize| (index * PAGE_SEGMENTS + within) as u64;
            let same = |old: &&WalkedDisk| old.root.pages.get(index) == Some(&Some(*page));
            if let Some(old) = old.as_ref().filter(same)
                && !(0..PAGE_SEGMENTS).any(|within| old.hurt.has(numbers(within)))
            {
                continue;
            }
            let mut is_hurt = false;
            self.look(page, met, &mut is_hurt)?;
            let read = self.tree.page(Some(page), root.size_bytes, index as u64);
            let read = met.value(read, &mut is_hurt)?;
            if is_hurt {
                (0..PAGE_SEGMENTS).for_each(|within| hurt.set(numbers(within)));
            }
            let Some(read) = read else { continue };
            let shared = self.old_page(old.as_ref(), index);
            for (within, segment) in read.segments.iter().enumerate() {
                let Some(segment) = segment else { continue };
                let number = numbers(within);
                let is_shared =
                    shared.as_ref().and_then(|page| page.segments.get(within)) == Some(&Some(*segment));
                if is_shared && old.as_ref().is_some_and(|old| !old.hurt.has(number)) {
                    continue;
                }
                if self.segment(segment, root.size_bytes, number, met)? {
                    hurt.set(number);
                }
            }
        }
        Ok(WalkedDisk { root, hurt })
    }

    /// A page of the older snapshot; only a shortcut, so an unreadable page is ignored.
    fn old_page(&mut self, old: Option<&WalkedDisk>, index: usize) -> Option<RecipePage> {
        let root = &old?.root;
        let reference = root.pages.get(index)?.as_ref()?;
        self.tree.page(Some(reference), root.size_bytes, index as u64).ok()
    }

    fn segment(
        &mut self,
        reference: &FrameRef,
        size_bytes: u64,
        number: u64,
        met: &mut SnapshotReport<'_>,
    ) -> Result<bool> {
        if self.cancel.is_cancelled() {
            return Err(Error::Cancelled { kept_bytes: None });
        }
        let mut is_hurt = false;
        self.look(reference, met, &mut is_hurt)?;
        let recipe = self.tree.segment(reference, size_bytes, number);
        let recipe = met.value(recipe, &mut is_hurt)?;
        for entry in recipe.iter().flat_map(|recipe| &recipe.entries) {
            let Some(chunk) = &entry.chunk else { continue };
            let located = self.look(chunk, met, &mut is_hurt)?;
            if let Some(located) = located.filter(|located| located.row().raw != entry.length) {
                met.value::<()>(Err(located.wrong_length()), &mut is_hurt)?;
            }
        }
        Ok(is_hurt)
    }
}
