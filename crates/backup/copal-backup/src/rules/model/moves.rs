//! The possible next steps of a state.

use super::backup::{self, BackupRun, PeerAnswer, append_of_backup, go_on_with_backup, look, put_manifest};
use super::consolidate::{
    self, SweepJob, append_of_cleanup, begin_cleanup, check_pack, claim_check, go_on_with_cleanup,
    go_on_with_sweep,
};
use super::invariants::check;
use super::popular_gc::{RemovalJob, append_of_unneeded, go_on_with_unneeded};
use super::prune::PruneMethod;
use super::setup::{ModelSetup, WeakRule};
use super::state::{FleetState, HOSTS, HostJob, ModelLog, PendingAppend};
use super::store::{ModelPack, uuid};
use crate::catalog::record::Record;
use crate::packs::home::PackHome;
use crate::packs::pack::PackNumber;
use crate::rules::broken::with;
use crate::steps::removal::{VmUse, in_use};
use crate::steps::session::ending;
use stateright::{Model, Property};

/// Property: the invariants hold in every state.
pub(super) const SAFE: &str = "nothing is lost";
/// Property: the search reaches a second snapshot.
pub(super) const PUBLISHED: &str = "a second snapshot is published";

/// One step. Hosts, VMs and disks are numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ModelMove {
    BacksUp(usize, usize, usize),
    /// A backup looks for its chunks and gets an answer.
    Looks(usize, PeerAnswer),
    /// A backup stores a popular chunk that bad memory has spoiled.
    StoresSpoilt(usize),
    Prunes(usize, usize, PruneMethod),
    CleansUp(usize, usize),
    Sweeps(usize),
    /// A host begins to remove unneeded popular packs.
    RemovesUnneeded(usize),
    /// A host decrypts a popular pack and records the result.
    Checks(usize, PackNumber),
    /// A host records that its own popular pack is good, without a check.
    Lies(usize, PackNumber),
    /// The next step of a running operation.
    GoesOn(usize),
    /// A record is appended, but reported as lost.
    IsToldLost(usize),
    Dies(usize),
    /// A host dies while its record is in flight; the record may appear later.
    DiesAppending(usize),
    /// A host dies while deletes have reached one server, or are on their way.
    DiesUnlinking(usize),
    ComesAbout(usize),
    IsUnlinked(PackNumber),
    /// A delete of a list of dead frames takes effect.
    IsDropped(usize, u64),
    /// A host dies while packs that it stores are on their way.
    DiesStoring(usize),
    /// A first try to store a pack was not answered, another was: the first is still on its way.
    StoresTwice(PackNumber),
    /// A host removes packs, and first tries that were not answered are still on their way.
    UnlinksTwice(usize),
    /// A pack appears whose creation was on its way.
    Arrives(PackNumber),
    /// Forgets a snapshot of a VM, by its position.
    Forgets(usize, usize),
    /// By silence of the holder or by hand, even if the holder is alive.
    Fences(usize),
    Retires(usize, usize),
    LosesVector(usize),
}

impl Model for ModelSetup {
    type State = FleetState;
    type Action = ModelMove;

    fn init_states(&self) -> Vec<FleetState> {
        let mut state = FleetState::first(self);
        for action in &self.before {
            let mut moves = Vec::new();
            self.actions(&state, &mut moves);
            assert!(moves.contains(action), "{action:?} cannot happen; {moves:#?}");
            state = self
                .next_state(&state, action.clone())
                .unwrap_or_else(|| panic!("{action:?} changes nothing: {state:#?}"));
        }
        vec![state]
    }

    fn actions(&self, state: &FleetState, moves: &mut Vec<ModelMove>) {
        for host in 0..HOSTS {
            match &state.hosts[host] {
                // Idle hosts are interchangeable, except for the packs that they wrote.
                HostJob::Idle if state.is_first_idle(host) => beginnings(self, state, host, moves),
                HostJob::Idle => {}
                job => steps(state, host, job, moves),
            }
            let popular = state.popular.packs.iter();
            let unchecked = popular
                .filter(|pack| pack.checked_at.is_none() && pack.spoiled_at.is_none() && !pack.is_removed());
            for pack in unchecked {
                moves.push(ModelMove::Checks(host, pack.pack));
                if state.left.lies > 0 {
                    moves.push(ModelMove::Lies(host, pack.pack));
                }
            }
        }
        moves.extend((0..state.in_doubt.len()).map(ModelMove::ComesAbout));
        moves.extend(state.store.doomed.iter().map(|pack| ModelMove::IsUnlinked(*pack)));
        moves.extend(state.store.doomed_lists.iter().map(|(vm, list)| ModelMove::IsDropped(*vm, *list)));
        moves.extend(state.store.late.keys().map(|pack| ModelMove::Arrives(*pack)));
        if state.left.late > 0 {
            let first = state.store.packs.iter().filter(|(_, pack)| !pack.is_late);
            moves.extend(first.map(|(pack, _)| ModelMove::StoresTwice(*pack)));
        }
        for vm in 0..self.vms {
            let published = state.vms[vm].published.len();
            if state.left.forgets > 0 {
                moves.extend((0..published).map(|at| ModelMove::Forgets(vm, at)));
            }
            if state.left.fences > 0 && !state.vms[vm].open.is_empty() {
                moves.push(ModelMove::Fences(vm));
            }
            if state.left.vectors > 0 && published > 0 {
                moves.push(ModelMove::LosesVector(vm));
            }
        }
    }

    fn next_state(&self, last: &FleetState, action: ModelMove) -> Option<FleetState> {
        let mut state = last.clone();
        with(self.flaws, || state.apply(self, action))?;
        state.tidy();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<ModelSetup>> {
        vec![
            Property::always(SAFE, |_, state| check(state).is_ok()),
            Property::sometimes(PUBLISHED, |_, state: &FleetState| {
                state.vms.iter().map(|vm| vm.next_sequence).sum::<u64>() > 1
            }),
        ]
    }
}

fn beginnings(setup: &ModelSetup, state: &FleetState, host: usize, moves: &mut Vec<ModelMove>) {
    let left = &state.left;
    for vm in 0..setup.vms {
        if left.backups > 0 && state.vms[vm].open.is_empty() {
            moves.extend((0..setup.disks.len()).map(|disk| ModelMove::BacksUp(host, vm, disk)));
        }
        for (method, left) in [
            (PruneMethod::Vectors, left.deletions),
            (PruneMethod::Walk, left.walks),
            (PruneMethod::Repair, left.repairs),
        ] {
            if left > 0 {
                moves.push(ModelMove::Prunes(host, vm, method));
            }
        }
        if left.cleanups > 0 {
            moves.push(ModelMove::CleansUp(host, vm));
        }
        if left.retirements > 0 {
            moves.push(ModelMove::Retires(host, vm));
        }
    }
    if left.sweeps > 0 {
        moves.push(ModelMove::Sweeps(host));
    }
    if left.unneeded > 0 {
        moves.push(ModelMove::RemovesUnneeded(host));
    }
}

fn steps(state: &FleetState, host: usize, job: &HostJob, moves: &mut Vec<ModelMove>) {
    match job {
        HostJob::Backup(backup) if backup.phase == backup::BackupPhase::Ready => {
            let answers = [PeerAnswer::New, PeerAnswer::Hit, PeerAnswer::StorePopular];
            moves.extend(answers.map(|answer| ModelMove::Looks(host, answer)));
        }
        HostJob::Backup(backup)
            if backup.phase == backup::BackupPhase::StoresPopular && state.left.spoilt > 0 =>
        {
            moves.extend([ModelMove::GoesOn(host), ModelMove::StoresSpoilt(host)]);
        }
        _ => moves.push(ModelMove::GoesOn(host)),
    }
    if state.left.lost > 0 {
        moves.extend([ModelMove::IsToldLost(host), ModelMove::DiesAppending(host)]);
    }
    if state.left.late > 0 {
        moves.extend([ModelMove::DiesStoring(host), ModelMove::UnlinksTwice(host)]);
    }
    if state.left.crashes > 0 {
        moves.extend([ModelMove::Dies(host), ModelMove::DiesUnlinking(host)]);
    }
}

impl FleetState {
    fn is_first_idle(&self, host: usize) -> bool {
        !self.hosts[..host].contains(&HostJob::Idle)
    }

    /// The record that a host is about to append.
    fn append_of(&mut self, setup: &ModelSetup, host: usize) -> Option<PendingAppend> {
        match self.hosts[host].clone() {
            HostJob::Backup(backup) => {
                if backup.phase == backup::BackupPhase::Publishes {
                    put_manifest(self, &backup);
                }
                append_of_backup(self, host, &backup)
            }
            HostJob::Prune(prune) => self.append_of_prune(&prune),
            HostJob::CleanUp(cleanup) if cleanup.phase != consolidate::CleanUpPhase::Begun => {
                append_of_cleanup(self, setup, host, &cleanup)
            }
            HostJob::Unneeded(unneeded) => append_of_unneeded(self, setup, &unneeded),
            HostJob::CleanUp(_) | HostJob::Idle | HostJob::Sweep(_) | HostJob::Removal(_) => None,
        }
    }

    /// Applies a step; `None`: the step is impossible.
    fn apply(&mut self, setup: &ModelSetup, action: ModelMove) -> Option<()> {
        match action {
            ModelMove::BacksUp(host, vm, disk) => {
                self.left.backups -= 1;
                let session = self.draw_session();
                self.hosts[host] = HostJob::Backup(BackupRun::new(vm, session, setup.disks[disk]));
            }
            ModelMove::Looks(host, answer) => {
                let HostJob::Backup(backup) = &self.hosts[host] else {
                    return None;
                };
                self.hosts[host] = HostJob::Backup(look(self, backup.clone(), answer)?);
            }
            ModelMove::StoresSpoilt(host) => {
                self.left.spoilt -= 1;
                let HostJob::Backup(backup) = &self.hosts[host] else {
                    return None;
                };
                let vm = backup.vm;
                self.go_on(setup, host)?;
                let newest = PackNumber(self.store.names);
                self.store.packs.get_mut(&newest)?.spoilt_by = Some(vm);
            }
            ModelMove::Prunes(host, vm, method) => {
                match method {
                    PruneMethod::Vectors => self.left.deletions -= 1,
                    PruneMethod::Walk => self.left.walks -= 1,
                    PruneMethod::Repair => self.left.repairs -= 1,
                }
                self.hosts[host] = self.begin_prune(setup, vm, method)?;
            }
            ModelMove::CleansUp(host, vm) => {
                self.left.cleanups -= 1;
                self.hosts[host] = begin_cleanup(self, vm)?;
            }
            ModelMove::Sweeps(host) => {
                self.left.sweeps -= 1;
                self.hosts[host] = HostJob::Sweep(SweepJob::new());
            }
            ModelMove::RemovesUnneeded(host) => {
                self.left.unneeded -= 1;
                self.hosts[host] = HostJob::Unneeded(RemovalJob::new());
            }
            ModelMove::Checks(host, pack) => check_pack(self, host, pack)?,
            ModelMove::Lies(host, pack) => claim_check(self, host, pack)?,
            ModelMove::GoesOn(host) => self.go_on(setup, host)?,
            ModelMove::IsToldLost(host) => {
                self.left.lost -= 1;
                let append = self.append_of(setup, host)?;
                self.append(&append).then_some(())?;
            }
            ModelMove::Dies(host) => {
                self.left.crashes -= 1;
                self.hosts[host] = HostJob::Idle;
            }
            ModelMove::DiesAppending(host) => {
                self.left.lost -= 1;
                let append = self.append_of(setup, host)?;
                self.in_doubt.push(append);
                self.hosts[host] = HostJob::Idle;
            }
            ModelMove::DiesUnlinking(host) => {
                self.left.crashes -= 1;
                // A clean-up removes lists only behind its record.
                if matches!(self.hosts[host], HostJob::CleanUp(_)) {
                    return None;
                }
                let mut done = self.clone();
                done.go_on(setup, host)?;
                let (packs, lists) = self.removed_by(&done);
                if packs.is_empty() && lists.is_empty() {
                    return None;
                }
                self.store.doomed.extend(packs);
                self.store.doomed_lists.extend(lists);
                self.hosts[host] = HostJob::Idle;
            }
            ModelMove::IsDropped(vm, list) => {
                self.store.doomed_lists.remove(&(vm, list));
                self.store.dead.remove(&(vm, list));
            }
            ModelMove::DiesStoring(host) => {
                self.left.late -= 1;
                let first = self.store.names + 1;
                self.go_on(setup, host)?;
                let late = self.store.packs.split_off(&PackNumber(first));
                if late.is_empty() {
                    return None;
                }
                self.store.late.extend(late);
                self.hosts[host] = HostJob::Idle;
            }
            ModelMove::StoresTwice(pack) => {
                self.left.late -= 1;
                let stored = self.store.packs.get(&pack)?.clone();
                self.store.late.insert(pack, stored);
            }
            ModelMove::UnlinksTwice(host) => {
                self.left.late -= 1;
                let before = self.clone();
                self.go_on(setup, host)?;
                let (packs, lists) = before.removed_by(self);
                if packs.is_empty() && lists.is_empty() {
                    return None;
                }
                self.store.doomed.extend(packs);
                self.store.doomed_lists.extend(lists);
            }
            ModelMove::Arrives(pack) => {
                self.store.arrive(pack, !setup.is_weak(WeakRule::DeletesByName));
            }
            ModelMove::ComesAbout(at) => {
                let append = self.in_doubt.remove(at);
                self.append(&append);
            }
            ModelMove::IsUnlinked(pack) => self.store.unlink(pack),
            ModelMove::Forgets(vm, at) => {
                self.left.forgets -= 1;
                let snapshots = vec![self.vms[vm].published[at].snapshot];
                let forget = self.next(ModelLog::Vm(vm), Record::Forget { snapshots });
                self.append(&forget);
            }
            ModelMove::Fences(vm) => {
                self.left.fences -= 1;
                let fence = ending(&self.vms[vm], self.vms[vm].open.first()?)?;
                let fence = self.next(ModelLog::Vm(vm), fence);
                self.append(&fence);
            }
            ModelMove::Retires(host, vm) => {
                self.left.retirements -= 1;
                if in_use(&self.vms[vm]) != VmUse::Idle {
                    return None;
                }
                let retired = self.next(ModelLog::Vm(vm), Record::Retired);
                self.append(&retired);
                self.hosts[host] = HostJob::Removal(vm);
            }
            ModelMove::LosesVector(vm) => {
                self.left.vectors -= 1;
                let newest = self.vms[vm].published.last()?.snapshot;
                self.store.manifests.get_mut(&newest)?.has_vector = false;
            }
        }
        Some(())
    }

    /// Continues an operation; `None`: it waits.
    fn go_on(&mut self, setup: &ModelSetup, host: usize) -> Option<()> {
        self.hosts[host] = match self.hosts[host].clone() {
            HostJob::Idle => return None,
            HostJob::Backup(backup) => go_on_with_backup(self, setup, host, backup)?,
            // The prune gives way.
            HostJob::Prune(prune) => {
                let job = self.go_on_with_prune(setup, prune);
                job.unwrap_or(HostJob::Idle)
            }
            HostJob::CleanUp(cleanup) => go_on_with_cleanup(self, setup, host, cleanup)?,
            HostJob::Sweep(sweep) => go_on_with_sweep(self, setup, sweep),
            HostJob::Unneeded(unneeded) => go_on_with_unneeded(self, setup, unneeded),
            HostJob::Removal(vm) => {
                let home = PackHome::Private(uuid(vm));
                let keeps_shared = !setup.is_weak(WeakRule::RemovesShared);
                let stays =
                    |pack: &ModelPack| pack.home != home && (pack.home != PackHome::Shared || keeps_shared);
                self.store.packs.retain(|_, pack| stays(pack));
                HostJob::Idle
            }
        };
        Some(())
    }

    /// Packs and lists of dead frames that exist here and no longer in `after`.
    fn removed_by(&self, after: &FleetState) -> (Vec<PackNumber>, Vec<(usize, u64)>) {
        let packs = self.store.packs.keys().filter(|pack| !after.store.packs.contains_key(pack));
        let lists = self.store.dead.keys().filter(|list| !after.store.dead.contains_key(list));
        (packs.copied().collect(), lists.copied().collect())
    }

    /// Drops parts that no longer change anything.
    fn tidy(&mut self) {
        let numbers: Vec<u64> = self.in_doubt.iter().map(|append| self.next_number(append.log)).collect();
        let mut numbers = numbers.into_iter();
        self.in_doubt.retain(|append| Some(append.number) == numbers.next());
        let (packs, late) = (&self.store.packs, &self.store.late);
        self.store.doomed.retain(|pack| packs.contains_key(pack) || late.contains_key(pack));
        if let [first, second] = &mut self.hosts[..]
            && *first == HostJob::Idle
            && *second != HostJob::Idle
            && self.popular.packs.is_empty()
        {
            std::mem::swap(first, second);
        }
    }
}
