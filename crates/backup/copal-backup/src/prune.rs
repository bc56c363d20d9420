//! Prune: returns the space of everything that no published snapshot names. Exact.
//!
//! Decision: docs/decisions/2026-11-21-exact-index-and-mark.md
//!
//! Runs alone in its process (under the lock of packs), and fences every open session first, so nothing can come to need
//! what it removes. Steps, each safe to die in:
//! 1. fence; bring the index up to date; list the packs; mark (`mark`), slice by slice;
//! 2. unlink packs without a live frame: index rows first, then the file; in a cluster a list of them before (BAK-15);
//! 3. rewrite packs with dead frames, as long as more than the allowed share is unused: live frames go to new packs, which
//!    are durable and in the index before the old ones are unlinked. The worst packs come first, as they free most for
//!    what they cost, and few at a time: their space returns before the next are written, so a prune needs little;
//! 4. delete manifests that are not published; remove empty volumes.
//!
//! A pack that cannot be read, or of which a live frame is lost, is never rewritten, only unlinked when nothing of it is
//! live.

use crate::broken::{self, Flaw};
use crate::catalog::log::{Append, LogName};
use crate::catalog::record::{MAX_LISTED, PackPlace, Record};
use crate::catalog::removals::Removal;
use crate::catalog::vm::Published;
use crate::error::{Error, Result};
use crate::keys::random;
use crate::manifest::{self, Manifest};
use crate::mark::{Marks, Slice};
use crate::pack::reader::{self, Footer};
use crate::pack::writer::Frame;
use crate::pack::{PackNumber, Spot, format};
use crate::pack_appender::PackAppender;
use crate::pack_store::{FrameReader, Located, PackStore};
use crate::parts::Parts;
use crate::progress::{CancelFlag, Progress, Stage};
use crate::reindex::{StoredPack, for_each_pack};
use crate::request::{PruneOptions, PruneSummary};
use crate::volumes::{Home, for_each_file};
use copal_kv::Durability;
use copal_volume::{VolumeError, VolumeId};
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;
use uuid::Uuid;

/// Runs a prune. The caller holds the lock of packs alone.
pub(crate) fn run(
    parts: &Parts,
    options: &PruneOptions,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<PruneSummary> {
    let mut summary = PruneSummary::default();
    let vms = parts.directory().all()?;
    if !options.dry_run {
        for vm in &vms {
            summary.swept_sessions += fence_all(parts, vm.uuid)?;
        }
    }
    parts.index_all_packs()?;
    let change = match options.dry_run {
        true => None,
        false => match parts.begin_change() {
            // A store that is too full is what prune is for. Its own index follows each step.
            Err(Error::NoSpace) if !parts.pack_store().volumes.store.is_replicated() => None,
            change => Some(change?),
        },
    };
    let pack_store = parts.pack_store();
    let mut present = list_packs(pack_store, Some(&mut summary.before_bytes))?;
    let mut removals = Vec::new();
    summary.after_bytes = summary.before_bytes;
    summary.mark_passes = Slice::count(present.len() as u64, options.memory_bytes);
    for index in 0..summary.mark_passes {
        let slice = Slice {
            index,
            of: summary.mark_passes,
        };
        progress.stage(Stage::Walk, "", 0);
        if index > 0 {
            // The slice before has removed and made packs.
            pack_store.forget_cached();
            present = list_packs(pack_store, None)?;
        }
        let mut marks = Marks::new(pack_store, &present, slice)?;
        for vm in &vms {
            marks.vm(&manifests(parts, vm.uuid, options)?, progress, cancel)?;
        }
        let mut sweep = Sweep {
            parts,
            options,
            progress,
            cancel,
            summary: &mut summary,
            removals: &mut removals,
        };
        sweep.slice(&marks, slice)?;
    }
    if !options.dry_run {
        for vm in &vms {
            drop_manifests(parts, vm.uuid)?;
        }
        remove_empty_volumes(parts)?;
        parts.catalog().end_removals(&removals)?;
    }
    pack_store.forget_cached();
    if let Some(change) = change {
        change.entered();
    }
    Ok(summary)
}

/// Numbers of all packs, ascending; adds up their bytes.
fn list_packs(pack_store: &PackStore, mut bytes: Option<&mut u64>) -> Result<Vec<PackNumber>> {
    let mut present = Vec::new();
    for_each_pack(pack_store, |pack| {
        present.push(pack.number);
        if let Some(bytes) = &mut bytes {
            **bytes += pack.info.size;
        }
        Ok(())
    })?;
    present.sort_unstable();
    Ok(present)
}

/// Ends every open session of a VM; how many there were.
fn fence_all(parts: &Parts, vm: Uuid) -> Result<u64> {
    let mut fenced = 0;
    loop {
        let state = parts.vm_state(vm)?;
        let Some(&session) = state.open.first() else {
            return Ok(fenced);
        };
        let record = Record::Fence { session };
        if let Append::Done = parts
            .catalog()
            .append(LogName::Vm(vm), state.next_number, &record)?
        {
            fenced += 1;
        }
    }
}

/// Manifests of all published snapshots of a VM, oldest first, but for those that a dry run is to do without.
fn manifests(parts: &Parts, vm: Uuid, options: &PruneOptions) -> Result<Vec<Manifest>> {
    let state = parts.vm_state(vm)?;
    let stays = |published: &&Published| !options.dry_run || !options.without.contains(&published.snapshot);
    let manifest = |published: &Published| {
        let read = parts.manifest(vm, published);
        read.map_err(|error| forget_first(error, published))
    };
    state.published.iter().filter(stays).map(manifest).collect()
}

/// What a damaged snapshot needs is not known, so nothing may go as long as it is there.
fn forget_first(error: Error, published: &Published) -> Error {
    match error {
        Error::Damaged { what, detail } => Error::Damaged {
            what,
            detail: format!(
                "{detail}; nothing was removed, `copal forget {}` lets prune go on",
                published.snapshot.short()
            ),
        },
        error => error,
    }
}

/// One slice of packs being swept.
struct Sweep<'a> {
    parts: &'a Parts,
    options: &'a PruneOptions,
    progress: &'a dyn Progress,
    cancel: &'a CancelFlag,
    summary: &'a mut PruneSummary,
    /// Lists of what is removed, until all of it is.
    removals: &'a mut Vec<Removal>,
}

/// A pack with live and dead frames.
struct Mixed {
    pack: StoredPack,
    dead_bytes: u64,
}

impl Mixed {
    /// By the dead share of the pack: most is freed for each byte that has to be written again.
    fn worst_first(a: &Mixed, b: &Mixed) -> Ordering {
        let weighed =
            |one: &Mixed, other: &Mixed| u128::from(one.dead_bytes) * u128::from(other.pack.info.size);
        weighed(b, a).cmp(&weighed(a, b))
    }
}

impl Sweep<'_> {
    fn slice(&mut self, marks: &Marks<'_>, slice: Slice) -> Result<()> {
        let pack_store = self.parts.pack_store();
        let mut dead = Vec::new();
        let mut mixed = Vec::new();
        let mut slice_bytes = 0;
        for_each_pack(pack_store, |pack| {
            if !slice.has(pack.number) {
                return Ok(());
            }
            let live = marks.live_frames(pack.number);
            slice_bytes += pack.info.size;
            let frames = match pack_store.index.pack(pack.number)? {
                Some(entry) => entry.frames,
                // The footer cannot be read: nothing of it can be moved.
                None => live,
            };
            self.summary.live_frames += u64::from(live);
            self.summary.dead_frames += u64::from(frames.saturating_sub(live));
            if live == 0 {
                dead.push(pack);
            } else if live < frames {
                mixed.push(pack);
            }
            Ok(())
        })?;
        self.progress.stage(Stage::Sweep, "", slice_bytes);
        let mut left_bytes = slice_bytes;
        let mut emptied = BTreeSet::new();
        self.announce(dead.iter())?;
        for pack in dead {
            self.check_cancel()?;
            self.progress.advance(pack.info.size);
            self.summary.removed_packs += 1;
            self.summary.after_bytes -= pack.info.size;
            left_bytes -= pack.info.size;
            if !self.options.dry_run {
                self.unlink(&pack)?;
                emptied.insert(pack.vid);
            }
        }
        self.reclaim(emptied)?;
        let rewritten = self.choose(marks, mixed, left_bytes)?;
        for home in homes_of(&rewritten) {
            let packs = rewritten.iter().filter(|mixed| mixed.pack.home == home);
            self.rewrite(marks, home, packs)?;
        }
        Ok(())
    }

    /// Which packs are rewritten: the worst first, until the rest may stay unused. `left_bytes`: those of all packs that
    /// have a live frame.
    fn choose(&mut self, marks: &Marks<'_>, packs: Vec<StoredPack>, left_bytes: u64) -> Result<Vec<Mixed>> {
        let mut mixed = Vec::with_capacity(packs.len());
        for pack in packs {
            match self.footer(&pack) {
                Ok(_) if self.has_lost(marks, pack.number)? => {
                    let what = reader::damaged(pack.number, "a frame that is needed is lost");
                    self.progress.notice(&format!("not rewritten: {what}"));
                }
                Ok(footer) => {
                    let dead = footer
                        .rows
                        .iter()
                        .zip(0..)
                        .filter(|(_, slot)| !marks.is_live(pack.number, *slot));
                    let dead_bytes = dead
                        .map(|(row, _)| u64::from(row.stored) + format::ROW_BYTES as u64)
                        .sum();
                    mixed.push(Mixed { pack, dead_bytes });
                }
                Err(error) if error.is_corruption() => {
                    self.progress.notice(&format!("not rewritten: {error}"))
                }
                Err(error) => return Err(error),
            }
        }
        mixed.sort_by(Mixed::worst_first);
        let percent = u64::from(self.options.max_unused_percent.min(100));
        let (mut unused, mut left) = (
            mixed.iter().map(|mixed| mixed.dead_bytes).sum::<u64>(),
            left_bytes,
        );
        let mut chosen = 0;
        while chosen < mixed.len() && unused > left / 100 * percent {
            unused -= mixed[chosen].dead_bytes;
            left -= mixed[chosen].dead_bytes.min(left);
            chosen += 1;
        }
        self.summary.unused_bytes += unused;
        mixed.truncate(chosen);
        Ok(mixed)
    }

    /// Whether a live frame of the pack is known to be damaged.
    fn has_lost(&self, marks: &Marks<'_>, pack: PackNumber) -> Result<bool> {
        let lost = self.parts.pack_store().index.damaged_slots(pack)?;
        Ok(lost.into_iter().any(|slot| marks.is_live(pack, slot)))
    }

    /// Moves the live frames of packs of one home to new packs, then unlinks the old ones.
    fn rewrite<'m>(
        &mut self,
        marks: &Marks<'_>,
        home: Home,
        packs: impl Iterator<Item = &'m Mixed>,
    ) -> Result<()> {
        let pack_store = self.parts.pack_store();
        let mut appender = PackAppender::new(pack_store, home, random()?, Durability::Device);
        let mut moved: Vec<&StoredPack> = Vec::new();
        for Mixed { pack, dead_bytes } in packs {
            self.check_cancel()?;
            self.summary.rewritten_packs += 1;
            self.progress.advance(pack.info.size);
            if self.options.dry_run {
                let freed = (*dead_bytes).min(self.summary.after_bytes);
                self.summary.after_bytes -= freed;
                self.summary.written_bytes += pack.info.size.saturating_sub(*dead_bytes);
                continue;
            }
            if let Err(error) = copy_live(self.parts, &mut appender, marks, pack) {
                if !error.is_corruption() {
                    return Err(error);
                }
                // What was copied of it so far are second copies; the pack itself stays.
                self.progress.notice(&format!("not rewritten: {error}"));
                if !broken::by(Flaw::UnlinksUncopied) {
                    continue;
                }
            }
            moved.push(pack);
            if appender.open_bytes() + (format::TARGET_BYTES / 4) > format::TARGET_BYTES {
                appender.finish()?;
                self.unlink_all(&mut moved)?;
            }
        }
        appender.finish()?;
        self.unlink_all(&mut moved)?;
        self.summary.after_bytes += appender.stored_bytes;
        self.summary.written_bytes += appender.stored_bytes;
        Ok(())
    }

    /// Waits until the space of what was unlinked is there again. A store that is too full to be tidied goes on.
    fn reclaim(&self, volumes: BTreeSet<VolumeId>) -> Result<()> {
        for vid in volumes {
            match self.parts.pack_store().volumes.store.reclaim(vid) {
                Ok(()) | Err(VolumeError::NoSpace) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Unlinks packs whose live frames stand in durable packs that the index knows, and returns their space.
    fn unlink_all(&mut self, packs: &mut Vec<&StoredPack>) -> Result<()> {
        let mut emptied = BTreeSet::new();
        self.announce(packs.iter().copied())?;
        for pack in packs.drain(..) {
            self.summary.after_bytes -= pack.info.size;
            self.unlink(pack)?;
            emptied.insert(pack.vid);
        }
        self.reclaim(emptied)
    }

    /// Lists packs that are removed next, where a removal may come about late.
    fn announce<'p>(&mut self, packs: impl Iterator<Item = &'p StoredPack>) -> Result<()> {
        if self.options.dry_run
            || !self.parts.pack_store().volumes.store.is_replicated()
            || broken::by(Flaw::RemovesUnlisted)
        {
            return Ok(());
        }
        let places: Vec<PackPlace> = packs
            .map(|pack| PackPlace {
                home: pack.home,
                volume: pack.volume,
                pack: pack.number,
            })
            .collect();
        for listed in places.chunks(MAX_LISTED) {
            let (epoch, number) = (self.parts.changing_epoch(), self.removals.len() as u32);
            let removal = self.parts.catalog().begin_removal(epoch, number, listed)?;
            self.removals.push(removal);
        }
        Ok(())
    }

    fn unlink(&self, pack: &StoredPack) -> Result<()> {
        let pack_store = self.parts.pack_store();
        match self.footer(pack) {
            Ok(footer) => pack_store
                .index
                .remove_pack(pack.number, footer.rows.iter().map(|row| row.id))?,
            Err(error) if error.is_corruption() => {
                pack_store.index.remove_pack(pack.number, std::iter::empty())?
            }
            Err(error) => return Err(error),
        }
        pack_store
            .volumes
            .store
            .delete(pack.vid, pack.number.file_name().as_bytes(), pack.info.fid)?;
        Ok(())
    }

    fn footer(&self, pack: &StoredPack) -> Result<Arc<Footer>> {
        match self
            .parts
            .pack_store()
            .footer(pack.home, pack.volume, pack.number)?
        {
            Some((footer, _)) => Ok(footer),
            None => Err(Error::Damaged {
                what: format!("pack {}", pack.number),
                detail: "it is gone".into(),
            }),
        }
    }

    fn check_cancel(&self) -> Result<()> {
        if self.cancel.is_cancelled() {
            Err(Error::Cancelled { kept_bytes: None })
        } else {
            Ok(())
        }
    }
}

fn homes_of(packs: &[Mixed]) -> Vec<Home> {
    let mut homes: Vec<Home> = Vec::new();
    for mixed in packs {
        if !homes.contains(&mixed.pack.home) {
            homes.push(mixed.pack.home);
        }
    }
    homes
}

fn copy_live(
    parts: &Parts,
    appender: &mut PackAppender<'_>,
    marks: &Marks<'_>,
    pack: &StoredPack,
) -> Result<()> {
    let pack_store = parts.pack_store();
    let Some((footer, vid)) = pack_store.footer(pack.home, pack.volume, pack.number)? else {
        return Ok(());
    };
    let mut frames = FrameReader::new(pack_store)?;
    for slot in (0..footer.rows.len() as u32).filter(|&slot| marks.is_live(pack.number, slot)) {
        let spot = Spot {
            volume: pack.volume,
            pack: pack.number,
            slot,
        };
        let located = Located {
            footer: Arc::clone(&footer),
            vid,
            spot,
        };
        let row = *located.row();
        let payload = frames.payload(&located)?;
        appender.append(&Frame {
            id: row.id,
            raw_bytes: row.raw,
            flags: row.flags,
            payload,
        })?;
    }
    Ok(())
}

/// Deletes the manifests of a VM that no Publish record makes visible, then says so in the log.
fn drop_manifests(parts: &Parts, vm: Uuid) -> Result<()> {
    let volumes = &parts.pack_store().volumes;
    let Some(vid) = volumes.meta(vm, false)? else {
        return Ok(());
    };
    let state = parts.vm_state(vm)?;
    let mut stale = Vec::new();
    for_each_file(&*volumes.store, vid, b"m.", |name, info| {
        let published = state
            .published
            .iter()
            .any(|published| manifest::file_name(published.snapshot).as_bytes() == name);
        if !published {
            stale.push((name.to_vec(), info.fid));
        }
        Ok(())
    })?;
    for (name, fid) in stale {
        volumes.store.delete(vid, &name, fid)?;
    }
    for listed in state.forgotten.chunks(MAX_LISTED) {
        let record = Record::Deleted {
            snapshots: listed.to_vec(),
        };
        let next = parts.vm_state(vm)?.next_number;
        // Lost to another record: the next prune says it again.
        parts.catalog().append(LogName::Vm(vm), next, &record)?;
    }
    volumes.store.reclaim(vid)?;
    Ok(())
}

fn remove_empty_volumes(parts: &Parts) -> Result<()> {
    let volumes = &parts.pack_store().volumes;
    let mut homes = volumes.recipe_homes()?;
    homes.push(Home::Chunks);
    for home in homes {
        for (number, vid) in volumes.numbers(home)? {
            if volumes.store.list(vid, b"", None, 1)?.is_empty() {
                // Removing alone frees behind our back, and the store may be closed before that is done. A store that
                // is too full to be tidied first is tidied by the removal.
                match volumes.store.reclaim(vid) {
                    Ok(()) | Err(VolumeError::NoSpace) => {}
                    Err(error) => return Err(error.into()),
                }
                volumes.remove_empty(home, number, vid)?;
            } else {
                volumes.store.reclaim(vid)?;
            }
        }
    }
    Ok(())
}
