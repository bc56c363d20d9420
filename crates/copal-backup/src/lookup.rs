//! Which snapshots there are, and which one a person means.
//!
//! Invariant: a damaged manifest stands in the way of its own snapshot only. Ids, times and holds come from the records
//! that published the snapshots; a manifest is decoded for the one that is meant, and for those that are listed.

use crate::catalog::vm::Published;
use crate::error::{Error, Result};
use crate::manifest::{self, Manifest};
use crate::repository::{Repository, snapshot_disk};
use crate::request::{BackupCounts, Snapshot, SnapshotId, Vm};
use copal_volume::{ReadOptions, VolumeError};
use uuid::Uuid;

/// Fewer digits of an id mean nothing.
pub(crate) const MIN_DIGITS: usize = 4;

impl Repository {
    /// All VMs of the catalog, by name.
    /// # Errors
    /// `Damaged`; those of the store.
    pub fn vms(&self) -> Result<Vec<Vm>> {
        self.directory().all()
    }

    /// Published snapshots of one VM (name or UUID) or of all, oldest first; those whose manifest is damaged say so.
    /// # Errors
    /// `NotFound`, `Damaged` (the catalog is); those of the store.
    pub fn snapshots(&self, vm: Option<&str>) -> Result<Vec<Snapshot>> {
        let published = self.published(vm)?;
        let listed = published
            .iter()
            .map(|(vm, published)| self.describe(vm, published));
        listed.collect()
    }

    /// The snapshot that `spec` means: an id, a unique prefix of at least 4 digits, or `latest`.
    /// # Errors
    /// `NotFound`, `Ambiguous`, `Invalid`, `Damaged` (its manifest, or the catalog, is); those of the store.
    pub fn resolve(&self, spec: &str, vm: Option<&str>) -> Result<Snapshot> {
        let (vm, published) = self.meant(spec, vm)?;
        let manifest = self.manifest(vm.uuid, &published)?;
        Ok(snapshot_of(&vm, &published, Ok(manifest)))
    }

    /// As [`Repository::resolve`], for those who need no manifest: one that is damaged says so.
    /// # Errors
    /// `NotFound`, `Ambiguous`, `Invalid`, `Damaged` (the catalog is); those of the store.
    pub fn resolve_damaged(&self, spec: &str, vm: Option<&str>) -> Result<Snapshot> {
        let (vm, published) = self.meant(spec, vm)?;
        self.describe(&vm, &published)
    }

    /// What the logs say is visible, oldest first.
    fn published(&self, vm: Option<&str>) -> Result<Vec<(Vm, Published)>> {
        let vms = match vm {
            Some(name) => vec![self.directory().find(name)?],
            None => self.directory().all()?,
        };
        let mut all = Vec::new();
        for vm in vms {
            let published = self.vm_state(vm.uuid)?.published;
            all.extend(published.into_iter().map(|published| (vm.clone(), published)));
        }
        all.sort_by_key(|(_, published)| (published.created_ms, published.snapshot));
        Ok(all)
    }

    fn meant(&self, spec: &str, vm: Option<&str>) -> Result<(Vm, Published)> {
        let not_found = || Error::NotFound {
            what: "snapshot",
            name: spec.to_owned(),
        };
        let mut published = self.published(vm)?;
        if spec == "latest" {
            return published.pop().ok_or_else(not_found);
        }
        let wanted = spec.to_ascii_lowercase();
        if wanted.len() < MIN_DIGITS {
            return Err(Error::Invalid {
                reason: format!(
                    "{spec:?} is too little to name a snapshot; give {MIN_DIGITS} digits of its id or more, or `latest`"
                ),
            });
        }
        published.retain(|(_, one)| one.snapshot.to_string().starts_with(&wanted));
        match published.len() {
            0 | 1 => published.pop().ok_or_else(not_found),
            count => Err(Error::Ambiguous {
                name: spec.to_owned(),
                count,
            }),
        }
    }

    fn describe(&self, vm: &Vm, published: &Published) -> Result<Snapshot> {
        match self.manifest(vm.uuid, published) {
            Ok(manifest) => Ok(snapshot_of(vm, published, Ok(manifest))),
            Err(Error::Damaged { detail, .. }) => Ok(snapshot_of(vm, published, Err(detail))),
            Err(error) if error.is_corruption() => Ok(snapshot_of(vm, published, Err(error.to_string()))),
            Err(error) => Err(error),
        }
    }

    /// The manifest of a published snapshot.
    pub(crate) fn manifest(&self, vm: Uuid, published: &Published) -> Result<Manifest> {
        let id = published.snapshot;
        let damaged = |detail: String| Error::Damaged {
            what: format!("manifest {id}"),
            detail,
        };
        let missing = || damaged("it is gone".into());
        let volumes = &self.vault().volumes;
        let vid = volumes.meta(vm, false)?.ok_or_else(missing)?;
        let name = manifest::file_name(id);
        let read = ReadOptions::default();
        let file = match volumes
            .store
            .get(vid, name.as_bytes(), 0..manifest::MAX_FILE_BYTES, &read)
        {
            Err(VolumeError::NotFound) => return Err(missing()),
            Err(VolumeError::Corrupt { what }) => return Err(damaged(what)),
            file => file?,
        };
        if manifest::hash(&file) != published.manifest {
            return Err(damaged("its bytes are not those its Publish record names".into()));
        }
        let manifest = Manifest::decode(&file, id, &self.vault().keys).map_err(damaged)?;
        if manifest.vm != vm {
            return Err(damaged("it belongs to another VM".into()));
        }
        Ok(manifest)
    }

    /// The manifest of a snapshot, whichever VM it is of.
    pub(crate) fn find(&self, snapshot: SnapshotId) -> Result<Manifest> {
        for vm in self.directory().all()? {
            let state = self.vm_state(vm.uuid)?;
            if let Some(published) = state.published.iter().find(|one| one.snapshot == snapshot) {
                return self.manifest(vm.uuid, published);
            }
        }
        Err(Error::NotFound {
            what: "snapshot",
            name: snapshot.to_string(),
        })
    }
}

/// `manifest`: what it says, or why it cannot be read.
fn snapshot_of(vm: &Vm, published: &Published, manifest: std::result::Result<Manifest, String>) -> Snapshot {
    let mut snapshot = Snapshot {
        id: published.snapshot,
        vm: vm.clone(),
        sequence: published.sequence,
        created_ms: published.created_ms,
        base: None,
        disks: Vec::new(),
        tags: Vec::new(),
        description: String::new(),
        counts: BackupCounts::default(),
        is_verified: published.is_verified,
        held_until_ms: published.held_until_ms,
        damage: None,
    };
    match manifest {
        Err(detail) => snapshot.damage = Some(detail),
        Ok(manifest) => {
            snapshot.base = manifest.base;
            snapshot.disks = manifest.disks.iter().map(snapshot_disk).collect();
            snapshot.tags = manifest.tags;
            snapshot.description = manifest.description;
            snapshot.counts = manifest.counts;
        }
    }
    snapshot
}
