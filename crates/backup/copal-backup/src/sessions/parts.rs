//! Context of every operation of a repository: packs with their index, catalog, chunker, and the state of the
//! index in this handle.
//!
//! Operations take this context instead of the façade, since the façade calls them.

use crate::catalog::Catalog;
use crate::catalog::directory::VmDirectory;
use crate::catalog::epoch::{newest_epoch, raise_epoch};
use crate::catalog::log::{AppendOutcome, LogName};
use crate::catalog::record::{MAX_LISTED, PackPlace, Record};
use crate::catalog::removals::{end_removals, list_removals, packs_of};
use crate::catalog::replay::ReplayedLog;
use crate::catalog::vm::{PublishedSnapshot, VmState};
use crate::index::dead_frames::{self, DeadFrames};
use crate::index::reindex::{self, PackScope};
use crate::index::vm_index::{self, VmIndex};
use crate::keys::roles::Roles;
use crate::packs::pack_store::PackStore;
use crate::request::Layout;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress, Silent};
use crate::sessions::repository_locks::RepositoryLocks;
use crate::snapshot::manifest::{self, Manifest};
use crate::steps::session::first_removed;
use bytes::Bytes;
use copal_chunk::Chunker;
use copal_volume::{FileId, ReadOptions, VolumeError, VolumeId};
use parking_lot::{Mutex, RwLockReadGuard};
use std::sync::Arc;
use uuid::Uuid;

/// Manifests that are read together.
const MANIFESTS_AT_ONCE: usize = 256;

/// The parts of an open repository; shared between threads.
pub(crate) struct RepositoryParts {
    pack_store: PackStore,
    catalog: Arc<Catalog>,
    chunker: Chunker,
    /// Shared with all other handles of this repository.
    locks: Arc<RepositoryLocks>,
    indexed: Mutex<IndexState>,
    changing: Mutex<ChangeState>,
    /// Indexes of VMs, in a fleet.
    vm_index: Arc<VmIndex>,
}

/// How far the index of this handle is up to date.
struct IndexState {
    /// Whether the index was brought up to date.
    is_current: bool,
    /// The counter of pack changes at that time.
    changes: u64,
    /// The epoch of the catalog at that time.
    epoch: u64,
}

/// Operations of this handle that add or remove packs.
#[derive(Default)]
struct ChangeState {
    /// Number of running operations.
    active: usize,
    /// The epoch that was begun for them.
    epoch: u64,
    /// Whether one of them ended before its packs were in the index.
    has_failed: bool,
}

impl RepositoryParts {
    pub(crate) fn new(
        pack_store: PackStore,
        catalog: Catalog,
        chunker: Chunker,
        locks: Arc<RepositoryLocks>,
    ) -> RepositoryParts {
        let indexed = IndexState { is_current: false, changes: locks.changes(), epoch: 0 };
        let catalog = Arc::new(catalog);
        let vm_index = Arc::new(VmIndex::new(Arc::clone(&catalog)));
        if pack_store.layout.is_fleet() {
            let index_updates = Arc::clone(&vm_index);
            pack_store.set_index_updates(index_updates);
        }
        RepositoryParts {
            pack_store,
            catalog,
            chunker,
            locks,
            indexed: Mutex::new(indexed),
            changing: Mutex::default(),
            vm_index,
        }
    }

    /// Separates this handle from the others of its process, as if it were in another process.
    pub(crate) fn separate_from_others(&mut self) {
        self.locks = RepositoryLocks::unshared();
    }

    /// Sets the number of threads that one operation computes with.
    pub(crate) fn set_workers(&mut self, workers: usize) {
        self.pack_store.set_workers(workers);
    }

    pub(crate) fn pack_store(&self) -> &PackStore {
        &self.pack_store
    }

    pub(crate) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    pub(crate) fn chunker(&self) -> &Chunker {
        &self.chunker
    }

    pub(crate) fn directory(&self) -> VmDirectory<'_> {
        VmDirectory::new(&self.catalog)
    }

    /// Whether several processes write at once (a fleet on several servers): then an open session may be
    /// alive.
    pub(crate) fn is_written_by_several(&self) -> bool {
        self.pack_store.layout.is_fleet() && self.pack_store.volumes.store.is_replicated()
    }

    /// The rights of this handle.
    pub(crate) fn roles(&self) -> Roles {
        self.pack_store.keys.roles()
    }

    /// Refuses the operation in the layout solo.
    /// # Errors
    /// `Denied`: the layout is solo.
    pub(crate) fn must_be_fleet(&self) -> Result<()> {
        match self.pack_store.layout.is_fleet() {
            true => Ok(()),
            false => Err(Error::Denied {
                reason: "in the layout solo VMs share their chunks: forget snapshots and run `copal prune` instead".into(),
            }),
        }
    }

    /// State of a VM's log, read to its end.
    pub(crate) fn vm_state(&self, vm: Uuid) -> Result<Arc<ReplayedLog<VmState>>> {
        self.catalog.vm(vm)
    }

    /// Whether an error of a walk means no damage: another process has freed a snapshot since this state was read, has
    /// replaced a list, or removes the VM, so files are gone.
    pub(crate) fn is_overtaken(&self, error: &Error, vm: Uuid, state: &VmState) -> Result<bool> {
        if !error.is_corruption() && !matches!(error, Error::Volume(VolumeError::VolumeGone)) {
            return Ok(false);
        }
        let now = self.vm_state(vm)?;
        let stays = |one: &PublishedSnapshot| {
            now.published.iter().chain(&now.forgotten).any(|kept| kept.snapshot == one.snapshot)
        };
        let has_lists = (now.dead, &now.moved) == (state.dead, &state.moved);
        Ok(now.is_retired || !has_lists || !state.published.iter().all(stays))
    }

    /// The state of a VM's log, and the dead frames that it names.
    pub(crate) fn vm_state_and_dead(&self, vm: Uuid) -> Result<(Arc<ReplayedLog<VmState>>, DeadFrames)> {
        loop {
            let state = self.vm_state(vm)?;
            match dead_frames::read(&self.pack_store, vm, state.dead.as_ref()) {
                Err(error) if self.is_overtaken(&error, vm, &state)? => {}
                dead => return Ok((state, dead?)),
            }
        }
    }

    /// The manifest of a published snapshot.
    pub(crate) fn manifest(&self, vm: Uuid, published: &PublishedSnapshot) -> Result<Manifest> {
        self.manifest_by(vm, published, &ReadOptions::default())
    }

    /// The manifest of a published snapshot, for a description: any copy of it serves.
    pub(crate) fn any_manifest(&self, vm: Uuid, published: &PublishedSnapshot) -> Result<Manifest> {
        self.manifest_by(vm, published, &ReadOptions::ANY_COPY)
    }

    fn manifest_by(&self, vm: Uuid, published: &PublishedSnapshot, read: &ReadOptions) -> Result<Manifest> {
        let volumes = &self.pack_store.volumes;
        let file = match volumes.meta(vm, false)? {
            Some(vid) => {
                let name = manifest::file_name(published.snapshot);
                volumes.store.get(vid, name.as_bytes(), 0..manifest::MAX_FILE_BYTES, read)
            }
            None => Err(VolumeError::NotFound),
        };
        self.open_manifest(vm, published, file)
    }

    /// As [`RepositoryParts::any_manifest`] for many snapshots of a VM, which are read together.
    /// # Errors
    /// Those that concern all manifests.
    pub(crate) fn any_manifests(
        &self,
        vm: Uuid,
        published: &[PublishedSnapshot],
    ) -> Result<Vec<Result<Manifest>>> {
        let volumes = &self.pack_store.volumes;
        let mut found = Vec::with_capacity(published.len());
        let vid = volumes.meta(vm, false)?;
        for published in published.chunks(MANIFESTS_AT_ONCE) {
            let names = published.iter().map(|one| manifest::file_name(one.snapshot).into_bytes().into());
            let names: Vec<Bytes> = names.collect();
            let files = match vid {
                Some(vid) => volumes.store.get_batch(vid, &names, &ReadOptions::ANY_COPY)?,
                None => names.iter().map(|_| Err(VolumeError::NotFound)).collect(),
            };
            found.extend(published.iter().zip(files).map(|(one, file)| match file {
                // The answer had no room for it.
                Err(VolumeError::TooLarge { .. }) => self.any_manifest(vm, one),
                file => self.open_manifest(vm, one, file),
            }));
        }
        Ok(found)
    }

    fn open_manifest(
        &self,
        vm: Uuid,
        published: &PublishedSnapshot,
        file: std::result::Result<Bytes, VolumeError>,
    ) -> Result<Manifest> {
        let id = published.snapshot;
        let damaged = |detail: String| Error::Damaged { what: format!("manifest {id}"), detail };
        let file = match file {
            Err(VolumeError::NotFound) => return Err(damaged("it is missing".into())),
            Err(VolumeError::Corrupt { what }) => return Err(damaged(what)),
            file => file?,
        };
        if manifest::hash(&file) != published.manifest {
            return Err(damaged("its hash is not the one in its Publish record".into()));
        }
        let manifest = Manifest::decode(&file, id, &self.pack_store.keys).map_err(damaged)?;
        if manifest.vm != vm {
            return Err(damaged("it belongs to another VM".into()));
        }
        Ok(manifest)
    }

    pub(crate) fn append(&self, vm: Uuid, record: &Record) -> Result<()> {
        loop {
            let next = self.vm_state(vm)?.next_number;
            if let AppendOutcome::Done = self.catalog.append(LogName::Vm(vm), next, record)? {
                return Ok(());
            }
        }
    }

    pub(crate) fn locks(&self) -> &RepositoryLocks {
        &self.locks
    }

    /// Takes the packs lock for reading, with current knowledge of the packs.
    pub(crate) fn enter(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let reading = self.locks.reading()?;
        self.catch_up();
        Ok(reading)
    }

    /// Drops cached knowledge if another handle has changed packs since. The caller holds the packs lock.
    pub(crate) fn catch_up(&self) {
        let mut indexed = self.indexed.lock();
        let changes = self.locks.changes();
        if indexed.changes != changes {
            self.pack_store.forget_cached();
            *indexed = IndexState { is_current: false, changes, epoch: 0 };
        }
    }

    /// Notes that this handle has added or removed packs, and that its index is up to date.
    pub(crate) fn note_change(&self) {
        let mut indexed = self.indexed.lock();
        if self.locks.note_change() == indexed.changes {
            indexed.changes += 1;
        }
    }

    /// Makes notes of damage durable. In a read-only store the caller passes them on instead.
    pub(crate) fn sync_damage(&self) {
        if self.pack_store.index.has_damaged()
            && let Err(error) = self.pack_store.index.sync()
        {
            tracing::debug!(%error, "notes of damaged frames could not be made durable");
        }
    }

    /// Brings the index up to date for reading snapshots of a VM. A damaged index is returned and does not
    /// fail: readers find most frames by the locations in recipes. In a fleet on several servers, the first reader that
    /// misses a frame does it: with an index in memory it reads the footers of all packs.
    pub(crate) fn index_for_reading(
        &self,
        vm: Uuid,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<Option<Error>> {
        readable(match self.pack_store.layout {
            Layout::Solo => self.index_new_packs(progress, cancel),
            Layout::Fleet { .. } if self.pack_store.volumes.store.is_replicated() => Ok(()),
            Layout::Fleet { .. } => self.index_vm(vm, progress, cancel),
        })
    }

    /// Brings the index of a VM of a fleet up to date. Packs are listed each time, since any host may have
    /// added some.
    /// # Errors
    /// `Damaged`: a list of dead or moved frames is damaged. Errors of the store and the index.
    pub(crate) fn index_vm(&self, vm: Uuid, progress: &dyn Progress, cancel: &CancelFlag) -> Result<()> {
        self.vm_index.index(&self.pack_store, vm, progress, cancel)
    }

    /// As [`RepositoryParts::index_vm`], including dead frames.
    pub(crate) fn index_vm_packs(
        &self,
        vm: Uuid,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<()> {
        self.vm_index.index_live_and_dead(&self.pack_store, vm, progress, cancel).map(drop)
    }

    /// Maps moved chunks of a VM of a fleet to their popular frames, in an index that knows its packs.
    /// # Errors
    /// As [`RepositoryParts::index_vm`].
    pub(crate) fn apply_moved_lists(&self, vm: Uuid) -> Result<()> {
        self.vm_index.apply_moved_lists(&self.pack_store, vm).map(drop)
    }

    /// Removes dead frames from the index.
    pub(crate) fn remove_dead_rows(&self, dead: &DeadFrames) -> Result<()> {
        vm_index::remove_dead_rows(&self.pack_store, dead)
    }

    /// Forgets the state of the indexes of VMs, because the index was cleared.
    pub(crate) fn forget_indexed(&self) {
        self.vm_index.forget();
    }

    fn reindex(&self, progress: &dyn Progress, cancel: &CancelFlag) -> Result<()> {
        match reindex::reindex(&self.pack_store, PackScope::All, progress, cancel) {
            // The store is open for reading only: the index stays as it is.
            Err(Error::Index(copal_kv::Error::ReadOnly)) => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// Brings the index up to date, once per open repository; not at all if no pack has changed.
    pub(crate) fn index_new_packs(&self, progress: &dyn Progress, cancel: &CancelFlag) -> Result<()> {
        self.index_packs(false, progress, cancel)
    }

    /// As [`RepositoryParts::index_new_packs`], with a look at every pack.
    pub(crate) fn index_all_packs(&self, progress: &dyn Progress, cancel: &CancelFlag) -> Result<()> {
        self.index_packs(true, progress, cancel)
    }

    fn index_packs(&self, all: bool, progress: &dyn Progress, cancel: &CancelFlag) -> Result<()> {
        if self.pack_store.layout.is_fleet() {
            return self.reindex(progress, cancel);
        }
        let mut indexed = self.indexed.lock();
        if all || !indexed.is_current {
            let epoch = newest_epoch(self.catalog.files())?;
            if all || self.pack_store.index.epoch()? != Some(epoch) {
                self.reindex(progress, cancel)?;
            }
            indexed.epoch = epoch;
            indexed.is_current = true;
        }
        Ok(())
    }

    /// Begins to add or remove packs, in the layout solo: the raised epoch marks other indexes as outdated.
    pub(crate) fn begin_change(&self) -> Result<PackChange<'_>> {
        let mut changing = self.changing.lock();
        while changing.active == 0 {
            self.index_new_packs(&Silent, &CancelFlag::new())?;
            let from = self.indexed.lock().epoch;
            self.finish_removals(from)?;
            if let Some(epoch) = raise_epoch(self.catalog.files(), from)? {
                *changing = ChangeState { active: 0, epoch, has_failed: false };
                break;
            }
            self.indexed.lock().is_current = false;
        }
        changing.active += 1;
        Ok(PackChange { parts: self, is_entered: false })
    }

    /// Removes the packs that an interrupted prune has listed, if `newest` is the newest epoch (BAK-15).
    fn finish_removals(&self, newest: u64) -> Result<()> {
        let store = &self.pack_store.volumes.store;
        if !store.is_replicated() || newest_epoch(self.catalog.files())? != newest {
            return Ok(());
        }
        let removals = list_removals(self.catalog.files())?;
        for removal in removals.iter().filter(|removal| removal.epoch == newest) {
            for place in packs_of(self.catalog.files(), removal)? {
                let file = self.find_listed(&place)?;
                self.remove_listed(&place, file)?;
            }
        }
        end_removals(self.catalog.files(), &removals)
    }

    /// Removes the packs that a prune has listed in the log of a VM of a fleet and may not have removed
    /// everywhere (BAK-15). The caller has a session of the VM open, so no list is added; or it gives way to
    /// a prune that adds one.
    pub(crate) fn finish_removals_of(&self, vm: Uuid, state: &VmState) -> Result<()> {
        let removing = first_removed(state).to_vec();
        for listed in removing.chunks(MAX_LISTED) {
            let found: Vec<_> = listed.iter().map(|place| self.find_listed(place)).collect::<Result<_>>()?;
            // A pack that is listed behind this look is the one that was found. Otherwise another process has removed it,
            // and a create that came about late may have brought it back: backups may refer to that file.
            let still = first_removed(&*self.vm_state(vm)?).to_vec();
            for (place, file) in listed.iter().zip(found) {
                let file = file.filter(|_| still.contains(place));
                self.remove_listed(place, file)?;
            }
            let packs = listed.to_vec();
            self.append(vm, &Record::Removed { packs })?;
        }
        Ok(())
    }

    /// The file of a listed pack, if it is there.
    fn find_listed(&self, place: &PackPlace) -> Result<Option<(VolumeId, FileId)>> {
        let volumes = &self.pack_store.volumes;
        let Some(vid) = volumes.find(place.home, place.volume)? else { return Ok(None) };
        // A strict look asks all members, so a removal that has begun is completed.
        match volumes.store.stat(vid, place.pack.file_name().as_bytes(), &ReadOptions::STRICT) {
            Ok(info) => Ok(Some((vid, info.fid))),
            Err(VolumeError::NotFound | VolumeError::VolumeGone) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn remove_listed(&self, place: &PackPlace, file: Option<(VolumeId, FileId)>) -> Result<()> {
        let pack_store = &self.pack_store;
        if let Some((vid, fid)) = file {
            pack_store.volumes.store.delete(vid, place.pack.file_name().as_bytes(), fid)?;
        }
        pack_store.index.remove_entry(place.pack)?;
        pack_store.forget_cached();
        Ok(())
    }

    /// The epoch that [`RepositoryParts::begin_change`] has begun.
    pub(crate) fn changing_epoch(&self) -> u64 {
        self.changing.lock().epoch
    }

    /// Ends a change; `is_entered`: the index knows all its packs.
    fn end_change(&self, is_entered: bool) {
        let mut changing = self.changing.lock();
        changing.active -= 1;
        changing.has_failed |= !is_entered;
        if changing.active > 0 {
            return;
        }
        let mut indexed = self.indexed.lock();
        indexed.epoch = changing.epoch;
        if changing.has_failed {
            // Packs that were written and not added are found by listing.
            indexed.is_current = false;
            return;
        }
        if let Err(error) = self.pack_store.index.note_epoch(changing.epoch) {
            tracing::warn!(%error, "the epoch could not be noted in the index; the next command lists all packs");
        }
    }

    /// Notes whether the index was rebuilt successfully.
    pub(crate) fn note_indexed(&self, is_current: bool) {
        self.indexed.lock().is_current = is_current;
    }
}

/// Splits damage of the index from the other errors.
pub(crate) fn readable(outcome: Result<()>) -> Result<Option<Error>> {
    match outcome {
        Ok(()) => Ok(None),
        Err(error) if error.is_corruption() => {
            tracing::warn!(%error, "damaged index; reading without it");
            Ok(Some(error))
        }
        Err(error) => Err(error),
    }
}

/// Packs are added or removed until this is dropped.
pub(crate) struct PackChange<'a> {
    parts: &'a RepositoryParts,
    is_entered: bool,
}

impl PackChange<'_> {
    /// Ends the change successfully: the index knows every added or removed pack.
    pub(crate) fn entered(mut self) {
        self.is_entered = true;
    }
}

impl Drop for PackChange<'_> {
    fn drop(&mut self) {
        self.parts.end_change(self.is_entered);
    }
}
