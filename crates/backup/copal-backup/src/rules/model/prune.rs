//! Model of a prune of a VM: by vectors (a deletion), or by a walk of all snapshots, which rewrites or
//! repairs.

use super::setup::{ModelSetup, WeakRule};
use super::state::{FleetState, HostJob, ModelLog, PendingAppend};
use super::store::{Id, ModelPack, ModelRef, add_dead, uuid};
use crate::catalog::fields::DeadList;
use crate::catalog::fold::LogEntry;
use crate::catalog::record::{PackPlace, Record};
use crate::catalog::vm::{PublishedSnapshot, VmState};
use crate::index::dead_frames::DeadFrames;
use crate::packs::home::PackHome;
use crate::packs::pack::PackNumber;
use crate::request::SnapshotId;
use crate::steps::frames::{PackFate, fate, is_in_use};
use crate::steps::removal::{LostAppend, PruneStart, beginning, lost, neighbours};
use crate::steps::session::first_removed;
use std::collections::{BTreeSet, HashSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PruneMethod {
    Vectors,
    Walk,
    /// A walk that rewrites nothing.
    Repair,
}

/// Phase of a prune.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum PrunePhase {
    /// It has read the log.
    Begun,
    /// It knows the live frames. After a walk it lists packs without a live frame next; by vectors it records
    /// dead frames next.
    Looked,
    /// It lists these packs next.
    Announces(Vec<PackNumber>),
    /// These packs are listed and being removed.
    Unlinks(Vec<PackNumber>),
    /// It rewrites packs with live and dead frames next.
    Rewrites,
    /// It records dead frames next, after a walk.
    Records,
    /// All listed packs are removed.
    Ends,
}

/// Source of liveness of frames.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ModelLive {
    Marked(BTreeSet<(PackNumber, u32)>),
    NotDead(DeadFrames),
}

impl ModelLive {
    fn has(&self, pack: PackNumber, slot: u32) -> bool {
        match self {
            ModelLive::Marked(marked) => marked.contains(&(pack, slot)),
            ModelLive::NotDead(dead) => is_in_use(dead, pack, slot),
        }
    }

    fn fate(&self, number: PackNumber, pack: &ModelPack) -> PackFate {
        let slots = 0..pack.ids.len() as u32;
        let live = slots.filter(|slot| self.has(number, *slot)).count();
        fate(live as u32, pack.ids.len() as u32)
    }
}

/// A prune in progress.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PruneJob {
    pub(super) vm: usize,
    method: PruneMethod,
    /// The number behind the records that it has read and appended.
    next_number: u64,
    /// Records from that number on.
    since: Vec<Record>,
    /// The snapshots by which it decides.
    gone: Vec<PublishedSnapshot>,
    stay: Vec<PublishedSnapshot>,
    live: ModelLive,
    has_rewritten: bool,
    /// Number of pack names at its beginning: a fenced process that does not know it may write packs
    /// meanwhile.
    names: u64,
    listed: Vec<PackPlace>,
    /// Packs of which it knows the file of a late try.
    late: BTreeSet<PackNumber>,
    /// The list of dead frames that it has recorded.
    recorded: Option<DeadList>,
    /// Lists below this number were in force before it began.
    floor: u64,
    /// The snapshot whose chunks are removed before it is forgotten.
    undermined: Option<SnapshotId>,
    phase: PrunePhase,
}

impl PruneJob {
    /// Notices a new record of the log.
    pub(super) fn notice(&mut self, entry: &LogEntry) {
        // It knows its own records.
        if entry.number >= self.next_number {
            self.since.push(entry.record.clone());
        }
    }
}

fn place(vm: usize, pack: PackNumber) -> PackPlace {
    PackPlace { home: PackHome::Private(uuid(vm)), volume: 0, pack }
}

impl FleetState {
    /// Begins a prune; `None`: it gives way.
    pub(super) fn begin_prune(
        &mut self,
        setup: &ModelSetup,
        vm: usize,
        method: PruneMethod,
    ) -> Option<HostJob> {
        match beginning(&self.vms[vm], false) {
            PruneStart::GiveWay | PruneStart::FenceFirst => return None,
            PruneStart::FinishFirst => {
                let packs = first_removed(&self.vms[vm]).to_vec();
                packs.iter().for_each(|place| self.store.remove(place.pack));
                let removed = self.next(ModelLog::Vm(vm), Record::Removed { packs });
                self.append(&removed);
            }
            PruneStart::Go => {}
        }
        let state = &self.vms[vm];
        let (mut gone, mut stay) = (state.forgotten.clone(), state.published.clone());
        let mut undermined = None;
        if setup.is_weak(WeakRule::ChunksBeforeSnapshot) && !stay.is_empty() {
            let first = stay.remove(0);
            undermined = Some(first.snapshot);
            gone.push(first);
        }
        if method == PruneMethod::Vectors && gone.is_empty() && state.dead.is_none() {
            return None;
        }
        Some(HostJob::Prune(PruneJob {
            vm,
            method,
            next_number: state.next_number,
            since: Vec::new(),
            gone,
            stay,
            live: ModelLive::Marked(BTreeSet::new()),
            has_rewritten: false,
            names: self.store.names,
            listed: Vec::new(),
            late: BTreeSet::new(),
            recorded: None,
            floor: setup.list_floor(state.next_number),
            undermined,
            phase: PrunePhase::Begun,
        }))
    }

    /// Frames that only the forgotten snapshots refer to, and those known before; `None`: a walk is
    /// necessary.
    fn find_dead(&self, setup: &ModelSetup, prune: &PruneJob) -> Option<DeadFrames> {
        let mut dead = self.store.dead_of(prune.vm, self.vms[prune.vm].dead.as_ref());
        for one in &prune.gone {
            let beside: Vec<&PublishedSnapshot> = neighbours(one, &prune.stay).collect();
            let ids = match setup.is_weak(WeakRule::NeighboursOnly) {
                true => self.merged(setup, &beside)?,
                false => self.merged(setup, &prune.stay.iter().collect::<Vec<_>>())?,
            };
            // Another prune may have deleted it.
            let gone = self.store.manifests.get(&one.snapshot)?;
            for (at, reference) in gone.refs.iter().enumerate() {
                let is_equal = |other: &&PublishedSnapshot| {
                    let other = self.store.manifests.get(&other.snapshot);
                    other.is_some_and(|other| other.refs[at] == *reference)
                };
                if !beside.iter().any(is_equal)
                    && !ids.contains(&reference.0)
                    && let Some((number, slot)) = self.located(prune.vm, *reference)
                {
                    add_dead(&mut dead, number, &self.store.packs[&number], slot);
                }
            }
        }
        let home = PackHome::Private(uuid(prune.vm));
        dead.retain(|pack| self.store.packs.get(&pack).is_some_and(|pack| pack.home == home));
        Some(dead)
    }

    /// The references of these snapshots; `None`: a vector is missing.
    fn merged(&self, setup: &ModelSetup, snapshots: &[&PublishedSnapshot]) -> Option<HashSet<Id>> {
        let mut ids = HashSet::new();
        for one in snapshots {
            let manifest = self.store.manifests.get(&one.snapshot)?;
            match manifest.has_vector {
                true => ids.extend(manifest.refs.iter().map(|(id, _)| id)),
                false if setup.is_weak(WeakRule::MissingVectorIsEmpty) => {}
                false => return None,
            }
        }
        Some(ids)
    }

    /// The VM's own frame of a reference: at its original location, or the newest.
    fn located(&self, vm: usize, (id, pack): ModelRef) -> Option<(PackNumber, u32)> {
        let own: Vec<(PackNumber, u32)> =
            self.store.own(vm).filter_map(|(number, pack)| Some((number, pack.slot(id)?))).collect();
        own.iter().find(|(number, _)| *number == pack).or(own.last()).copied()
    }

    /// Frames that the published snapshots refer to.
    fn walk(&self, setup: &ModelSetup, prune: &PruneJob) -> BTreeSet<(PackNumber, u32)> {
        let state = &self.vms[prune.vm];
        let mut walked: Vec<SnapshotId> = state.published.iter().map(|one| one.snapshot).collect();
        if setup.is_weak(WeakRule::NeighbourForgotten) {
            walked.retain(|now| prune.stay.iter().any(|one| one.snapshot == *now));
        }
        walked.retain(|now| Some(*now) != prune.undermined);
        let refs = walked.iter().flat_map(|one| &self.store.manifests[one].refs);
        let own = refs.filter(|(id, _)| {
            let moved = self.store.moved_to(prune.vm, state, *id);
            !moved.is_some_and(|pack| self.store.opens(pack, *id))
        });
        own.filter_map(|reference| self.located(prune.vm, *reference)).collect()
    }

    /// Marks the frames of packs without a marked one.
    fn mark_orphans(&self, vm: usize, marked: &mut BTreeSet<(PackNumber, u32)>) {
        let named: BTreeSet<PackNumber> = marked.iter().map(|(pack, _)| *pack).collect();
        for (number, pack) in self.store.own(vm).filter(|(number, _)| !named.contains(number)) {
            marked.extend((0..pack.ids.len() as u32).map(|slot| (number, slot)));
        }
    }

    fn find_live(&self, setup: &ModelSetup, prune: &mut PruneJob) {
        let dead = match prune.method {
            PruneMethod::Vectors => self.find_dead(setup, prune),
            PruneMethod::Walk | PruneMethod::Repair => None,
        };
        match dead {
            Some(dead) => prune.live = ModelLive::NotDead(dead),
            None => {
                if prune.method == PruneMethod::Vectors {
                    prune.method = PruneMethod::Walk;
                }
                let mut marked = self.walk(setup, prune);
                if setup.is_weak(WeakRule::KeepsOrphans) {
                    self.mark_orphans(prune.vm, &mut marked);
                }
                prune.live = ModelLive::Marked(marked);
            }
        }
        prune.phase = PrunePhase::Looked;
    }

    /// Existing packs with this treatment.
    fn packs_of(&self, prune: &PruneJob, wanted: PackFate) -> Vec<PackNumber> {
        let own = self.store.own(prune.vm);
        own.filter(|(number, pack)| prune.live.fate(*number, pack) == wanted)
            .map(|(number, _)| number)
            .collect()
    }

    /// Dead frames of the existing packs.
    fn left_dead(&self, prune: &PruneJob) -> DeadFrames {
        let mut dead = DeadFrames::default();
        for (number, pack) in self.store.own(prune.vm) {
            for slot in (0..pack.ids.len() as u32).filter(|slot| !prune.live.has(number, *slot)) {
                add_dead(&mut dead, number, pack, slot);
            }
        }
        dead
    }

    /// The record that a prune is about to append.
    pub(super) fn append_of_prune(&mut self, prune: &PruneJob) -> Option<PendingAppend> {
        let vm = prune.vm;
        let record = match &prune.phase {
            PrunePhase::Announces(packs) => {
                Record::Removing { packs: packs.iter().map(|pack| place(vm, *pack)).collect() }
            }
            PrunePhase::Looked | PrunePhase::Records => {
                if matches!((&prune.phase, &prune.live), (PrunePhase::Looked, ModelLive::Marked(_))) {
                    return None;
                }
                let dead = match &prune.live {
                    ModelLive::NotDead(dead) => dead.clone(),
                    ModelLive::Marked(_) => self.left_dead(prune),
                };
                Record::Freed {
                    snapshots: prune.gone.iter().map(|one| one.snapshot).collect(),
                    dead: self.store.put_dead(vm, dead, prune.floor),
                }
            }
            _ => return None,
        };
        Some(PendingAppend { log: ModelLog::Vm(vm), number: prune.next_number, record })
    }

    /// The next step; `None`: the prune gives way.
    pub(super) fn go_on_with_prune(&mut self, setup: &ModelSetup, mut prune: PruneJob) -> Option<HostJob> {
        let vm = prune.vm;
        if let Some(append) = self.append_of_prune(&prune)
            && !is_unlisted(setup, &append.record)
        {
            match self.append(&append) {
                true => prune.next_number += 1,
                false => {
                    let since: Vec<LogEntry> =
                        prune.since.drain(..).zip(prune.next_number..).map(entry).collect();
                    prune.next_number += since.len() as u64;
                    match lost(&append.record, &since) {
                        LostAppend::Stands => {}
                        LostAppend::Again => return Some(HostJob::Prune(prune)),
                        LostAppend::GiveWay => return None,
                    }
                }
            }
            if let Record::Freed { dead, .. } = append.record {
                prune.recorded = dead;
            }
        }
        if matches!(prune.phase, PrunePhase::Looked | PrunePhase::Rewrites) {
            // It lists the packs, each with its file.
            prune.late =
                self.store.own(vm).filter(|(_, pack)| pack.is_late).map(|(number, _)| number).collect();
        }
        match prune.phase.clone() {
            PrunePhase::Begun => self.find_live(setup, &mut prune),
            PrunePhase::Looked => prune.phase = self.after(&prune, PackFate::Unlink, PrunePhase::Rewrites),
            PrunePhase::Announces(packs) => {
                prune.listed.extend(packs.iter().map(|pack| place(vm, *pack)));
                prune.phase = PrunePhase::Unlinks(packs);
            }
            PrunePhase::Unlinks(packs) => {
                for pack in packs {
                    match setup.is_weak(WeakRule::DeletesByName) {
                        true => self.store.remove(pack),
                        false => self.store.remove_known(pack, prune.late.contains(&pack)),
                    }
                }
                prune.phase = match prune.has_rewritten {
                    true => prune.behind_packs(),
                    false => PrunePhase::Rewrites,
                };
            }
            PrunePhase::Rewrites => {
                prune.has_rewritten = true;
                let mixed = self.packs_of(&prune, PackFate::Mixed);
                prune.phase = match prune.method == PruneMethod::Repair || mixed.is_empty() {
                    true => prune.behind_packs(),
                    false => {
                        if !setup.is_weak(WeakRule::UnlinksUncopied) {
                            self.copy_live(&mut prune, &mixed);
                        }
                        PrunePhase::Announces(mixed)
                    }
                };
            }
            PrunePhase::Records => prune.phase = PrunePhase::Ends,
            PrunePhase::Ends => {
                self.end(setup, &prune);
                return Some(HostJob::Idle);
            }
        }
        Some(HostJob::Prune(prune))
    }

    fn after(&self, prune: &PruneJob, fate: PackFate, or: PrunePhase) -> PrunePhase {
        let packs = self.packs_of(prune, fate);
        match packs.is_empty() {
            true => or,
            false => PrunePhase::Announces(packs),
        }
    }

    /// Writes the live frames of packs anew, except those that also exist elsewhere.
    fn copy_live(&mut self, prune: &mut PruneJob, packs: &[PackNumber]) {
        let mut ids: Vec<Id> = Vec::new();
        for number in packs {
            let pack = &self.store.packs[number];
            let live = (0..).zip(&pack.ids).filter(|(slot, _)| prune.live.has(*number, *slot));
            let elsewhere = |id: Id| {
                let mut others = self.store.own(prune.vm).filter(|(other, _)| !packs.contains(other));
                others.any(|(other, pack)| pack.slot(id).is_some_and(|slot| prune.live.has(other, slot)))
            };
            ids.extend(live.map(|(_, id)| *id).filter(|id| !elsewhere(*id)));
        }
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() {
            return;
        }
        let slots = ids.len() as u32;
        let pack = ModelPack {
            home: PackHome::Private(uuid(prune.vm)),
            ids,
            session: [0; 16],
            spoilt_by: None,
            is_late: false,
        };
        let number = self.store.put(pack);
        if let ModelLive::Marked(marked) = &mut prune.live {
            marked.extend((0..slots).map(|slot| (number, slot)));
        }
    }

    /// Records freed snapshots as deleted, and listed packs as removed. A repair leaves only needed frames.
    fn end(&mut self, setup: &ModelSetup, prune: &PruneJob) {
        let vm = prune.vm;
        if let Some(snapshot) = prune.undermined {
            let snapshots = vec![snapshot];
            let forget = self.next(ModelLog::Vm(vm), Record::Forget { snapshots });
            self.append(&forget);
        }
        let is_undisturbed = prune.since.is_empty();
        let freed = self.vms[vm].freed.clone();
        for snapshot in &freed {
            self.store.manifests.remove(snapshot);
        }
        let mut said = Vec::new();
        if !freed.is_empty() {
            said.push(Record::Deleted { snapshots: freed });
        }
        if !prune.listed.is_empty() {
            let packs = prune.listed.clone();
            said.push(Record::Removed { packs });
        }
        for record in said {
            let append = self.next(ModelLog::Vm(vm), record);
            self.append(&append);
        }
        let state = self.vms[vm].clone();
        let floor = if setup.is_weak(WeakRule::DropsAllLists) { u64::MAX } else { prune.floor };
        self.store.drop_lists(vm, &state, prune.recorded.as_ref(), floor);
        if prune.method == PruneMethod::Repair && is_undisturbed && prune.names == self.store.names {
            self.unrepaired = self.compare_stored(vm, &state);
        }
    }

    /// Compares the stored frames that are not dead with the references. Those of snapshots forgotten
    /// meanwhile may exist too.
    fn compare_stored(&self, vm: usize, state: &VmState) -> Option<&'static str> {
        let dead = self.store.dead_of(vm, state.dead.as_ref());
        let own = self
            .store
            .own(vm)
            .flat_map(|(number, pack)| (0..pack.ids.len() as u32).map(move |slot| (number, slot)));
        let stored: BTreeSet<_> = own.filter(|(pack, slot)| is_in_use(&dead, *pack, *slot)).collect();
        let referred = |snapshots: &[PublishedSnapshot]| -> BTreeSet<(PackNumber, u32)> {
            let refs = snapshots
                .iter()
                .filter_map(|one| self.store.manifests.get(&one.snapshot))
                .flat_map(|manifest| &manifest.refs);
            let own = refs.filter(|(id, _)| self.store.moved_to(vm, state, *id).is_none());
            own.filter_map(|reference| self.located(vm, *reference)).collect()
        };
        let (published, forgotten) = (referred(&state.published), referred(&state.forgotten));
        let has_all = published.is_subset(&stored);
        let has_more = stored.iter().any(|frame| !published.contains(frame) && !forgotten.contains(frame));
        (!has_all || has_more).then_some("after a repair the stored frames differ from the references")
    }
}

impl PruneJob {
    /// After a walk the prune records dead frames at its end.
    fn behind_packs(&self) -> PrunePhase {
        match self.live {
            ModelLive::Marked(_) => PrunePhase::Records,
            ModelLive::NotDead(_) => PrunePhase::Ends,
        }
    }
}

fn is_unlisted(setup: &ModelSetup, record: &Record) -> bool {
    setup.is_weak(WeakRule::RemovesUnlisted) && matches!(record, Record::Removing { .. })
}

fn entry((record, number): (Record, u64)) -> LogEntry {
    LogEntry { number, created_ms: 0, record }
}
