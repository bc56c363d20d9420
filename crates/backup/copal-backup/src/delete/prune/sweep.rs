//! The sweep: removes packs without a live frame and rewrites those with the largest dead share.
//!
//! Not here: copies of live frames (`rewrite`), live frames (`mark`), removal lists (`removal_lists`).

use super::removal_lists::RemovalLists;
use crate::catalog::record::PackPlace;
use crate::delete::mark::{FrameMarks, PackSlice};
use crate::index::PackRows;
use crate::index::dead_frames::DeadFrames;
use crate::index::reindex::{PackScope, StoredPack, for_each_pack};
use crate::packs::pack::reader::{self, PackFooter};
use crate::packs::pack::{FrameLocation, PackNumber, format};
use crate::packs::pack_store::FOOTERS_AHEAD;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress, Stage};
use crate::request::{PruneOptions, PruneSummary};
use crate::sessions::parts::RepositoryParts;
use crate::steps::frames::{PackFate, fate, is_in_use};
use copal_volume::{VolumeError, VolumeId};
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Sweep of one slice of packs.
pub(super) struct PackSweep<'s, 'a> {
    pub(super) parts: &'a RepositoryParts,
    pub(super) whose: PackScope,
    pub(super) options: &'a PruneOptions,
    pub(super) progress: &'a dyn Progress,
    pub(super) cancel: &'a CancelFlag,
    pub(super) summary: &'s mut PruneSummary,
    /// Filled with the dead frames of packs that stay as they are, in a fleet.
    pub(super) left: Option<&'s mut DeadFrames>,
    /// Packs are listed here before they are removed.
    pub(super) announced: &'s mut RemovalLists<'a>,
}

/// Source of liveness of frames.
pub(super) enum LiveFrames<'m, 'a> {
    /// The frames that a walk of all snapshots has marked.
    Marked(&'m FrameMarks<'a>),
    /// All frames that are not in the list of dead ones.
    NotDead(&'m DeadFrames),
}

impl LiveFrames<'_, '_> {
    pub(super) fn has(&self, pack: PackNumber, slot: u32) -> bool {
        match self {
            LiveFrames::Marked(marks) => marks.is_live(pack, slot),
            LiveFrames::NotDead(dead) => is_in_use(dead, pack, slot),
        }
    }

    /// Live frames and all frames of a pack. Without a readable footer no frame counts as dead.
    fn count(&self, pack: PackNumber, frames: Option<u32>) -> (u32, u32) {
        match (self, frames) {
            (LiveFrames::Marked(marks), frames) => {
                let live = marks.live_frames(pack);
                (live, frames.unwrap_or(live))
            }
            (LiveFrames::NotDead(dead), Some(frames)) => (frames.saturating_sub(dead.count(pack)), frames),
            (LiveFrames::NotDead(_), None) => (1, 1),
        }
    }
}

impl LiveFrames<'_, '_> {
    /// Whether no other frame of the ids of a pack is known. `false` if the index was not walked for that.
    pub(super) fn is_alone(&self, pack: PackNumber) -> Result<bool> {
        match self {
            LiveFrames::Marked(marks) => marks.is_alone(pack),
            LiveFrames::NotDead(_) => Ok(false),
        }
    }
}

/// A pack with live and dead frames.
pub(super) struct MixedPack {
    pub(super) pack: StoredPack,
    pub(super) dead_bytes: u64,
}

impl MixedPack {
    /// Orders by dead share: the first frees most for each byte that is written again.
    fn worst_first(a: &MixedPack, b: &MixedPack) -> Ordering {
        let weighed = |one: &MixedPack, other: &MixedPack| {
            u128::from(one.dead_bytes) * u128::from(other.pack.info.size)
        };
        weighed(b, a).cmp(&weighed(a, b))
    }
}

impl PackSweep<'_, '_> {
    /// Removes the packs of a slice without a live frame. Returns those with the largest dead share, which are to be
    /// rewritten.
    pub(super) fn slice(&mut self, live: &LiveFrames<'_, '_>, slice: PackSlice) -> Result<Vec<MixedPack>> {
        let pack_store = self.parts.pack_store();
        let mut dead = Vec::new();
        let mut mixed = Vec::new();
        let mut slice_bytes = 0;
        for_each_pack(pack_store, self.whose, |pack| {
            if !slice.has(pack.number) {
                return Ok(());
            }
            slice_bytes += pack.info.size;
            let entry = pack_store.index.pack(pack.number)?;
            let (live, frames) = live.count(pack.number, entry.map(|entry| entry.frames));
            self.summary.live_frames += u64::from(live);
            self.summary.dead_frames += u64::from(frames.saturating_sub(live));
            match fate(live, frames) {
                PackFate::Unlink => dead.push(pack),
                PackFate::Mixed => mixed.push(pack),
                PackFate::Stays => {}
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
                // Nothing was rewritten since the walk, so a row that was the only one of its id still is.
                let rows = if live.is_alone(pack.number)? { PackRows::Sole } else { PackRows::BesideOthers };
                self.unlink(&pack, rows)?;
                emptied.insert(pack.vid);
            }
        }
        self.reclaim(emptied)?;
        self.choose(live, mixed, left_bytes)
    }

    /// Chooses the packs to be rewritten, by dead share, until the rest may stay unused. `left_bytes`: the
    /// bytes of all packs with a live frame.
    fn choose(
        &mut self,
        live: &LiveFrames<'_, '_>,
        packs: Vec<StoredPack>,
        left_bytes: u64,
    ) -> Result<Vec<MixedPack>> {
        let mut mixed = Vec::with_capacity(packs.len());
        let places: Vec<_> = packs.iter().map(|pack| (pack.home, pack.volume, pack.number)).collect();
        for (at, pack) in packs.into_iter().enumerate() {
            if at.is_multiple_of(FOOTERS_AHEAD) {
                self.parts.pack_store().load_footers(places[at..].iter().copied())?;
            }
            match self.footer(&pack) {
                Ok(_) if self.has_lost(live, pack.number)? => {
                    let what = reader::damaged(pack.number, "a live frame is damaged");
                    self.progress.notice(&format!("not rewritten: {what}"));
                }
                Ok(footer) => {
                    let dead = footer.rows.iter().zip(0..).filter(|(_, slot)| !live.has(pack.number, *slot));
                    let dead_bytes =
                        dead.map(|(row, _)| u64::from(row.stored) + format::ROW_BYTES as u64).sum();
                    mixed.push(MixedPack { pack, dead_bytes });
                }
                Err(error) if error.is_corruption() => {
                    self.progress.notice(&format!("not rewritten: {error}"))
                }
                Err(error) => return Err(error),
            }
        }
        mixed.sort_by(MixedPack::worst_first);
        let percent = u64::from(self.options.max_unused_percent.min(100));
        let (mut unused, mut left) = (mixed.iter().map(|mixed| mixed.dead_bytes).sum::<u64>(), left_bytes);
        let mut chosen = 0;
        // In a fleet, dead frames count as free at once: a pack that is mostly dead is rewritten even if more
        // may stay unused.
        let is_fleet = self.whose != PackScope::All;
        let is_mostly_dead = |mixed: &MixedPack| is_fleet && mixed.dead_bytes > mixed.pack.info.size / 2;
        while chosen < mixed.len() && (unused > left / 100 * percent || is_mostly_dead(&mixed[chosen])) {
            unused -= mixed[chosen].dead_bytes;
            left -= mixed[chosen].dead_bytes.min(left);
            chosen += 1;
        }
        self.summary.unused_bytes += unused;
        for stays in mixed.drain(chosen..) {
            if self.left.is_some() {
                self.note_left(live, &stays.pack)?;
            }
        }
        Ok(mixed)
    }

    /// Notes the dead frames of a pack that stays as it is.
    fn note_left(&mut self, live: &LiveFrames<'_, '_>, pack: &StoredPack) -> Result<()> {
        let frames = self.footer(pack)?.rows.len() as u32;
        for slot in (0..frames).filter(|slot| !live.has(pack.number, *slot)) {
            let location = FrameLocation { home: pack.home, volume: pack.volume, pack: pack.number, slot };
            if let Some(left) = &mut self.left {
                left.add(location, frames);
            }
        }
        Ok(())
    }

    /// Whether a live frame of the pack is noted as damaged.
    fn has_lost(&self, live: &LiveFrames<'_, '_>, pack: PackNumber) -> Result<bool> {
        let lost = self.parts.pack_store().index.damaged_slots(pack)?;
        Ok(lost.into_iter().any(|slot| live.has(pack, slot)))
    }

    /// Waits until the space of unlinked packs is free. If the store is too full to reclaim, the prune goes
    /// on.
    fn reclaim(&self, volumes: BTreeSet<VolumeId>) -> Result<()> {
        for vid in volumes {
            match self.parts.pack_store().volumes.store.reclaim(vid) {
                Ok(()) | Err(VolumeError::NoSpace) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Unlinks packs whose live frames are in durable packs that the index knows, and frees their space.
    pub(super) fn unlink_all(&mut self, packs: &mut Vec<&StoredPack>) -> Result<()> {
        let mut emptied = BTreeSet::new();
        self.announce(packs.iter().copied())?;
        for pack in packs.drain(..) {
            self.summary.after_bytes -= pack.info.size;
            self.unlink(pack, PackRows::BesideOthers)?;
            emptied.insert(pack.vid);
        }
        self.reclaim(emptied)
    }

    /// Lists the packs that are removed next.
    fn announce<'p>(&mut self, packs: impl Iterator<Item = &'p StoredPack>) -> Result<()> {
        if self.options.dry_run {
            return Ok(());
        }
        let places: Vec<PackPlace> = packs.map(StoredPack::place).collect();
        self.announced.add(&places)
    }

    fn unlink(&self, pack: &StoredPack, rows: PackRows) -> Result<()> {
        let pack_store = self.parts.pack_store();
        let ids: Vec<[u8; 16]> = match self.footer(pack) {
            Ok(footer) => footer.rows.iter().map(|row| row.id).collect(),
            Err(error) if error.is_corruption() => Vec::new(),
            Err(error) => return Err(error),
        };
        pack_store.index.remove_pack(pack.home, pack.number, &ids, rows)?;
        pack_store.volumes.store.delete(pack.vid, pack.number.file_name().as_bytes(), pack.info.fid)?;
        Ok(())
    }

    fn footer(&self, pack: &StoredPack) -> Result<Arc<PackFooter>> {
        match self.parts.pack_store().footer(pack.home, pack.volume, pack.number)? {
            Some((footer, _)) => Ok(footer),
            None => {
                Err(Error::Damaged { what: format!("pack {}", pack.number), detail: "it is missing".into() })
            }
        }
    }

    pub(super) fn check_cancel(&self) -> Result<()> {
        if self.cancel.is_cancelled() { Err(Error::Cancelled { kept_bytes: None }) } else { Ok(()) }
    }
}
