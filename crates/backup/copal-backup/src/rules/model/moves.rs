//! The possible next steps of a state.

use super::backup::{self, Answer, Backup};
use super::cleanup::{self, Sweep};
use super::invariants::check;
use super::prune::Method;
use super::setup::{Setup, Weak};
use super::state::{Append, HOSTS, Job, Log, State};
use super::store::{Pack, uuid};
use super::unneeded::Unneeded;
use crate::catalog::record::Record;
use crate::packs::pack::PackNumber;
use crate::packs::volumes::Home;
use crate::rules::broken::with;
use crate::steps::removal::{Use, in_use};
use crate::steps::session::ending;
use stateright::{Model, Property};

/// Property: the invariants hold in every state.
pub(super) const SAFE: &str = "nothing is lost";
/// Property: the search reaches a second snapshot.
pub(super) const PUBLISHED: &str = "a second snapshot is published";

/// One step. Hosts, VMs and disks are numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Move {
    BacksUp(usize, usize, usize),
    /// A backup looks for its chunks and gets an answer.
    Looks(usize, Answer),
    /// A backup stores a popular chunk that bad memory has spoiled.
    StoresSpoilt(usize),
    Prunes(usize, usize, Method),
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
    /// A host dies while deletes have reached one server.
    DiesUnlinking(usize),
    ComesAbout(usize),
    IsUnlinked(PackNumber),
    /// Forgets a snapshot of a VM, by its position.
    Forgets(usize, usize),
    /// By silence of the holder or by hand, even if the holder is alive.
    Fences(usize),
    Retires(usize, usize),
    LosesVector(usize),
}

impl Model for Setup {
    type State = State;
    type Action = Move;

    fn init_states(&self) -> Vec<State> {
        let mut state = State::first(self);
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

    fn actions(&self, state: &State, moves: &mut Vec<Move>) {
        for host in 0..HOSTS {
            match &state.hosts[host] {
                // Idle hosts are interchangeable, except for the packs that they wrote.
                Job::Idle if state.is_first_idle(host) => beginnings(self, state, host, moves),
                Job::Idle => {}
                job => steps(state, host, job, moves),
            }
            let popular = state.popular.packs.iter();
            let unchecked = popular
                .filter(|pack| pack.checked_at.is_none() && pack.spoiled_at.is_none() && !pack.is_going());
            for pack in unchecked {
                moves.push(Move::Checks(host, pack.pack));
                if state.left.lies > 0 {
                    moves.push(Move::Lies(host, pack.pack));
                }
            }
        }
        moves.extend((0..state.in_doubt.len()).map(Move::ComesAbout));
        moves.extend(state.store.doomed.iter().map(|pack| Move::IsUnlinked(*pack)));
        for vm in 0..self.vms {
            let published = state.vms[vm].published.len();
            if state.left.forgets > 0 {
                moves.extend((0..published).map(|at| Move::Forgets(vm, at)));
            }
            if state.left.fences > 0 && !state.vms[vm].open.is_empty() {
                moves.push(Move::Fences(vm));
            }
            if state.left.vectors > 0 && published > 0 {
                moves.push(Move::LosesVector(vm));
            }
        }
    }

    fn next_state(&self, last: &State, action: Move) -> Option<State> {
        let mut state = last.clone();
        with(self.flaws, || state.apply(self, action))?;
        state.tidy();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Setup>> {
        vec![
            Property::always(SAFE, |_, state| check(state).is_ok()),
            Property::sometimes(PUBLISHED, |_, state: &State| {
                state.vms.iter().map(|vm| vm.next_sequence).sum::<u64>() > 1
            }),
        ]
    }
}

fn beginnings(setup: &Setup, state: &State, host: usize, moves: &mut Vec<Move>) {
    let left = &state.left;
    for vm in 0..setup.vms {
        if left.backups > 0 && state.vms[vm].open.is_empty() {
            moves.extend((0..setup.disks.len()).map(|disk| Move::BacksUp(host, vm, disk)));
        }
        for (method, left) in
            [(Method::Vectors, left.deletions), (Method::Walk, left.walks), (Method::Repair, left.repairs)]
        {
            if left > 0 {
                moves.push(Move::Prunes(host, vm, method));
            }
        }
        if left.cleanups > 0 {
            moves.push(Move::CleansUp(host, vm));
        }
        if left.retirements > 0 {
            moves.push(Move::Retires(host, vm));
        }
    }
    if left.sweeps > 0 {
        moves.push(Move::Sweeps(host));
    }
    if left.unneeded > 0 {
        moves.push(Move::RemovesUnneeded(host));
    }
}

fn steps(state: &State, host: usize, job: &Job, moves: &mut Vec<Move>) {
    match job {
        Job::Backup(backup) if backup.phase == backup::Phase::Ready => {
            let answers = [Answer::New, Answer::Hit, Answer::StorePopular];
            moves.extend(answers.map(|answer| Move::Looks(host, answer)));
        }
        Job::Backup(backup) if backup.phase == backup::Phase::StoresPopular && state.left.spoilt > 0 => {
            moves.extend([Move::GoesOn(host), Move::StoresSpoilt(host)]);
        }
        _ => moves.push(Move::GoesOn(host)),
    }
    if state.left.lost > 0 {
        moves.extend([Move::IsToldLost(host), Move::DiesAppending(host)]);
    }
    if state.left.crashes > 0 {
        moves.extend([Move::Dies(host), Move::DiesUnlinking(host)]);
    }
}

impl State {
    fn is_first_idle(&self, host: usize) -> bool {
        !self.hosts[..host].contains(&Job::Idle)
    }

    /// The record that a host is about to append.
    fn append_of(&mut self, setup: &Setup, host: usize) -> Option<Append> {
        match self.hosts[host].clone() {
            Job::Backup(backup) => {
                if backup.phase == backup::Phase::Publishes {
                    self.put_manifest(&backup);
                }
                self.append_of_backup(host, &backup)
            }
            Job::Prune(prune) => self.append_of_prune(&prune),
            Job::CleanUp(cleanup) if cleanup.phase != cleanup::Phase::Begun => {
                self.append_of_cleanup(setup, host, &cleanup)
            }
            Job::Unneeded(unneeded) => self.append_of_unneeded(setup, &unneeded),
            Job::CleanUp(_) | Job::Idle | Job::Sweep(_) | Job::Removal(_) => None,
        }
    }

    /// Applies a step; `None`: the step is impossible.
    fn apply(&mut self, setup: &Setup, action: Move) -> Option<()> {
        match action {
            Move::BacksUp(host, vm, disk) => {
                self.left.backups -= 1;
                let session = self.draw_session();
                self.hosts[host] = Job::Backup(Backup::new(vm, session, setup.disks[disk]));
            }
            Move::Looks(host, answer) => {
                let Job::Backup(backup) = &self.hosts[host] else {
                    return None;
                };
                self.hosts[host] = Job::Backup(self.look(backup.clone(), answer)?);
            }
            Move::StoresSpoilt(host) => {
                self.left.spoilt -= 1;
                let Job::Backup(backup) = &self.hosts[host] else {
                    return None;
                };
                let vm = backup.vm;
                self.go_on(setup, host)?;
                let newest = PackNumber(self.store.names);
                self.store.packs.get_mut(&newest)?.spoilt_by = Some(vm);
            }
            Move::Prunes(host, vm, method) => {
                match method {
                    Method::Vectors => self.left.deletions -= 1,
                    Method::Walk => self.left.walks -= 1,
                    Method::Repair => self.left.repairs -= 1,
                }
                self.hosts[host] = self.begin_prune(setup, vm, method)?;
            }
            Move::CleansUp(host, vm) => {
                self.left.cleanups -= 1;
                self.hosts[host] = self.begin_cleanup(vm)?;
            }
            Move::Sweeps(host) => {
                self.left.sweeps -= 1;
                self.hosts[host] = Job::Sweep(Sweep::new());
            }
            Move::RemovesUnneeded(host) => {
                self.left.unneeded -= 1;
                self.hosts[host] = Job::Unneeded(Unneeded::new());
            }
            Move::Checks(host, pack) => self.check(host, pack)?,
            Move::Lies(host, pack) => self.lie(host, pack)?,
            Move::GoesOn(host) => self.go_on(setup, host)?,
            Move::IsToldLost(host) => {
                self.left.lost -= 1;
                let append = self.append_of(setup, host)?;
                self.append(&append).then_some(())?;
            }
            Move::Dies(host) => {
                self.left.crashes -= 1;
                self.hosts[host] = Job::Idle;
            }
            Move::DiesAppending(host) => {
                self.left.lost -= 1;
                let append = self.append_of(setup, host)?;
                self.in_doubt.push(append);
                self.hosts[host] = Job::Idle;
            }
            Move::DiesUnlinking(host) => {
                self.left.crashes -= 1;
                let Job::Prune(prune) = &self.hosts[host] else {
                    return None;
                };
                let packs = prune.unlinks()?.to_vec();
                self.store.doomed.extend(packs);
                self.hosts[host] = Job::Idle;
            }
            Move::ComesAbout(at) => {
                let append = self.in_doubt.remove(at);
                self.append(&append);
            }
            Move::IsUnlinked(pack) => self.store.remove(pack),
            Move::Forgets(vm, at) => {
                self.left.forgets -= 1;
                let snapshots = vec![self.vms[vm].published[at].snapshot];
                let forget = self.next(Log::Vm(vm), Record::Forget { snapshots });
                self.append(&forget);
            }
            Move::Fences(vm) => {
                self.left.fences -= 1;
                let fence = ending(&self.vms[vm], self.vms[vm].open.first()?)?;
                let fence = self.next(Log::Vm(vm), fence);
                self.append(&fence);
            }
            Move::Retires(host, vm) => {
                self.left.retirements -= 1;
                if in_use(&self.vms[vm]) != Use::Idle {
                    return None;
                }
                let retired = self.next(Log::Vm(vm), Record::Retired);
                self.append(&retired);
                self.hosts[host] = Job::Removal(vm);
            }
            Move::LosesVector(vm) => {
                self.left.vectors -= 1;
                let newest = self.vms[vm].published.last()?.snapshot;
                self.store.manifests.get_mut(&newest)?.has_vector = false;
            }
        }
        Some(())
    }

    /// Continues an operation; `None`: it waits.
    fn go_on(&mut self, setup: &Setup, host: usize) -> Option<()> {
        self.hosts[host] = match self.hosts[host].clone() {
            Job::Idle => return None,
            Job::Backup(backup) => self.go_on_with_backup(setup, host, backup)?,
            // The prune gives way.
            Job::Prune(prune) => {
                let job = self.go_on_with_prune(setup, prune);
                job.unwrap_or(Job::Idle)
            }
            Job::CleanUp(cleanup) => self.go_on_with_cleanup(setup, host, cleanup)?,
            Job::Sweep(sweep) => self.go_on_with_sweep(setup, sweep),
            Job::Unneeded(unneeded) => self.go_on_with_unneeded(setup, unneeded),
            Job::Removal(vm) => {
                let home = Home::Private(uuid(vm));
                let keeps_shared = !setup.is_weak(Weak::RemovesShared);
                let stays = |pack: &Pack| pack.home != home && (pack.home != Home::Shared || keeps_shared);
                self.store.packs.retain(|_, pack| stays(pack));
                Job::Idle
            }
        };
        Some(())
    }

    /// Drops parts that no longer change anything.
    fn tidy(&mut self) {
        let numbers: Vec<u64> = self.in_doubt.iter().map(|append| self.next_number(append.log)).collect();
        let mut numbers = numbers.into_iter();
        self.in_doubt.retain(|append| Some(append.number) == numbers.next());
        let packs = &self.store.packs;
        self.store.doomed.retain(|pack| packs.contains_key(pack));
        if let [first, second] = &mut self.hosts[..]
            && *first == Job::Idle
            && *second != Job::Idle
            && self.popular.packs.is_empty()
        {
            std::mem::swap(first, second);
        }
    }
}
