//! Finds snapshots by id, prefix or `latest`.
//!
//! Ids, times and holds come from the Publish records. A manifest is decoded only for the snapshot that is
//! asked for, and for listed snapshots.
//!
//! Invariant: a damaged manifest hides only its own snapshot, and a damaged log only the snapshots of its VM.
//! If the damaged part could hold the answer, the look-up fails.
//!
//! `latest` is the snapshot of the VM that was made last, even if its time is not the latest: a wrong clock makes no
//! backup older or newer. Only retention goes by time (`retention`).

use crate::api::listing::snapshot_disk;
use crate::api::snapshot_names::SnapshotNames;
use crate::catalog::vm::PublishedSnapshot;
use crate::request::error::{Error, Result};
use crate::request::{BackupCounts, Listing, MIN_DIGITS, Snapshot, SnapshotId, Vm};
use crate::retention::{ClockRange, Misdated, misdated};
use crate::sessions::parts::RepositoryParts;
use crate::snapshot::manifest::Manifest;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use uuid::Uuid;

/// A shorter prefix may also match a snapshot in a log that cannot be read.
const SURE_DIGITS: usize = 8;

/// VMs that an error message lists.
const NAMED_VMS: usize = 5;

/// A visible snapshot with its VM.
#[derive(Clone)]
struct FoundSnapshot {
    vm: Vm,
    published: PublishedSnapshot,
    misdated: Option<Misdated>,
}

/// Visible snapshots in the order of publication, and the VMs whose log cannot be read.
struct VisibleSnapshots {
    published: Vec<FoundSnapshot>,
    damaged: Vec<(Vm, Error)>,
}

impl VisibleSnapshots {
    /// All snapshots, or the first damage.
    fn into_result(self) -> Result<Vec<FoundSnapshot>> {
        match self.damaged.into_iter().next() {
            None => Ok(self.published),
            Some((_, error)) => Err(error),
        }
    }
}

/// Looks up the snapshots of a repository.
pub(crate) struct SnapshotLookup<'a> {
    parts: &'a RepositoryParts,
    names: &'a SnapshotNames,
}

impl<'a> SnapshotLookup<'a> {
    pub(crate) fn new(parts: &'a RepositoryParts, names: &'a SnapshotNames) -> SnapshotLookup<'a> {
        SnapshotLookup { parts, names }
    }

    /// Carries out `Repository::snapshots`.
    pub(crate) fn snapshots(&self, vm: Option<&str>) -> Result<Vec<Snapshot>> {
        self.described(&self.visible(vm)?.into_result()?)
    }

    /// Carries out `Repository::list`.
    pub(crate) fn list(&self, vm: Option<&str>) -> Result<Listing> {
        let VisibleSnapshots { published, damaged } = self.visible(vm)?;
        let damaged = damaged.into_iter().map(|(vm, error)| (vm, error.to_string()));
        Ok(Listing { snapshots: self.described(&published)?, damaged: damaged.collect() })
    }

    fn described(&self, published: &[FoundSnapshot]) -> Result<Vec<Snapshot>> {
        let mut by_vm: HashMap<Uuid, Vec<usize>> = HashMap::new();
        for (at, found) in published.iter().enumerate() {
            by_vm.entry(found.vm.uuid).or_default().push(at);
        }
        let mut described: Vec<Option<Snapshot>> = published.iter().map(|_| None).collect();
        for (vm, places) in by_vm {
            let of_vm: Vec<PublishedSnapshot> = places.iter().map(|at| published[*at].published).collect();
            for (at, manifest) in places.into_iter().zip(self.parts.any_manifests(vm, &of_vm)?) {
                described[at] = Some(described_by(&published[at], manifest)?);
            }
        }
        Ok(described.into_iter().flatten().collect())
    }

    /// Carries out `Repository::clock`.
    pub(crate) fn clock(&self) -> Result<ClockRange> {
        let VisibleSnapshots { published, .. } = self.visible(None)?;
        let dated = published.iter().filter(|found| found.misdated.is_none());
        let times = dated.map(|found| found.published.created_ms).collect();
        Ok(ClockRange::new(times, self.parts.pack_store().volumes.store.now_ms()))
    }

    /// Carries out `Repository::clock_for_holds`.
    pub(crate) fn clock_for_holds(
        &self,
        mut held_until_ms: impl Iterator<Item = u64>,
        accept_clock: bool,
    ) -> Result<Option<ClockRange>> {
        if held_until_ms.all(|until_ms| until_ms == 0) {
            return Ok(None);
        }
        let clock = self.clock()?;
        Ok(Some(if accept_clock { clock.accepted() } else { clock }))
    }

    /// Carries out `Repository::resolve`.
    pub(crate) fn resolve(&self, spec: &str, vm: Option<&str>) -> Result<Snapshot> {
        let found = self.resolve_spec(spec, vm)?;
        let manifest = self.parts.any_manifest(found.vm.uuid, &found.published)?;
        Ok(snapshot_of(&found, Ok(manifest)))
    }

    /// Carries out `Repository::resolve_damaged`.
    pub(crate) fn resolve_damaged(&self, spec: &str, vm: Option<&str>) -> Result<Snapshot> {
        let found = self.resolve_spec(spec, vm)?;
        self.describe(&found)
    }

    /// Carries out `Repository::is_forgotten`.
    pub(crate) fn is_forgotten(&self, spec: &str) -> Result<bool> {
        match self.resolve_damaged(spec, None) {
            Err(Error::NotFound { .. }) if spec.len() >= MIN_DIGITS => {}
            // A visible snapshot, or an invalid name: the caller's own look-up reports that.
            _ => return Ok(false),
        }
        let digits = spec.to_ascii_lowercase();
        for vm in self.parts.directory().all()? {
            let state = self.parts.vm_state(vm.uuid)?;
            let mut forgotten =
                state.forgotten.iter().map(|one| one.snapshot).chain(state.freed.iter().copied());
            if forgotten.any(|snapshot| snapshot.to_string().starts_with(&digits)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Resolves `spec` and remembers the VM of the snapshot.
    fn resolve_spec(&self, spec: &str, vm: Option<&str>) -> Result<FoundSnapshot> {
        let found = self.find_match(spec, vm)?;
        let snapshot = found.published.snapshot;
        self.names.remember(snapshot, found.vm.uuid);
        Ok(found)
    }

    /// A snapshot that was named before, if it is still there.
    fn cached_snapshot(&self, snapshot: SnapshotId) -> Result<Option<(Uuid, PublishedSnapshot)>> {
        let Some(vm) = self.names.vm_of(snapshot) else {
            return Ok(None);
        };
        let state = self.parts.vm_state(vm)?;
        let mut published = state.published.iter();
        Ok(published.find(|one| one.snapshot == snapshot).map(|one| (vm, *one)))
    }

    fn visible(&self, vm: Option<&str>) -> Result<VisibleSnapshots> {
        let vms = match vm {
            Some(name) => vec![self.parts.directory().find(name)?],
            None => self.parts.directory().all()?,
        };
        let now_ms = self.parts.pack_store().volumes.store.now_ms();
        let (mut all, mut damaged) = (Vec::new(), Vec::new());
        for vm in vms {
            match self.parts.vm_state(vm.uuid) {
                Ok(state) => {
                    let times: Vec<u64> = state.published.iter().map(|one| one.created_ms).collect();
                    let dated = state.published.iter().zip(misdated(&times, now_ms));
                    all.extend(dated.map(|(published, misdated)| FoundSnapshot {
                        vm: vm.clone(),
                        published: *published,
                        misdated,
                    }));
                }
                Err(error) if error.is_corruption() => damaged.push((vm, error)),
                Err(error) => return Err(error),
            }
        }
        all.sort_by_key(|found| (found.published.stored_ms, found.published.snapshot));
        Ok(VisibleSnapshots { published: all, damaged })
    }

    fn find_match(&self, spec: &str, vm: Option<&str>) -> Result<FoundSnapshot> {
        let not_found = || Error::NotFound { what: "snapshot", name: spec.to_owned() };
        let visible = self.visible(vm)?;
        if spec == "latest" {
            let mut published = visible.into_result()?;
            refuse_several_vms(&published)?;
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
        let is_meant = |found: &FoundSnapshot| found.published.snapshot.to_string().starts_with(&wanted);
        let is_sure = wanted.len() >= SURE_DIGITS && visible.published.iter().any(is_meant);
        let mut published = if is_sure { visible.published } else { visible.into_result()? };
        published.retain(is_meant);
        match published.len() {
            0 | 1 => published.pop().ok_or_else(not_found),
            count => Err(Error::Ambiguous { name: spec.to_owned(), count }),
        }
    }

    fn describe(&self, found: &FoundSnapshot) -> Result<Snapshot> {
        described_by(found, self.parts.any_manifest(found.vm.uuid, &found.published))
    }

    /// The manifest of a snapshot of any VM.
    pub(crate) fn find(&self, snapshot: SnapshotId) -> Result<Manifest> {
        if let Some((vm, published)) = self.cached_snapshot(snapshot)? {
            return self.parts.any_manifest(vm, &published);
        }
        let VisibleSnapshots { published, damaged } = self.visible(None)?;
        if let Some(found) = published.iter().find(|found| found.published.snapshot == snapshot) {
            return self.parts.any_manifest(found.vm.uuid, &found.published);
        }
        Err(damaged.into_iter().next().map_or_else(
            || Error::NotFound { what: "snapshot", name: snapshot.to_string() },
            |(_, error)| error,
        ))
    }

    /// The given snapshots, grouped by VM.
    /// # Errors
    /// `NotFound`; `Ambiguous`: snapshots of several VMs have this id. `Damaged`; errors of the store.
    pub(crate) fn by_vm(&self, snapshots: &[SnapshotId]) -> Result<Vec<(Uuid, Vec<PublishedSnapshot>)>> {
        let mut by_vm: BTreeMap<Uuid, Vec<PublishedSnapshot>> = BTreeMap::new();
        let mut left: HashSet<SnapshotId> = snapshots.iter().copied().collect();
        for snapshot in snapshots {
            if let Some((vm, published)) = self.cached_snapshot(*snapshot)?
                && left.remove(snapshot)
            {
                by_vm.entry(vm).or_default().push(published);
            }
        }
        if left.is_empty() {
            return Ok(by_vm.into_iter().collect());
        }
        let VisibleSnapshots { published, damaged } = self.visible(None)?;
        refuse_twice(&left, &published)?;
        for FoundSnapshot { vm, published, .. } in published {
            if left.remove(&published.snapshot) {
                by_vm.entry(vm.uuid).or_default().push(published);
            }
        }
        match (left.into_iter().next(), damaged.into_iter().next()) {
            (None, _) => Ok(by_vm.into_iter().collect()),
            (Some(_), Some((_, error))) => Err(error),
            (Some(unknown), None) => Err(Error::NotFound { what: "snapshot", name: unknown.to_string() }),
        }
    }
}

/// The holder of a backup key can publish under the id of another VM's snapshot. Such an id is refused.
fn refuse_twice(named: &HashSet<SnapshotId>, published: &[FoundSnapshot]) -> Result<()> {
    let mut met = HashSet::new();
    let mut ids = published.iter().map(|found| found.published.snapshot);
    match ids.find(|id| named.contains(id) && !met.insert(*id)) {
        None => Ok(()),
        Some(id) => Err(Error::Ambiguous { name: id.to_string(), count: 2 }),
    }
}

/// Refuses `latest` over several VMs: it would be the snapshot of the VM that happened to be backed up last.
fn refuse_several_vms(published: &[FoundSnapshot]) -> Result<()> {
    let names: BTreeSet<&str> = published.iter().map(|found| found.vm.name.as_str()).collect();
    if names.len() < 2 {
        return Ok(());
    }
    let (named, more) = (NAMED_VMS.min(names.len()), names.len().saturating_sub(NAMED_VMS));
    let mut vms = names.into_iter().take(named).collect::<Vec<_>>().join(", ");
    if more > 0 {
        vms.push_str(&format!(" and {more} more"));
    }
    Err(Error::WhichVm { vms })
}

/// Describes a snapshot by its manifest, or by the damage of that.
fn described_by(found: &FoundSnapshot, manifest: Result<Manifest>) -> Result<Snapshot> {
    match manifest {
        Ok(manifest) => Ok(snapshot_of(found, Ok(manifest))),
        Err(Error::Damaged { detail, .. }) => Ok(snapshot_of(found, Err(detail))),
        Err(error) if error.is_corruption() => Ok(snapshot_of(found, Err(error.to_string()))),
        Err(error) => Err(error),
    }
}

/// Describes a snapshot. `manifest` is its manifest, or the reason why that cannot be read.
fn snapshot_of(found: &FoundSnapshot, manifest: std::result::Result<Manifest, String>) -> Snapshot {
    let FoundSnapshot { vm, published, misdated } = found;
    let mut snapshot = Snapshot {
        id: published.snapshot,
        vm: vm.clone(),
        sequence: published.sequence,
        created_ms: published.created_ms,
        misdated: *misdated,
        base: None,
        disks: Vec::new(),
        tags: Vec::new(),
        description: String::new(),
        counts: BackupCounts::default(),
        is_verified: published.is_verified,
        held_until_ms: published.held_until_ms,
        doubts: Vec::new(),
        is_accepted: published.is_accepted,
        copied_from: None,
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
            snapshot.doubts = manifest.doubts;
            snapshot.copied_from = manifest.origin;
        }
    }
    snapshot
}
