//! The pack store: finds and decrypts frames by id and location.
//!
//! Invariants
//! - A reader tries the location of a reference first. It asks the index if that pack is missing or damaged,
//!   holds another frame there, or the frame does not decrypt. All readers go through
//!   [`PackStore::first_good`], and the mark (`mark`) asks it which frame that is. So the mark keeps the
//!   frame that readers get (BAK-6).
//! - In a fleet, another host may rewrite a pack or move a frame while a recipe is read. A reader that finds
//!   nothing brings the index of the VM up to date and looks once more.
//! - An error that is not damage ends the search: a frame that is temporarily unreachable is never passed
//!   over for another copy.
//! - Memory: footers up to a fixed budget.
//!
//! Not here: the bytes of frames (`frame_ranges`, `frame_reader`).

use crate::index::{ChunkIndex, IndexRow};
use crate::keys::DomainKeys;
use crate::packs::home::PackHome;
use crate::packs::pack::format::FrameRow;
use crate::packs::pack::reader::{self, PackFooter};
use crate::packs::pack::{FrameLocation, PackNumber};
use crate::packs::volumes::RepositoryVolumes;
use crate::request::error::{Error, Result};
use crate::request::{Layout, LostFrame};
use crate::rules::broken::{self, Flaw};
use crate::snapshot::recipe::FrameRef;
use bytes::Bytes;
use copal_volume::{ReadOptions, VolumeError, VolumeId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use uuid::Uuid;

/// Memory of cached footers, in bytes.
const FOOTER_BUDGET_BYTES: usize = 6 << 20;
/// Most footers that are loaded together: most windows have fewer packs, and the cache has room for them.
pub(crate) const FOOTERS_AHEAD: usize = 64;
/// Number of missing packs that are remembered.
const MISSING_PACKS: usize = 4096;
/// Number of damaged frames remembered while the index is open for reading only. A later read finds the
/// others again.
const MAX_UNNOTED: usize = 4096;

/// A frame that exists: its pack and location.
#[derive(Clone)]
pub(crate) struct LocatedFrame {
    pub(crate) footer: Arc<PackFooter>,
    pub(crate) vid: VolumeId,
    pub(crate) location: FrameLocation,
}

impl LocatedFrame {
    pub(crate) fn row(&self) -> &FrameRow {
        // `PackStore::at` has checked that this row exists.
        &self.footer.rows[self.location.slot as usize]
    }

    /// The damage of a frame whose length is not the one in its recipe.
    pub(crate) fn wrong_length(&self) -> Error {
        let detail = format!("frame {} does not have the length in its recipe", self.location.slot);
        self.footer.damaged(detail)
    }
}

/// Brings the index of a VM of a fleet up to date with changes by other hosts.
pub(crate) trait IndexUpdates: Send + Sync {
    /// Brings the index of the VM up to the end of the VM's log.
    /// # Errors
    /// `Damaged`; errors of the store and the index.
    fn catch_up(&self, pack_store: &PackStore, vm: Uuid) -> Result<()>;

    /// Whether the index of the VM was brought up to date before.
    fn is_known(&self, vm: Uuid) -> bool;
}

/// Everything that reading a repository needs; shared between threads.
pub(crate) struct PackStore {
    pub(crate) layout: Layout,
    pub(crate) volumes: RepositoryVolumes,
    pub(crate) index: ChunkIndex,
    pub(crate) keys: Arc<DomainKeys>,
    footers: Mutex<FooterCache>,
    /// Damaged frames that could not be noted, because the index is open for reading only.
    unnoted: Mutex<Vec<LostFrame>>,
    read_bytes: AtomicU64,
    /// Number of threads that a person asked for.
    asked_workers: Option<usize>,
    /// Reports changes by other hosts; not set in the layout solo.
    index_updates: OnceLock<Arc<dyn IndexUpdates>>,
}

#[derive(Default)]
struct FooterCache {
    known: HashMap<PackNumber, (u64, Arc<PackFooter>)>,
    missing: HashSet<PackNumber>,
    bytes: usize,
    clock: u64,
}

impl PackStore {
    pub(crate) fn new(
        layout: Layout,
        volumes: RepositoryVolumes,
        index: ChunkIndex,
        keys: Arc<DomainKeys>,
    ) -> PackStore {
        PackStore {
            layout,
            volumes,
            index,
            keys,
            footers: Mutex::default(),
            unnoted: Mutex::default(),
            read_bytes: AtomicU64::new(0),
            asked_workers: None,
            index_updates: OnceLock::new(),
        }
    }

    /// Number of threads that one operation computes with, at least one; by default that of the processors.
    pub(crate) fn workers(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        self.asked_workers.unwrap_or_else(processors)
    }

    /// The number that was set.
    pub(crate) fn asked_workers(&self) -> Option<usize> {
        self.asked_workers
    }

    /// Sets the number of threads that one operation computes with.
    pub(crate) fn set_workers(&mut self, workers: usize) {
        self.asked_workers = Some(workers.max(1));
    }

    /// Sets the source of changes by other hosts. Later calls have no effect.
    pub(crate) fn set_index_updates(&self, index_updates: Arc<dyn IndexUpdates>) {
        self.index_updates.get_or_init(|| index_updates);
    }

    /// Bytes read from packs, vectors and lists so far.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn note_read(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The home of chunks of a VM that are not popular.
    pub(crate) fn home_of_chunks(&self, vm: Uuid) -> PackHome {
        match self.layout {
            Layout::Solo => PackHome::Shared,
            Layout::Fleet { .. } => PackHome::Private(vm),
        }
    }

    /// Removes a damaged frame from the index. If the index cannot be written, the frame is remembered. A
    /// frame of a missing pack is not damaged.
    pub(crate) fn note_damaged(&self, footer: &PackFooter, slot: u32) {
        if self.footers.lock().missing.contains(&footer.number) {
            return;
        }
        let Some(row) = footer.rows.get(slot as usize) else {
            return;
        };
        let lost = LostFrame { home: footer.home, pack: footer.number.0, slot, id: row.id };
        tracing::debug!(pack = %footer.number, slot, "a frame is damaged");
        self.note_lost(&lost);
    }

    /// As [`PackStore::note_damaged`], for a frame that was located earlier.
    pub(crate) fn note_lost(&self, lost: &LostFrame) {
        match self.index.note_damaged(lost.home, PackNumber(lost.pack), lost.slot, &lost.id) {
            Ok(()) => {}
            Err(Error::Index(copal_kv::Error::ReadOnly)) => {
                let mut unnoted = self.unnoted.lock();
                if unnoted.len() < MAX_UNNOTED && !unnoted.contains(lost) {
                    unnoted.push(*lost);
                }
            }
            Err(error) => tracing::warn!(%error, "a damaged frame could not be removed from the index"),
        }
    }

    /// Damaged frames that could not be noted in the index.
    pub(crate) fn unnoted(&self) -> Vec<LostFrame> {
        self.unnoted.lock().clone()
    }

    /// Drops all caches after packs were added or removed.
    pub(crate) fn forget_cached(&self) {
        *self.footers.lock() = FooterCache::default();
        self.volumes.forget_cached();
        self.index.forget_cached();
    }

    /// The footer of a pack; `None` if the pack does not exist.
    /// # Errors
    /// `Damaged`, and errors of the store.
    pub(crate) fn footer(
        &self,
        home: PackHome,
        volume: u32,
        pack: PackNumber,
    ) -> Result<Option<(Arc<PackFooter>, VolumeId)>> {
        let Some(vid) = self.volumes.find(home, volume)? else {
            return Ok(None);
        };
        {
            let mut cache = self.footers.lock();
            cache.clock += 1;
            let clock = cache.clock;
            if let Some((used, footer)) = cache.known.get_mut(&pack) {
                *used = clock;
                return Ok(Some((Arc::clone(footer), vid)));
            }
            if cache.missing.contains(&pack) {
                return Ok(None);
            }
        }
        match reader::footer(&*self.volumes.store, home, vid, pack, &self.keys) {
            Ok(footer) => {
                self.note_read(footer.file_bytes - u64::from(footer.frames_end()));
                let footer = Arc::new(footer);
                self.footers.lock().insert(pack, Arc::clone(&footer));
                Ok(Some((footer, vid)))
            }
            Err(Error::Volume(VolumeError::NotFound | VolumeError::VolumeGone)) => {
                self.footers.lock().lose(pack);
                Ok(None)
            }
            Err(error) => {
                if error.is_corruption() {
                    self.lose_pack(pack);
                }
                Err(error)
            }
        }
    }

    /// Loads the footers of packs that are needed next, unless they are cached: the first [`FOOTERS_AHEAD`] of them,
    /// together. Leaves missing and damaged ones to [`PackStore::footer`], and all if the store fails.
    /// # Errors
    /// Those of the search for their volumes.
    pub(crate) fn load_footers(
        &self,
        packs: impl IntoIterator<Item = (PackHome, u32, PackNumber)>,
    ) -> Result<()> {
        let mut seen = HashSet::new();
        let mut absent: BTreeMap<VolumeId, Vec<(PackHome, PackNumber)>> = BTreeMap::new();
        let mut count = 0;
        for (home, volume, pack) in packs {
            if !seen.insert(pack) || self.footers.lock().knows(pack) {
                continue;
            }
            let Some(vid) = self.volumes.find(home, volume)? else { continue };
            absent.entry(vid).or_default().push((home, pack));
            count += 1;
            if count == FOOTERS_AHEAD {
                break;
            }
        }
        let store = &*self.volumes.store;
        for (vid, packs) in absent.iter().filter(|(_, packs)| packs.len() > 1) {
            let names: Vec<String> = packs.iter().map(|(_, pack)| pack.file_name()).collect();
            let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
            let options = ReadOptions::ANY_COPY;
            let loaded = store.tails(*vid, &names, reader::TAIL_BYTES, &options, &mut |index, tail| {
                let (home, pack) = packs[index];
                let footer = tail.map_err(Error::from).and_then(|(info, tail)| {
                    reader::footer_of(store, (home, *vid, pack), &info, tail, &self.keys)
                });
                if let Ok(footer) = footer {
                    self.note_read(footer.file_bytes - u64::from(footer.frames_end()));
                    self.footers.lock().insert(pack, Arc::new(footer));
                }
                ControlFlow::Continue(())
            });
            if let Err(error) = loaded {
                tracing::debug!(%error, "footers are loaded one by one");
            }
        }
        Ok(())
    }

    /// Whether the pack of a location exists; a missing pack is removed from the index.
    pub(crate) fn has_pack(&self, location: FrameLocation) -> Result<bool> {
        let name = location.pack.file_name();
        let found = match self.volumes.find(location.home, location.volume)? {
            None => Err(VolumeError::NotFound),
            Some(vid) => {
                let store = &self.volumes.store;
                store.stat(vid, name.as_bytes(), &ReadOptions::default())
            }
        };
        match found {
            Ok(_) => Ok(true),
            Err(VolumeError::NotFound | VolumeError::VolumeGone) => {
                self.lose_pack(location.pack);
                Ok(false)
            }
            Err(error) if error.is_corruption() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a pack with a damaged footer from the index, so that its chunks are stored anew.
    fn lose_pack(&self, pack: PackNumber) {
        let lost = match self.index.pack(pack) {
            Ok(None) => return,
            Ok(Some(_)) => self.index.remove_entry(pack),
            Err(error) => Err(error),
        };
        match lost {
            Ok(()) | Err(Error::Index(copal_kv::Error::ReadOnly)) => {}
            Err(error) => tracing::warn!(%error, %pack, "the index still leads to a damaged pack"),
        }
    }

    /// Finds the frame of a reference, without decrypting it.
    /// # Errors
    /// `Damaged` if neither its location nor the index leads to it.
    pub(crate) fn locate(&self, reference: &FrameRef) -> Result<LocatedFrame> {
        self.first_good(reference, |located| Ok(located.clone()))
    }

    /// Calls `take` for each location of a reference until one succeeds.
    /// # Errors
    /// If none succeeds, the damage of the first location. An error that is not damage ends the search at
    /// once.
    pub(crate) fn first_good<T>(
        &self,
        reference: &FrameRef,
        mut take: impl FnMut(&LocatedFrame) -> Result<T>,
    ) -> Result<T> {
        let mut first = None;
        match self.at(reference.location, &reference.id.short()) {
            Ok(None) => {}
            found => match found.and_then(|located| located.as_ref().map(&mut take).transpose()) {
                Ok(Some(taken)) => return Ok(taken),
                Ok(None) => {}
                Err(error) if error.is_corruption() => first = Some(error),
                Err(error) => return Err(error),
            },
        }
        self.next_good(reference, reference.location, first, take)
    }

    /// As [`PackStore::first_good`], after location `tried` has failed with `first`.
    pub(crate) fn next_good<T>(
        &self,
        reference: &FrameRef,
        tried: FrameLocation,
        mut first: Option<Error>,
        mut take: impl FnMut(&LocatedFrame) -> Result<T>,
    ) -> Result<T> {
        let mut tried = vec![tried];
        if let Some(taken) = self.elsewhere(reference, &mut tried, &mut first, &mut take)? {
            return Ok(taken);
        }
        if let Some(vm) = reference.location.home.vm()
            && self.catch_up(vm)?
            && let Some(taken) = self.elsewhere(reference, &mut tried, &mut first, &mut take)?
        {
            return Ok(taken);
        }
        Err(first.unwrap_or_else(|| unresolved(reference)))
    }

    /// Calls `take` for the locations of a reference that the index knows, except those in `tried`. `None`:
    /// none succeeded, and `first` holds the first damage.
    /// # Errors
    /// Errors that are not damage.
    fn elsewhere<T>(
        &self,
        reference: &FrameRef,
        tried: &mut Vec<FrameLocation>,
        first: &mut Option<Error>,
        take: &mut impl FnMut(&LocatedFrame) -> Result<T>,
    ) -> Result<Option<T>> {
        let others = match self.other_locations(reference) {
            // Damage of the index is remembered, but does not end the search for this frame.
            Err(error) if error.is_corruption() => {
                first.get_or_insert(error);
                return Ok(None);
            }
            others => others?,
        };
        for location in others {
            if tried.contains(&location) {
                continue;
            }
            tried.push(location);
            let taken = self.at(location, &reference.id.short());
            match taken.and_then(|located| located.as_ref().map(&mut *take).transpose()) {
                Ok(None) => {}
                Ok(Some(taken)) => return Ok(Some(taken)),
                Err(error) if error.is_corruption() => drop(first.get_or_insert(error)),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Brings the index of a VM up to date, if that was put off until a reader misses a frame.
    pub(super) fn know_index(&self, home: PackHome) -> Result<()> {
        match (home.vm(), self.index_updates.get()) {
            (Some(vm), Some(updates)) if !updates.is_known(vm) => self.catch_up(vm).map(drop),
            _ => Ok(()),
        }
    }

    /// Whether the index of a VM may know more than before. If the index or a list is damaged, the index
    /// stays as it was.
    fn catch_up(&self, vm: Uuid) -> Result<bool> {
        let Some(index_updates) = self.index_updates.get() else {
            return Ok(false);
        };
        match index_updates.catch_up(self, vm) {
            Err(error) if error.is_corruption() => {
                tracing::warn!(%error, %vm, "the index of the VM could not be brought up to date");
                Ok(true)
            }
            caught_up => caught_up.map(|()| true),
        }
    }

    /// Locations of a reference according to the index, except its own. Some of them may be missing.
    pub(crate) fn other_locations(&self, reference: &FrameRef) -> Result<Vec<FrameLocation>> {
        let own = reference.location;
        let mut rows = self.index.rows_of(own.home, &[reference.id.short()])?;
        self.others_of(own, rows.pop().unwrap_or_default())
    }

    /// As [`PackStore::other_locations`], given the location and the rows of the id.
    pub(crate) fn others_of(&self, own: FrameLocation, rows: Vec<IndexRow>) -> Result<Vec<FrameLocation>> {
        let places = self.index.places_of(rows)?;
        let locations = places.into_iter().map(|(row, entry)| entry.location(row));
        // A chunk may have moved from the home of its VM to the shared one. A recipe is never a chunk.
        let of_its_kind = locations.filter(|location| location.home.has_chunks() == own.home.has_chunks());
        Ok(of_its_kind.filter(|location| *location != own).collect())
    }

    /// The frame at a location, if it has that id.
    /// # Errors
    /// `Damaged`, and errors of the store.
    pub(crate) fn at(&self, location: FrameLocation, id: &[u8; 16]) -> Result<Option<LocatedFrame>> {
        let Some((footer, vid)) = self.footer(location.home, location.volume, location.pack)? else {
            return Ok(None);
        };
        let fits = footer
            .rows
            .get(location.slot as usize)
            .is_some_and(|row| row.id == *id || broken::by(Flaw::AnyRowFits));
        Ok(fits.then_some(LocatedFrame { footer, vid, location }))
    }

    /// Reads `range` of a pack.
    /// # Errors
    /// `Damaged`, also if another host removed the pack; errors of the store.
    pub(crate) fn read(&self, vid: VolumeId, pack: PackNumber, range: std::ops::Range<u64>) -> Result<Bytes> {
        let wanted = range.end - range.start;
        let name = pack.file_name();
        let bytes = self.volumes.store.get(vid, name.as_bytes(), range, &ReadOptions::ANY_COPY);
        self.read_of(pack, wanted, bytes)
    }

    /// Counts an answer of the store to a read of `wanted` bytes, and checks its length.
    /// # Errors
    /// As [`PackStore::read`].
    pub(super) fn read_of(
        &self,
        pack: PackNumber,
        wanted: u64,
        bytes: std::result::Result<Bytes, VolumeError>,
    ) -> Result<Bytes> {
        let bytes = match bytes {
            // Another host removed the pack after its footer was read here.
            Err(VolumeError::NotFound | VolumeError::VolumeGone) => return Err(self.removed(pack)),
            bytes => bytes?,
        };
        self.note_read(bytes.len() as u64);
        if bytes.len() as u64 != wanted {
            return Err(reader::damaged(pack, format!("a read of {wanted} bytes returned {}", bytes.len())));
        }
        Ok(bytes)
    }

    /// Forgets a pack that another host removed, and returns the error of a read of it.
    pub(super) fn removed(&self, pack: PackNumber) -> Error {
        self.footers.lock().lose(pack);
        reader::damaged(pack, "it was removed while it was read")
    }
}

/// Error of a reference that leads to no pack.
pub(crate) fn unresolved(reference: &FrameRef) -> Error {
    Error::Damaged {
        what: format!("frame {:?}", reference.id),
        detail: format!("it is not in pack {}, and the index has no other location", reference.location.pack),
    }
}

impl FooterCache {
    /// Whether the pack needs no read.
    fn knows(&self, pack: PackNumber) -> bool {
        self.known.contains_key(&pack) || self.missing.contains(&pack)
    }

    fn lose(&mut self, pack: PackNumber) {
        if let Some((_, footer)) = self.known.remove(&pack) {
            self.bytes -= footer.memory_bytes();
        }
        if self.missing.len() >= MISSING_PACKS {
            self.missing.clear();
        }
        self.missing.insert(pack);
    }

    fn insert(&mut self, pack: PackNumber, footer: Arc<PackFooter>) {
        self.bytes += footer.memory_bytes();
        self.clock += 1;
        if let Some((_, old)) = self.known.insert(pack, (self.clock, footer)) {
            self.bytes -= old.memory_bytes();
        }
        while self.bytes > FOOTER_BUDGET_BYTES && self.known.len() > 1 {
            let Some(oldest) = self.known.iter().min_by_key(|(_, (used, _))| *used).map(|(&pack, _)| pack)
            else {
                return;
            };
            if let Some((_, old)) = self.known.remove(&oldest) {
                self.bytes -= old.memory_bytes();
            }
        }
    }
}
