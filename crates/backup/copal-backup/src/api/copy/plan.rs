//! Which snapshots of the source the target lacks, in the order in which they are copied.

use super::CopyFailure;
use crate::api::repository::Repository;
use crate::request::error::{Error, Result};
use crate::request::{Listing, Snapshot, SnapshotId, Vm};
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

/// The snapshots that a person wants to copy.
#[derive(Clone, Copy, Debug)]
pub enum CopyChoice<'a> {
    /// One snapshot, by id, prefix or `latest`, of this VM.
    Snapshot(&'a str, Option<&'a str>),
    /// All snapshots of a VM (name or UUID).
    Vm(&'a str),
    /// All snapshots.
    All,
}

/// The snapshots to copy.
#[derive(Debug, Default)]
pub struct CopyPlan {
    snapshots: Vec<Snapshot>,
    present: u64,
    older: Vec<Snapshot>,
    damaged: Vec<(Vm, String)>,
    holds: Vec<(SnapshotId, u64)>,
    /// Snapshots of the source by VM and first id; `None`: several claim it.
    in_source: HashMap<(Uuid, SnapshotId), Option<SnapshotId>>,
}

impl CopyPlan {
    /// Compares two repositories. `since_ms`: snapshots from before this time are left out.
    /// # Errors
    /// The side that failed: `NotFound`, `Ambiguous`, `WhichVm`, `Damaged`; errors of the store.
    pub fn new(
        source: &Repository,
        target: &Repository,
        choice: CopyChoice<'_>,
        since_ms: u64,
    ) -> std::result::Result<CopyPlan, CopyFailure> {
        let (listing, only) = listed(source, choice).map_err(CopyFailure::of_source)?;
        let mut plan = CopyPlan { damaged: listing.damaged, ..CopyPlan::default() };
        let mut by_vm: HashMap<Uuid, Vec<&Snapshot>> = HashMap::new();
        for snapshot in &listing.snapshots {
            plan.note(snapshot);
            by_vm.entry(snapshot.vm.uuid).or_default().push(snapshot);
        }
        let mut places = HashMap::new();
        for (vm, snapshots) in by_vm {
            let in_target = in_target(target, &snapshots[0].vm.name).map_err(CopyFailure::of_target)?;
            places.insert(vm, TargetVm::new(&snapshots, in_target));
        }
        let is_chosen = |snapshot: &Snapshot| {
            only.is_none_or(|only| snapshot.id == only) && snapshot.created_ms >= since_ms
        };
        let chosen = listing.snapshots.into_iter().filter(is_chosen);
        for snapshot in chosen {
            let Some(place) = places.get(&snapshot.vm.uuid) else { continue };
            plan.add(snapshot, place);
        }
        Ok(plan)
    }

    /// A snapshot that a backup has made here precedes those that claim to be its copies: another one may be forged.
    fn note(&mut self, snapshot: &Snapshot) {
        let first = snapshot.first_id();
        let known = self.in_source.entry((snapshot.vm.uuid, first));
        let known = known.and_modify(|known| *known = known.filter(|known| *known == first));
        let known = known.or_insert(Some(snapshot.id));
        if snapshot.copied_from.is_none() {
            *known = Some(snapshot.id);
        }
    }

    fn add(&mut self, snapshot: Snapshot, place: &TargetVm) {
        if let Some(copy) = place.copies.get(&snapshot.first_id()) {
            self.present += 1;
            if snapshot.held_until_ms > copy.held_until_ms {
                self.holds.push((copy.id, snapshot.held_until_ms));
            }
        } else if place.has_newer(&snapshot) {
            self.older.push(snapshot);
        } else {
            self.snapshots.push(snapshot);
        }
    }

    /// The snapshots to copy, oldest first.
    pub fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots
    }

    /// Number of snapshots whose copies are there.
    pub fn present(&self) -> u64 {
        self.present
    }

    /// Snapshots that are not copied because the target has a newer one of their VM (BAK-30).
    pub fn older(&self) -> &[Snapshot] {
        &self.older
    }

    /// VMs of the source whose log is damaged, each with the damage as a sentence.
    pub fn damaged(&self) -> &[(Vm, String)] {
        &self.damaged
    }

    /// Copies that are held for a shorter time than their sources, and the end of the hold of the source.
    pub(super) fn missing_holds(&self) -> &[(SnapshotId, u64)] {
        &self.holds
    }

    /// The snapshot of a VM of the source that has this first id.
    pub(super) fn in_source(&self, vm: &Vm, first: SnapshotId) -> Option<SnapshotId> {
        self.in_source.get(&(vm.uuid, first)).copied().flatten()
    }
}

/// All snapshots of the VMs of the choice, in the order in which they were made, and the only one that is chosen.
fn listed(source: &Repository, choice: CopyChoice<'_>) -> Result<(Listing, Option<SnapshotId>)> {
    match choice {
        CopyChoice::All => Ok((source.list(None)?, None)),
        CopyChoice::Vm(vm) => Ok((source.list(Some(vm))?, None)),
        CopyChoice::Snapshot(spec, vm) => {
            let found = source.resolve_damaged(spec, vm)?;
            Ok((source.list(Some(&found.vm.uuid.to_string()))?, Some(found.id)))
        }
    }
}

/// Snapshots of the VM with this name in the target. If its log is damaged, the copies report that.
fn in_target(target: &Repository, vm: &str) -> Result<Vec<Snapshot>> {
    match target.list(Some(vm)) {
        Err(Error::NotFound { .. }) => Ok(Vec::new()),
        listing => Ok(listing?.snapshots),
    }
}

/// The snapshots of a VM in the target.
struct TargetVm {
    /// By first id.
    copies: HashMap<SnapshotId, Snapshot>,
    /// Snapshots of the source that were made before one that is there.
    before_newest: HashSet<SnapshotId>,
    /// Time of the newest content in the target that the source does not have.
    newest_ms: u64,
}

impl TargetVm {
    /// `in_source`: all snapshots of the VM in the source, in the order in which they were made.
    fn new(in_source: &[&Snapshot], in_target: Vec<Snapshot>) -> TargetVm {
        let known: HashSet<SnapshotId> = in_source.iter().map(|one| one.first_id()).collect();
        let is_foreign = |one: &&Snapshot| !known.contains(&one.first_id());
        let is_dated = |one: &&Snapshot| one.damage.is_none() && one.misdated.is_none();
        let foreign = in_target.iter().filter(is_foreign).filter(is_dated);
        let times = foreign.map(|one| one.copied_from.map_or(one.created_ms, |origin| origin.created_ms));
        let newest_ms = times.max().unwrap_or(0);
        let copies: HashMap<SnapshotId, Snapshot> =
            in_target.into_iter().map(|one| (one.first_id(), one)).collect();
        let is_there = |one: &&Snapshot| copies.contains_key(&one.first_id());
        let newest = in_source.iter().rposition(is_there).unwrap_or(0);
        let before_newest = in_source[..newest].iter().map(|one| one.id).collect();
        TargetVm { copies, before_newest, newest_ms }
    }

    /// Whether the target has a newer snapshot of the VM.
    fn has_newer(&self, snapshot: &Snapshot) -> bool {
        let by_time = snapshot.misdated.is_none() && snapshot.created_ms <= self.newest_ms;
        by_time || self.before_newest.contains(&snapshot.id)
    }
}
