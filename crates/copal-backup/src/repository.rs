//! The façade: one repository over a store of volumes and an index.
//!
//! Everything blocks; call from a thread of your own. Safe to share between threads: backups of
//! different VMs, restores and checks run side by side, `prune` and `delete` run alone.

use crate::error::Result;
use crate::progress::{CancelFlag, Progress};
use crate::request::*;
use crate::target::Target;
use copal_volume::VolumeStore;
use std::sync::Arc;

/// Where the chunk index lives. It holds nothing that the packs do not: delete it at will.
#[derive(Clone)]
pub enum IndexHome {
    /// In keyspaces of this engine, whose name begins with `backup-`.
    Kv(copal_kv::Store),
    /// In memory, built from pack footers at each open: for small repositories and read-only media.
    Memory,
}

/// An open repository.
pub struct Repository {
    _p: Arc<dyn VolumeStore>,
}

impl Repository {
    /// Makes a repository in an empty store.
    pub fn init(
        volumes: Arc<dyn VolumeStore>,
        index: IndexHome,
        options: &InitOptions,
    ) -> Result<Repository> {
        todo!()
    }
    /// Opens the repository of a store.
    pub fn open(volumes: Arc<dyn VolumeStore>, index: IndexHome, unlock: &Unlock) -> Result<Repository> {
        todo!()
    }
    /// Whether the store holds a repository, and if so whether it needs a password. No key needed.
    pub fn probe(volumes: &dyn VolumeStore) -> Result<Option<bool>> {
        todo!()
    }
    /// What this repository is.
    pub fn info(&self) -> RepositoryInfo {
        todo!()
    }
    /// Backs up one VM.
    pub fn backup(
        &self,
        request: BackupRequest,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<BackupSummary> {
        todo!()
    }
    /// All VMs of the catalog, by name.
    pub fn vms(&self) -> Result<Vec<Vm>> {
        todo!()
    }
    /// Published snapshots of one VM (name or UUID) or of all, oldest first.
    pub fn snapshots(&self, vm: Option<&str>) -> Result<Vec<Snapshot>> {
        todo!()
    }
    /// The snapshot that `spec` means: an id, a unique prefix of at least 4 digits, or `latest`.
    pub fn resolve(&self, spec: &str, vm: Option<&str>) -> Result<Snapshot> {
        todo!()
    }
    /// What the disks of a snapshot consist of.
    pub fn ls(&self, snapshot: SnapshotId) -> Result<Vec<DiskListing>> {
        todo!()
    }
    /// Writes one disk of a snapshot into `target`.
    pub fn restore(
        &self,
        request: &RestoreRequest,
        target: &dyn Target,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<RestoreSummary> {
        todo!()
    }
    /// Decodes every chunk of a snapshot and compares it with its id.
    pub fn verify(
        &self,
        snapshot: SnapshotId,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<CheckReport> {
        todo!()
    }
    /// Looks at the whole repository. Damage is in the report; an error means the check could not go on.
    pub fn check(
        &self,
        read_data: ReadData,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<CheckReport> {
        todo!()
    }
    /// Makes snapshots invisible. Their space returns at the next `delete` or `prune`.
    pub fn forget(&self, snapshots: &[SnapshotId]) -> Result<ForgetSummary> {
        todo!()
    }
    /// Frees what no snapshot names any more: unlinks packs without a live frame, rewrites none.
    pub fn delete(&self, progress: &dyn Progress, cancel: &CancelFlag) -> Result<PruneSummary> {
        todo!()
    }
    /// `delete`, and rewrites packs that hold dead frames; ends and sweeps unfinished backups.
    pub fn prune(
        &self,
        options: &PruneOptions,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<PruneSummary> {
        todo!()
    }
    /// Size and shape.
    pub fn stats(&self) -> Result<RepositoryStats> {
        todo!()
    }
    /// Throws the index away and builds it anew from pack footers.
    pub fn repair_index(&self, progress: &dyn Progress, cancel: &CancelFlag) -> Result<IndexSummary> {
        todo!()
    }
}
