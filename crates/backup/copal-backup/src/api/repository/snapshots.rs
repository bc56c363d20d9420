//! Methods of [`Repository`]: backups, look-up and use of snapshots, restores, pins.

use super::Repository;
use crate::api::listing::list_disks;
use crate::api::snapshot_records;
use crate::backup::{Collaboration, back_up};
use crate::catalog::pins::Shown;
use crate::check;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress, Silent};
use crate::request::*;
use crate::restore;
use crate::restore::serve::pins::{self, CatalogPin};
use crate::retention::ClockRange;
use copal_disk::target::Target;

impl Repository {
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
        back_up(&self.parts, request, others, progress, cancel)
    }

    /// All VMs of the catalog, by name.
    /// # Errors
    /// `Damaged`; errors of the store.
    pub fn vms(&self) -> Result<Vec<Vm>> {
        self.parts.directory().all()
    }

    /// Published snapshots of one VM (name or UUID) or of all, oldest first. A snapshot whose manifest is
    /// damaged carries the damage.
    /// # Errors
    /// `NotFound`; `Damaged`: the catalog is damaged. Errors of the store.
    pub fn snapshots(&self, vm: Option<&str>) -> Result<Vec<Snapshot>> {
        self.lookup().snapshots(vm)
    }

    /// As [`Repository::snapshots`], but lists VMs with a damaged log instead of failing.
    /// # Errors
    /// `NotFound`; `Damaged`: the list of VMs is damaged. Errors of the store.
    pub fn list(&self, vm: Option<&str>) -> Result<Listing> {
        if vm.is_none() {
            self.hold_catalog()?;
        }
        self.lookup().list(vm)
    }

    /// The store's clock, compared with the times of all snapshots.
    /// # Errors
    /// `Damaged`: the list of VMs is damaged. Errors of the store.
    pub fn clock(&self) -> Result<ClockRange> {
        self.lookup().clock()
    }

    /// As [`Repository::clock`], for a check of holds; `None` if no snapshot is held: then the clock does not
    /// matter, and no logs are read.
    /// # Errors
    /// As [`Repository::clock`].
    pub fn clock_for_holds(
        &self,
        held_until_ms: impl Iterator<Item = u64>,
        accept_clock: bool,
    ) -> Result<Option<ClockRange>> {
        self.lookup().clock_for_holds(held_until_ms, accept_clock)
    }

    /// Resolves `spec`: an id, a unique prefix of at least 4 digits, or `latest`. `latest` is refused if
    /// several VMs have snapshots and none is named.
    /// # Errors
    /// `NotFound`, `Ambiguous`, `WhichVm`, `Invalid`; `Damaged`: the manifest or the catalog is damaged.
    /// Errors of the store.
    pub fn resolve(&self, spec: &str, vm: Option<&str>) -> Result<Snapshot> {
        self.lookup().resolve(spec, vm)
    }

    /// As [`Repository::resolve`], for callers that need no manifest: a damaged one is reported in the
    /// result.
    /// # Errors
    /// `NotFound`, `Ambiguous`, `WhichVm`, `Invalid`; `Damaged`: the catalog is damaged. Errors of the store.
    pub fn resolve_damaged(&self, spec: &str, vm: Option<&str>) -> Result<Snapshot> {
        self.lookup().resolve_damaged(spec, vm)
    }

    /// Whether `spec` names no visible snapshot, but a forgotten one that is not freed yet.
    /// # Errors
    /// `Damaged`: the catalog is damaged. Errors of the store.
    pub fn is_forgotten(&self, spec: &str) -> Result<bool> {
        self.lookup().is_forgotten(spec)
    }

    /// Whether a snapshot is still published, by the present logs.
    /// # Errors
    /// `Damaged`: the catalog is damaged. Errors of the store.
    pub fn is_published(&self, snapshot: SnapshotId) -> Result<bool> {
        match self.lookup().find(snapshot) {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            // The snapshot is published, although its manifest is damaged.
            Err(error) if error.is_corruption() => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Sizes, chunks and segments of the disks of a snapshot.
    /// # Errors
    /// `NotFound`, `Damaged`, `Busy`; errors of the store.
    pub fn ls(&self, snapshot: SnapshotId) -> Result<Vec<DiskListing>> {
        let _shared = self.parts.enter()?;
        let manifest = self.lookup().find(snapshot)?;
        self.parts.index_for_reading(manifest.vm, &Silent, &CancelFlag::new())?;
        list_disks(&self.parts, &manifest)
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
        let manifest = self.lookup().find(request.snapshot)?;
        self.parts.index_for_reading(manifest.vm, progress, cancel)?;
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
        let manifest = match self.lookup().find(snapshot) {
            Err(error) if error.is_corruption() => {
                let mut report = CheckReport { snapshots: 1, ..CheckReport::default() };
                report.note(error, Some(snapshot))?;
                return Ok(report);
            }
            found => found?,
        };
        self.parts.index_for_reading(manifest.vm, progress, cancel)?;
        let outcome = check::verify::verify(&self.parts, &manifest, progress, cancel);
        self.parts.sync_damage();
        outcome
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
        snapshot_records::forget_with(&self.parts, &self.lookup(), snapshots, options)
    }

    /// Holds snapshots: until `until_ms` (ms since 1970) they cannot be forgotten; 0 ends a hold.
    /// # Errors
    /// `NotFound`, `Denied` (this handle has no delete role): nothing was held. `Damaged`; errors of the
    /// store.
    pub fn hold(&self, snapshots: &[SnapshotId], until_ms: u64) -> Result<()> {
        snapshot_records::hold(&self.parts, &self.lookup(), snapshots, until_ms)
    }

    /// Records that a [`Repository::verify`] of the snapshot found no damage. Retention keeps the newest
    /// verified snapshot.
    /// # Errors
    /// `NotFound`; `Denied`: this handle has no delete role. Errors of the store.
    pub fn note_verified(&self, snapshot: SnapshotId) -> Result<()> {
        snapshot_records::note_verified(&self.parts, &self.lookup(), snapshot)
    }

    /// Accepts snapshots despite the warnings in their manifests: retention counts them as good from then on.
    /// # Errors
    /// `NotFound`, `Denied` (this handle has no delete role): nothing was accepted. `Damaged`; errors of the
    /// store.
    pub fn accept(&self, snapshots: &[SnapshotId]) -> Result<()> {
        snapshot_records::accept(&self.parts, &self.lookup(), snapshots)
    }

    /// Pins the scope of an export, until [`CatalogPin::end`].
    /// # Errors
    /// `Denied`: this client may only read. Errors of the store.
    pub fn pin(&self, shown: Shown) -> Result<CatalogPin> {
        pins::pin(&self.parts, shown)
    }

    /// Scopes of all pins, each once; expired pins are deleted.
    /// # Errors
    /// Errors of the store.
    pub fn pinned(&self) -> Result<Vec<Shown>> {
        pins::pinned(&self.parts)
    }
}
