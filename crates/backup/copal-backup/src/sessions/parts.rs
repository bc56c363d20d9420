//! What every operation of a repository works with: the packs and their index, the catalog, the chunker, and
//! what this handle knows of the packs there are.
//!
//! Operations take this and not the façade, which calls them.

use crate::catalog::directory::Directory;
use crate::catalog::log::{Append, Catalog, LogName};
use crate::catalog::record::{MAX_LISTED, PackPlace, Record};
use crate::catalog::replay::Replayed;
use crate::catalog::vm::{Published, VmState};
use crate::index::dead_frames::DeadFrames;
use crate::index::reindex::{self, Whose};
use crate::index::vm_index::{self, VmIndex};
use crate::packs::pack_store::PackStore;
use crate::request::Layout;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Silent};
use crate::sessions::repository_locks::RepositoryLocks;
use crate::snapshot::manifest::{self, Manifest};
use crate::steps::session::first_removed;
use copal_chunk::Chunker;
use copal_volume::{ReadOptions, VolumeError};
use parking_lot::{Mutex, RwLockReadGuard};
use std::sync::Arc;
use uuid::Uuid;

/// The parts of an open repository; shared between threads.
pub(crate) struct Parts {
    pack_store: PackStore,
    catalog: Arc<Catalog>,
    chunker: Chunker,
    /// With all other handles of this repository.
    locks: Arc<RepositoryLocks>,
    indexed: Mutex<Indexed>,
    changing: Mutex<Changing>,
    /// Of a fleet.
    vm_index: Arc<VmIndex>,
}

/// What this handle knows of the packs there are.
struct Indexed {
    /// Whether the index was brought up to date.
    is_current: bool,
    /// How often packs had come or gone then.
    changes: u64,
    /// The epoch of the catalog then.
    epoch: u64,
}

/// What of this handle makes or removes packs.
#[derive(Default)]
struct Changing {
    /// How many do.
    active: usize,
    /// The epoch that was begun for them.
    epoch: u64,
    /// Whether one of them ended before its packs were entered.
    has_failed: bool,
}

impl Parts {
    pub(crate) fn new(
        pack_store: PackStore,
        catalog: Catalog,
        chunker: Chunker,
        locks: Arc<RepositoryLocks>,
    ) -> Parts {
        let indexed = Indexed { is_current: false, changes: locks.changes(), epoch: 0 };
        let catalog = Arc::new(catalog);
        let vm_index = Arc::new(VmIndex::new(Arc::clone(&catalog)));
        if pack_store.layout.is_fleet() {
            let news = Arc::clone(&vm_index);
            pack_store.ask_for_news(news);
        }
        Parts {
            pack_store,
            catalog,
            chunker,
            locks,
            indexed: Mutex::new(indexed),
            changing: Mutex::default(),
            vm_index,
        }
    }

    /// As a handle in another process would, this one meets no other from now on.
    pub(crate) fn part_from_others(&mut self) {
        self.locks = RepositoryLocks::apart();
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

    pub(crate) fn directory(&self) -> Directory<'_> {
        Directory::new(&self.catalog)
    }

    /// Whether several processes write at once, so that nobody can take another's session for dead: a fleet
    /// on several servers.
    pub(crate) fn is_written_by_several(&self) -> bool {
        self.pack_store.layout.is_fleet() && self.pack_store.volumes.store.is_replicated()
    }

    /// State of a VM's log, read to its end.
    pub(crate) fn vm_state(&self, vm: Uuid) -> Result<Arc<Replayed<VmState>>> {
        self.catalog.vm(vm)
    }

    /// The manifest of a published snapshot.
    pub(crate) fn manifest(&self, vm: Uuid, published: &Published) -> Result<Manifest> {
        let id = published.snapshot;
        let damaged = |detail: String| Error::Damaged { what: format!("manifest {id}"), detail };
        let missing = || damaged("it is gone".into());
        let volumes = &self.pack_store.volumes;
        let vid = volumes.meta(vm, false)?.ok_or_else(missing)?;
        let name = manifest::file_name(id);
        let read = ReadOptions::default();
        let file = match volumes.store.get(vid, name.as_bytes(), 0..manifest::MAX_FILE_BYTES, &read) {
            Err(VolumeError::NotFound) => return Err(missing()),
            Err(VolumeError::Corrupt { what }) => return Err(damaged(what)),
            file => file?,
        };
        if manifest::hash(&file) != published.manifest {
            return Err(damaged("its bytes are not those its Publish record names".into()));
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
            if let Append::Done = self.catalog.append(LogName::Vm(vm), next, record)? {
                return Ok(());
            }
        }
    }

    pub(crate) fn locks(&self) -> &RepositoryLocks {
        &self.locks
    }

    /// Among those who read packs, knowing which there are.
    pub(crate) fn enter(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let reading = self.locks.reading()?;
        self.catch_up();
        Ok(reading)
    }

    /// Drops what this handle knew, if another one has changed it since. The caller holds the lock of packs.
    pub(crate) fn catch_up(&self) {
        let mut indexed = self.indexed.lock();
        let changes = self.locks.changes();
        if indexed.changes != changes {
            self.pack_store.forget_cached();
            *indexed = Indexed { is_current: false, changes, epoch: 0 };
        }
    }

    /// This handle has made or removed packs, and its index knows.
    pub(crate) fn note_change(&self) {
        let mut indexed = self.indexed.lock();
        if self.locks.note_change() == indexed.changes {
            indexed.changes += 1;
        }
    }

    /// What was noted of damage survives a crash; where nothing can be written, it is for the caller to hand
    /// on.
    pub(crate) fn sync_damage(&self) {
        if self.pack_store.index.has_damaged()
            && let Err(error) = self.pack_store.index.sync()
        {
            tracing::debug!(%error, "notes of damage are not durable");
        }
    }

    /// Brings the index up to date for who reads snapshots of a VM and hardly needs it: a damaged one stops
    /// nobody from reading what the recipes lead to. Returns the damage.
    pub(crate) fn index_for_reading(&self, vm: Uuid) -> Result<Option<Error>> {
        readable(match self.pack_store.layout {
            Layout::Solo => self.index_new_packs(),
            Layout::Fleet { .. } => self.index_vm(vm),
        })
    }

    /// Brings the index of a VM of a fleet up to date. Names are listed each time, since any host may have
    /// added to them.
    /// # Errors
    /// `Damaged`: a list of dead or moved frames is. Those of the store and the index.
    pub(crate) fn index_vm(&self, vm: Uuid) -> Result<()> {
        self.vm_index.index(&self.pack_store, vm)
    }

    /// As [`Parts::index_vm`], dead frames with the others.
    pub(crate) fn index_vm_packs(&self, vm: Uuid) -> Result<()> {
        self.vm_index.index_live_and_dead(&self.pack_store, vm).map(drop)
    }

    /// Leads chunks of a VM of a fleet that moved to their popular frames, in an index that knows its packs.
    /// # Errors
    /// As [`Parts::index_vm`].
    pub(crate) fn lead_moved(&self, vm: Uuid) -> Result<()> {
        self.vm_index.lead_moved(&self.pack_store, vm).map(drop)
    }

    /// Takes dead frames out of the index.
    pub(crate) fn pass_over(&self, dead: &DeadFrames) -> Result<()> {
        vm_index::leave_out(&self.pack_store, dead)
    }

    /// The index was thrown away: what it had of VMs of a fleet is entered again.
    pub(crate) fn forget_indexed(&self) {
        self.vm_index.forget();
    }

    fn reindex(&self, whose: Whose) -> Result<()> {
        match reindex::reindex(&self.pack_store, whose, &Silent, &CancelFlag::new()) {
            // A store opened for reading: what the index has must do.
            Err(Error::Index(copal_kv::Error::ReadOnly)) => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// Brings the index up to date, once per open repository: not at all where nothing changed since it was.
    pub(crate) fn index_new_packs(&self) -> Result<()> {
        self.index_packs(false)
    }

    /// As [`Parts::index_new_packs`], looking at every pack.
    pub(crate) fn index_all_packs(&self) -> Result<()> {
        self.index_packs(true)
    }

    fn index_packs(&self, all: bool) -> Result<()> {
        if self.pack_store.layout.is_fleet() {
            return self.reindex(Whose::All);
        }
        let mut indexed = self.indexed.lock();
        if all || !indexed.is_current {
            let epoch = self.catalog.epoch()?;
            if all || self.pack_store.index.epoch()? != Some(epoch) {
                self.reindex(Whose::All)?;
            }
            indexed.epoch = epoch;
            indexed.is_current = true;
        }
        Ok(())
    }

    /// Begins to make or remove packs, in the layout solo: an index that misses it is known to.
    pub(crate) fn begin_change(&self) -> Result<Change<'_>> {
        let mut changing = self.changing.lock();
        while changing.active == 0 {
            self.index_new_packs()?;
            let from = self.indexed.lock().epoch;
            self.finish_removals(from)?;
            if let Some(epoch) = self.catalog.raise_epoch(from)? {
                *changing = Changing { active: 0, epoch, has_failed: false };
                break;
            }
            self.indexed.lock().is_current = false;
        }
        changing.active += 1;
        Ok(Change { parts: self, is_entered: false })
    }

    /// Removes what a prune has listed and was kept from removing, if `newest` is the newest epoch (BAK-15).
    fn finish_removals(&self, newest: u64) -> Result<()> {
        let store = &self.pack_store.volumes.store;
        if !store.is_replicated() || self.catalog.epoch()? != newest {
            return Ok(());
        }
        let removals = self.catalog.removals()?;
        for removal in removals.iter().filter(|removal| removal.epoch == newest) {
            for place in self.catalog.packs_of(removal)? {
                self.remove_pack(&place)?;
            }
        }
        self.catalog.end_removals(&removals)
    }

    /// Removes what a prune has listed in the log of a VM of a fleet, and may not have removed everywhere
    /// (BAK-15). The caller has a session of the VM open, so no list comes to it, or gives way to whoever
    /// announces one.
    pub(crate) fn finish_removals_of(&self, vm: Uuid) -> Result<()> {
        let removing = first_removed(&*self.vm_state(vm)?).to_vec();
        for listed in removing.chunks(MAX_LISTED) {
            listed.iter().try_for_each(|place| self.remove_pack(place))?;
            let packs = listed.to_vec();
            self.append(vm, &Record::Removed { packs })?;
        }
        Ok(())
    }

    fn remove_pack(&self, place: &PackPlace) -> Result<()> {
        let pack_store = &self.pack_store;
        let name = place.pack.file_name();
        // All members are asked: a removal that has begun is brought to its end.
        if let Some(vid) = pack_store.volumes.find(place.home, place.volume)? {
            let store = &pack_store.volumes.store;
            match store.stat(vid, name.as_bytes(), &ReadOptions::STRICT) {
                Ok(info) => store.delete(vid, name.as_bytes(), info.fid)?,
                Err(VolumeError::NotFound | VolumeError::VolumeGone) => {}
                Err(error) => return Err(error.into()),
            }
        }
        pack_store.index.remove_pack(place.home, place.pack, std::iter::empty())?;
        pack_store.forget_cached();
        Ok(())
    }

    /// Number of the epoch that [`Parts::begin_change`] has begun.
    pub(crate) fn changing_epoch(&self) -> u64 {
        self.changing.lock().epoch
    }

    /// Ends what `begin_change` began; `is_entered`: the index knows all of it.
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
            // What was written and not entered is found by looking.
            indexed.is_current = false;
            return;
        }
        if let Err(error) = self.pack_store.index.note_epoch(changing.epoch) {
            tracing::warn!(%error, "the next command looks at all packs");
        }
    }

    /// The index was built anew, or could not be.
    pub(crate) fn note_indexed(&self, is_current: bool) {
        self.indexed.lock().is_current = is_current;
    }
}

/// Takes damage of the index out of an outcome.
pub(crate) fn readable(outcome: Result<()>) -> Result<Option<Error>> {
    match outcome {
        Ok(()) => Ok(None),
        Err(error) if error.is_corruption() => {
            tracing::warn!(%error, "going on without the index");
            Ok(Some(error))
        }
        Err(error) => Err(error),
    }
}

/// Packs come or go until this is dropped.
pub(crate) struct Change<'a> {
    parts: &'a Parts,
    is_entered: bool,
}

impl Change<'_> {
    /// Ends it well: the index knows every pack that came or went.
    pub(crate) fn entered(mut self) {
        self.is_entered = true;
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.parts.end_change(self.is_entered);
    }
}
