//! The façade: one repository over a store of volumes and an index.
//!
//! Every call blocks; make it from a thread of your own. A handle may be shared between threads. Backups of
//! different VMs, restores and checks run side by side. `prune` and `delete` run alone and return `Busy` if
//! they cannot. This holds for all handles of a repository in a process (`repository_locks`).
//!
//! One process at a time opens a repository for writing: the store below locks its file. The next process
//! ends the sessions of a killed one; see `backup::session` and `prune`.
//!
//! Not here: finding snapshots (`lookup`).

use crate::api::snapshot_names::SnapshotNames;
use crate::api::unlock::{catalogs, find_catalog, for_each_slot, has_init, open_role_slot, unlock_master};
use crate::backup::{self, Collaboration};
use crate::catalog::Catalog;
use crate::catalog::heartbeats::clear_heartbeats;
use crate::catalog::log::LogName;
use crate::catalog::record::{MAX_LISTED, Record};
use crate::catalog::salvage::salvage_logs;
use crate::catalog::split::has_roles;
use crate::catalog::vm::PublishedSnapshot;
use crate::check;
use crate::delete::prune;
use crate::index::reindex::{self, PackScope};
use crate::index::{ChunkIndex, IndexHome};
use crate::keys::key_slot::{self, HashCost};
use crate::keys::role::Role;
use crate::keys::{DomainKeys, random};
use crate::packs::pack_store::PackStore;
use crate::packs::volumes::{PackHome, RepositoryVolumes, open_or_make};
use crate::popular::{self, PopularFrames, PopularStatus, SpoiledPack, UncheckedPack};
use crate::request::error::{Error, Result};
use crate::request::peers::HostKey;
use crate::request::progress::{CancelFlag, Progress};
use crate::request::*;
use crate::restore;
use crate::sessions::parts::{RepositoryParts, readable};
use crate::sessions::repository_locks::RepositoryLocks;
use crate::snapshot::manifest::{Manifest, ManifestDisk};
use crate::snapshot::recipe::PAGE_SEGMENTS;
use crate::snapshot::tree::TreeReader;
use bytes::Bytes;
use copal_chunk::Chunker;
use copal_disk::target::Target;
use copal_volume::{PutOptions, Remove, VolumeId, VolumeStore};
use parking_lot::Mutex;
use std::sync::Arc;
use uuid::Uuid;
use zeroize::Zeroizing;

/// An open repository.
pub struct Repository {
    pub(crate) parts: RepositoryParts,
    info: RepositoryInfo,
    /// File name of the key slot that opened it.
    opened_by: String,
    pub(crate) snapshot_names: Mutex<SnapshotNames>,
}

/// Keys of an opened repository, kept while its store is closed so that others may write.
pub struct KeptKey {
    domain: Uuid,
    keys: Arc<DomainKeys>,
    encrypted: bool,
    opened_by: String,
}

impl KeptKey {
    /// Opens the repository of a store.
    /// # Errors
    /// `NoRepository`: the store holds another one, or none. As [`Repository::open`].
    pub fn open(&self, volumes: Arc<dyn VolumeStore>, index: IndexHome) -> Result<Repository> {
        let (vid, domain) = find_catalog(&*volumes)?.ok_or(Error::NoRepository)?;
        if domain != self.domain {
            return Err(Error::NoRepository);
        }
        let opened = (Arc::clone(&self.keys), self.encrypted, self.opened_by.clone());
        Repository::open_with(volumes, index, (vid, domain), opened)
    }
}

impl Repository {
    /// Creates a repository in a store that has none.
    /// # Errors
    /// `RepositoryExists`; errors of the store.
    pub fn init(
        volumes: Arc<dyn VolumeStore>,
        index: IndexHome,
        options: &InitOptions,
    ) -> Result<Repository> {
        for (vid, _) in catalogs(&*volumes)? {
            if has_init(&*volumes, vid)? {
                return Err(Error::RepositoryExists);
            }
            // The remains of a killed init; nothing was ever stored under it.
            volumes.remove_volume(vid, Remove::WithFiles)?;
        }
        let domain = Uuid::from_bytes(random()?);
        let master = Zeroizing::new(random::<32>()?);
        let cost = HashCost { memory_kib: options.argon2_memory_kib, passes: 3, lanes: 1 };
        let slot = key_slot::encode(&options.unlock, *domain.as_bytes(), key_slot::salt()?, cost, &master)?;
        let vid =
            open_or_make(&*volumes, &format!("cat-{}", domain.simple()), true)?.ok_or(Error::NoRepository)?;
        volumes.put(vid, b"key.0", Bytes::from(slot), &PutOptions::default())?;
        let keys = Arc::new(DomainKeys::derive(&master));
        let catalog = Catalog::new(Arc::clone(&volumes), vid, keys);
        let profile = options.profile;
        let record = match options.layout {
            Layout::Solo => Record::Init { domain, profile },
            Layout::Fleet { popular_millionths } => Record::InitFleet { domain, profile, popular_millionths },
        };
        catalog.append(LogName::Domain, 0, &record)?;
        Repository::open(volumes, index, &options.unlock)
    }

    /// Opens the repository of a store.
    /// # Errors
    /// `NoRepository`, `WrongPassword`, `WrongKey`, `PasswordNeeded`, `PasswordNotUsed`, `Version`,
    /// `Damaged`.
    pub fn open(volumes: Arc<dyn VolumeStore>, index: IndexHome, unlock: &Unlock) -> Result<Repository> {
        let (vid, domain) = find_catalog(&*volumes)?.ok_or(Error::NoRepository)?;
        let (keys, encrypted, opened_by) = match unlock {
            Unlock::Key(key) => {
                refuse_clear(&*volumes, vid, domain)?;
                let (keys, slot) = open_role_slot(&*volumes, vid, *domain.as_bytes(), key)?;
                (keys, true, slot)
            }
            unlock => {
                let master = unlock_master(&*volumes, vid, domain, unlock)?;
                let keys = DomainKeys::derive(&master.key);
                has_roles(&*volumes, vid, &keys)?;
                (keys, master.is_encrypted, master.slot)
            }
        };
        let keys = Arc::new(keys);
        Repository::open_with(volumes, index, (vid, domain), (keys, encrypted, opened_by))
    }

    /// Keys that open this repository again after its store was closed, without a password.
    pub fn kept_key(&self) -> KeptKey {
        KeptKey {
            domain: self.info.domain,
            keys: Arc::clone(&self.parts.pack_store().keys),
            encrypted: self.info.encrypted,
            opened_by: self.opened_by.clone(),
        }
    }

    fn open_with(
        volumes: Arc<dyn VolumeStore>,
        index: IndexHome,
        (vid, domain): (VolumeId, Uuid),
        (keys, encrypted, opened_by): (Arc<DomainKeys>, bool, String),
    ) -> Result<Repository> {
        let catalog = Catalog::new(Arc::clone(&volumes), vid, Arc::clone(&keys));
        let first = catalog.record(LogName::Domain, 0)?;
        let created_ms = first.created_ms;
        let (profile, layout) = match first.record {
            Record::Init { domain: said, profile } if said == domain => (profile, Layout::Solo),
            Record::InitFleet { domain: said, profile, popular_millionths } if said == domain => {
                (profile, Layout::Fleet { popular_millionths })
            }
            _ => {
                return Err(Error::Damaged {
                    what: "catalog record d.0".into(),
                    detail: "it is not the record that creates this repository".into(),
                });
            }
        };
        let chunker = Chunker::new(profile, &keys.gear);
        let index = ChunkIndex::open(&index, layout)?;
        let pack_store = PackStore::new(layout, RepositoryVolumes::new(volumes, domain), index, keys);
        let info = RepositoryInfo { domain, layout, profile, encrypted, created_ms, version: 1 };
        Ok(Repository {
            parts: RepositoryParts::new(pack_store, catalog, chunker, RepositoryLocks::of(domain)),
            info,
            opened_by,
            snapshot_names: Mutex::default(),
        })
    }

    /// Whether the store holds a repository, and if so whether it needs a password. No key needed.
    /// # Errors
    /// Errors of the store; `Damaged` if no key slot can be read.
    pub fn probe(volumes: &dyn VolumeStore) -> Result<Option<bool>> {
        let Some((vid, domain)) = find_catalog(volumes)? else {
            return Ok(None);
        };
        // A repository that has only role keys needs one of them.
        let mut needed = true;
        for_each_slot(volumes, vid, domain, |_, slot| {
            needed = slot.needs_password();
            Ok(false)
        })?;
        Ok(Some(needed))
    }

    /// File name of the key slot that opened it.
    pub(crate) fn opened_by(&self) -> &[u8] {
        self.opened_by.as_bytes()
    }

    /// A handle that takes no in-process locks with others, like a handle of another process. For tests of
    /// the store's own locks.
    #[doc(hidden)]
    pub fn behave_as_another_process(mut self) -> Repository {
        self.parts.separate_from_others();
        self
    }

    /// Layout, chunking profile and identity of the repository.
    pub fn info(&self) -> RepositoryInfo {
        self.info.clone()
    }

    /// Backs up one VM. On an error nothing is published; the next backup uses the chunks that were stored.
    /// # Errors
    /// `Busy`: this VM is being backed up, or the repository is being pruned. `SessionOpen`: a backup of it
    /// by another host has not ended ([`Repository::watch_vm`] waits for its end). `Source`, `FellBack`,
    /// `Cancelled`, `NoSpace`, `Invalid`, `Fenced`, `SelfCheck`; errors of the store.
    pub fn backup(
        &self,
        request: BackupRequest,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<BackupSummary> {
        self.backup_with(&request, None, progress, cancel)
    }

    /// As [`Repository::backup`]. In a fleet with `others`, the backup asks them for popular chunks.
    /// # Errors
    /// As [`Repository::backup`]. `Denied`: `others` in the layout solo. `Ended` by the others; `Spool`.
    pub fn backup_with(
        &self,
        request: &BackupRequest,
        others: Option<&Collaboration<'_>>,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<BackupSummary> {
        let _shared = self.parts.enter()?;
        if others.is_some() && !self.info.layout.is_fleet() {
            return Err(Error::Denied {
                reason: "a repository of the layout solo has no other hosts to ask: all VMs share all chunks"
                    .into(),
            });
        }
        // Heartbeats continue until the session has ended.
        let beating = match self.parts.is_written_by_several() {
            true => Some(self.start_session_heartbeats(&request.holder)?),
            false => None,
        };
        let holder = beating.as_ref().map(|beating| beating.holder());
        let counting = self.parts.locks().heart().counting(progress);
        let outcome = backup::run(&self.parts, request, others, holder, &counting, cancel);
        self.parts.note_change();
        outcome
    }

    /// Position of the newest entry in the log of popular packs; 0: there is none.
    /// # Errors
    /// `Damaged`; errors of the store.
    pub fn newest_popular(&self) -> Result<u64> {
        popular::newest(&self.parts)
    }

    /// Number that changes whenever popular packs were condemned, spared or removed; 0: none ever was.
    /// # Errors
    /// Errors of the store.
    pub fn popular_generation(&self) -> Result<u64> {
        popular::generation(&self.parts)
    }

    /// Visits the frames of popular packs entered after position `after`, in order; reads the footers of
    /// those packs.
    /// # Errors
    /// `Damaged`: the log is damaged. Errors of the store and of `visit`.
    pub fn for_each_popular_since(
        &self,
        after: u64,
        visit: &mut dyn FnMut(PopularFrames) -> Result<()>,
    ) -> Result<()> {
        popular::for_each_since(&self.parts, after, visit)
    }

    /// The popular packs that no host has checked.
    /// # Errors
    /// `Damaged`: the log is damaged. Errors of the store.
    pub fn unchecked_popular(&self) -> Result<Vec<UncheckedPack>> {
        popular::unchecked(&self.parts)
    }

    /// Opens all frames of a popular pack of another host. If they are good, records that: from then on all
    /// VMs may use the pack. `false`: the pack is bad.
    /// # Errors
    /// `Cancelled`; errors of the store that are not damage.
    pub fn check_popular(&self, pack: u64, cancel: &CancelFlag) -> Result<bool> {
        popular::check(&self.parts, pack, cancel)
    }

    /// The popular packs with wrong content that were recorded as spoiled after position `after`.
    /// # Errors
    /// `Damaged`: the log is damaged. Errors of the store.
    pub fn spoiled_popular(&self, after: u64) -> Result<Vec<SpoiledPack>> {
        popular::spoiled_since(&self.parts, after)
    }

    /// The host key with which this handle signs records about popular packs; `None`: hosts do not sign in
    /// this repository.
    pub fn host_key(&self) -> Option<HostKey> {
        self.parts.pack_store().keys.host_key()
    }

    /// Numbers of popular chunks and packs.
    /// # Errors
    /// `Denied`: the layout has no popular chunks. `Damaged`; errors of the store.
    pub fn popular_status(&self) -> Result<PopularStatus> {
        popular::status(&self.parts)
    }

    /// Sizes, chunks and segments of the disks of a snapshot.
    /// # Errors
    /// `NotFound`, `Damaged`, `Busy`; errors of the store.
    pub fn ls(&self, snapshot: SnapshotId) -> Result<Vec<DiskListing>> {
        let _shared = self.parts.enter()?;
        let manifest = self.find(snapshot)?;
        self.parts.index_for_reading(manifest.vm)?;
        manifest.disks.iter().map(|disk| self.listing(&manifest, disk)).collect()
    }

    fn listing(&self, manifest: &Manifest, disk: &ManifestDisk) -> Result<DiskListing> {
        let mut tree = TreeReader::new(self.parts.pack_store(), manifest.vm)?;
        let size = disk.size_bytes;
        let (mut data_bytes, mut chunks, mut segments) = (0, 0, 0);
        let root = tree.root(&disk.root, size)?;
        for (index, page) in root.pages.iter().enumerate() {
            let Some(page) = page else { continue };
            let index = index as u64;
            let page = tree.page(Some(page), size, index)?;
            for (within, segment) in page.segments.iter().enumerate() {
                let Some(segment) = segment else { continue };
                segments += 1;
                let recipe = tree.segment(segment, size, index * PAGE_SEGMENTS as u64 + within as u64)?;
                for entry in recipe.entries.iter().filter(|entry| entry.chunk.is_some()) {
                    data_bytes += u64::from(entry.length);
                    chunks += 1;
                }
            }
        }
        Ok(DiskListing {
            disk: snapshot_disk(disk),
            data_bytes,
            hole_bytes: size - data_bytes,
            chunks,
            segments,
        })
    }

    /// Writes one disk of a snapshot into `target`.
    /// # Errors
    /// `NotFound`, `Damaged`, `Target`, `Cancelled`, `Busy`; errors of the store.
    pub fn restore(
        &self,
        request: &RestoreRequest,
        target: &dyn Target,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<RestoreSummary> {
        let _shared = self.parts.enter()?;
        let manifest = self.find(request.snapshot)?;
        self.parts.index_for_reading(manifest.vm)?;
        let disk = match (&request.disk, &manifest.disks[..]) {
            (None, [only]) => only,
            (None, disks) => {
                let names: Vec<_> = disks.iter().map(|disk| disk.name.as_str()).collect();
                let reason = format!("the snapshot has the disks {}; name one of them", names.join(", "));
                return Err(Error::Invalid { reason });
            }
            (Some(name), disks) => disks
                .iter()
                .find(|disk| disk.name == *name)
                .ok_or_else(|| Error::NotFound { what: "disk", name: name.clone() })?,
        };
        let outcome =
            restore::run(self.parts.pack_store(), &manifest, disk, request, target, progress, cancel);
        self.parts.sync_damage();
        outcome
    }

    /// Decodes every chunk of a snapshot and compares it with its id.
    /// # Errors
    /// `NotFound`, `Cancelled`, `Busy`; errors of the store that are not damage.
    pub fn verify(
        &self,
        snapshot: SnapshotId,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<CheckReport> {
        let _shared = self.parts.enter()?;
        let manifest = match self.find(snapshot) {
            Err(error) if error.is_corruption() => {
                let mut report = CheckReport { snapshots: 1, ..CheckReport::default() };
                report.note(error, Some(snapshot))?;
                return Ok(report);
            }
            found => found?,
        };
        self.parts.index_for_reading(manifest.vm)?;
        let outcome = check::verify(&self.parts, &manifest, progress, cancel);
        self.parts.sync_damage();
        outcome
    }

    /// Checks the whole repository. The report lists the damage; an error means that the check could not go
    /// on.
    /// # Errors
    /// `Cancelled`, `Busy`; errors of the store that are not damage.
    pub fn check(
        &self,
        read_data: ReadData,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<CheckReport> {
        let _shared = self.parts.enter()?;
        let index_error = readable(self.parts.index_all_packs())?;
        let outcome = check::check(&self.parts, read_data, progress, cancel);
        self.parts.sync_damage();
        let mut report = outcome?;
        if let Some(error) = index_error {
            report.note(error, None)?;
        }
        Ok(report)
    }

    /// Forgets snapshots: they are no longer visible. The next `delete` or `prune` frees their space.
    /// # Errors
    /// `NotFound`, `Denied` (one of them is held, or this handle has no delete role): nothing was forgotten.
    /// `Damaged`; errors of the store.
    pub fn forget(&self, snapshots: &[SnapshotId]) -> Result<ForgetSummary> {
        self.forget_with(snapshots, &ForgetOptions::default())
    }

    /// As [`Repository::forget`], with options.
    /// # Errors
    /// As [`Repository::forget`]. `Denied` also if a hold has ended only by the present clock, and no
    /// snapshot of the last 45 days confirms the clock.
    pub fn forget_with(&self, snapshots: &[SnapshotId], options: &ForgetOptions) -> Result<ForgetSummary> {
        self.roles().require(Role::Delete)?;
        let by_vm = self.by_vm(snapshots)?;
        let all = by_vm.iter().flat_map(|(_, published)| published);
        let clock = self.clock_for_holds(all.clone().map(|one| one.held_until_ms), options.accept_clock)?;
        if let Some((clock, held)) = clock.and_then(|clock| {
            let held = all.clone().find(|one| clock.holds(one.held_until_ms))?;
            Some((clock, held))
        }) {
            let reason = clock.refusal(&held.snapshot.short(), held.held_until_ms);
            return Err(Error::Denied { reason });
        }
        let mut summary = ForgetSummary::default();
        self.append_listed(&by_vm, |snapshots| {
            summary.forgotten.extend_from_slice(&snapshots);
            Record::Forget { snapshots }
        })?;
        Ok(summary)
    }

    /// Holds snapshots: until `until_ms` (ms since 1970) they cannot be forgotten; 0 ends a hold.
    /// # Errors
    /// `NotFound`, `Denied` (this handle has no delete role): nothing was held. `Damaged`; errors of the
    /// store.
    pub fn hold(&self, snapshots: &[SnapshotId], until_ms: u64) -> Result<()> {
        self.roles().require(Role::Delete)?;
        let by_vm = self.by_vm(snapshots)?;
        self.append_listed(&by_vm, |snapshots| Record::Hold { snapshots, until_ms })
    }

    /// Records that a [`Repository::verify`] of the snapshot found no damage. Retention keeps the newest
    /// verified snapshot.
    /// # Errors
    /// `NotFound`; `Denied`: this handle has no delete role. Errors of the store.
    pub fn note_verified(&self, snapshot: SnapshotId) -> Result<()> {
        self.roles().require(Role::Delete)?;
        let by_vm = self.by_vm(&[snapshot])?;
        self.append_listed(&by_vm, |snapshots| Record::Verified { snapshots })
    }

    /// Accepts snapshots despite the warnings in their manifests: retention counts them as good from then on.
    /// # Errors
    /// `NotFound`, `Denied` (this handle has no delete role): nothing was accepted. `Damaged`; errors of the
    /// store.
    pub fn accept(&self, snapshots: &[SnapshotId]) -> Result<()> {
        self.roles().require(Role::Delete)?;
        let by_vm = self.by_vm(snapshots)?;
        self.append_listed(&by_vm, |snapshots| Record::Accepted { snapshots })
    }

    /// Appends to the log of each VM one record, or several if it has many of the snapshots.
    fn append_listed(
        &self,
        by_vm: &[(Uuid, Vec<PublishedSnapshot>)],
        mut record: impl FnMut(Vec<SnapshotId>) -> Record,
    ) -> Result<()> {
        for (vm, published) in by_vm {
            for listed in published.chunks(MAX_LISTED) {
                let snapshots = listed.iter().map(|published| published.snapshot).collect();
                self.parts.append(*vm, &record(snapshots))?;
            }
        }
        Ok(())
    }

    /// Frees the space of forgotten snapshots: removes packs without a live frame, rewrites none.
    /// # Errors
    /// As [`Repository::prune`].
    pub fn delete(&self, progress: &dyn Progress, cancel: &CancelFlag) -> Result<PruneSummary> {
        self.prune(&PruneOptions { max_unused_percent: 100, ..PruneOptions::default() }, progress, cancel)
    }

    /// As `delete`; also rewrites packs with dead frames, and ends unfinished backups and removes their
    /// files.
    /// # Errors
    /// `Busy`: another operation runs. `Damaged`: a snapshot cannot be read, so nothing was removed; forget
    /// it first. `Denied`: this handle has no delete role. `Cancelled`; errors of the store.
    pub fn prune(
        &self,
        options: &PruneOptions,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<PruneSummary> {
        if !options.dry_run {
            self.roles().require(Role::Delete)?;
        }
        let _alone = self.parts.locks().alone()?;
        self.parts.catch_up();
        let outcome = prune::run(&self.parts, options, progress, cancel);
        if self.parts.is_written_by_several()
            && !options.dry_run
            && let Err(error) = clear_heartbeats(self.parts.catalog().files())
        {
            tracing::debug!(%error, "old heartbeats could not be removed");
        }
        self.parts.pack_store().forget_cached();
        self.parts.note_change();
        outcome
    }

    /// Sizes and counts of the repository.
    /// # Errors
    /// `Damaged`; errors of the store.
    pub fn stats(&self) -> Result<RepositoryStats> {
        let mut stats = RepositoryStats::default();
        let store = &*self.parts.pack_store().volumes.store;
        let bytes_of = |vid: VolumeId| Ok::<_, Error>(store.volume_stats(vid)?.bytes);
        for vm in self.parts.directory().all()? {
            let state = self.parts.vm_state(vm.uuid)?;
            stats.unfinished_sessions += state.open.len() as u64;
            stats.snapshots += state.published.len() as u64;
            stats.vms += u64::from(!state.published.is_empty());
            for published in &state.published {
                match self.parts.manifest(vm.uuid, published) {
                    Ok(manifest) => {
                        let logical = manifest.counts.logical_bytes;
                        stats.logical_bytes = stats.logical_bytes.saturating_add(logical);
                        let holes = |disk: &ManifestDisk| disk.size_bytes.saturating_sub(disk.data_bytes);
                        stats.hole_bytes += manifest.disks.iter().map(holes).sum::<u64>();
                    }
                    Err(error) if error.is_corruption() => stats.damaged_snapshots += 1,
                    Err(error) => return Err(error),
                }
            }
            if let Some(vid) = self.parts.pack_store().volumes.meta(vm.uuid, false)? {
                stats.metadata_bytes += bytes_of(vid)?;
            }
        }
        stats.metadata_bytes += bytes_of(self.parts.catalog().files().vid())?;
        readable(self.parts.index_new_packs())?;
        reindex::for_each_pack(self.parts.pack_store(), PackScope::All, |pack| {
            stats.packs += 1;
            match pack.home {
                PackHome::Shared | PackHome::Private(_) => {
                    stats.chunk_pack_bytes += pack.info.size;
                    let entry = self.parts.pack_store().index.pack(pack.number)?;
                    stats.chunks += entry.map_or(0, |entry| u64::from(entry.frames));
                }
                PackHome::Recipes(_) => stats.recipe_pack_bytes += pack.info.size,
            }
            Ok(())
        })?;
        Ok(stats)
    }

    /// Clears the index and rebuilds it from pack footers.
    /// # Errors
    /// `Busy`: another operation runs. `Cancelled`; errors of the store and the index.
    pub fn repair_index(&self, progress: &dyn Progress, cancel: &CancelFlag) -> Result<IndexSummary> {
        let _alone = self.parts.locks().alone()?;
        self.parts.catch_up();
        self.parts.pack_store().forget_cached();
        self.parts.pack_store().index.clear()?;
        self.parts.forget_indexed();
        let summary = reindex::reindex(self.parts.pack_store(), PackScope::All, progress, cancel);
        self.parts.note_indexed(summary.is_ok());
        self.parts.note_change();
        summary
    }

    /// Makes logs of the catalog readable again without their lost or damaged records. Returns a description
    /// of each loss. If a lost record had removed something, that is back as far as its bytes exist: check
    /// the snapshots and remove the damaged ones.
    /// # Errors
    /// `Busy`: another operation runs. `Denied`: this handle has no delete role. Errors of the store.
    pub fn salvage_catalog(&self) -> Result<Vec<String>> {
        self.roles().require(Role::Delete)?;
        let _alone = self.parts.locks().alone()?;
        let lost = salvage_logs(self.parts.catalog())?;
        self.parts.note_change();
        Ok(lost.iter().map(Error::to_string).collect())
    }

    /// Damaged frames that could not be removed from the index, because the store is open for reading only.
    pub fn lost_frames(&self) -> Vec<LostFrame> {
        self.parts.pack_store().unnoted()
    }

    /// Removes damaged frames that another handle found from the index, so that the next backup stores their
    /// chunks anew. Durable on return.
    /// # Errors
    /// Errors of the index.
    pub fn note_lost(&self, frames: &[LostFrame]) -> Result<()> {
        let _shared = self.parts.enter()?;
        self.parts.index_new_packs()?;
        frames.iter().for_each(|frame| self.parts.pack_store().note_lost(frame));
        self.parts.pack_store().index.sync()
    }
}

/// Refuses a role key for a repository that is not encrypted: an attacker may have replaced the real one with
/// it.
fn refuse_clear(volumes: &dyn VolumeStore, vid: VolumeId, domain: Uuid) -> Result<()> {
    let mut is_clear = false;
    for_each_slot(volumes, vid, domain, |_, slot| {
        is_clear |= !slot.needs_password();
        Ok(true)
    })?;
    match is_clear {
        true => Err(Error::PasswordNotUsed),
        false => Ok(()),
    }
}

pub(crate) fn snapshot_disk(disk: &ManifestDisk) -> SnapshotDisk {
    SnapshotDisk {
        name: disk.name.clone(),
        size_bytes: disk.size_bytes,
        serial: disk.serial.clone(),
        mode: disk.mode,
        reason: disk.reason.clone(),
        bitmap: disk.bitmap.as_ref().map(|bitmap| bitmap.name.clone()),
        sentinel: disk.sentinel.clone(),
        identity: disk.identity.clone().unwrap_or_default(),
    }
}
