//! Model of a clean-up of a VM, of the check of a popular pack, and of the sweep of abandoned packs.

use super::setup::{ModelSetup, WeakRule};
use super::state::{FleetState, HostJob, ModelLog, PendingAppend, host_key};
use super::store::{Id, add_dead};
use crate::catalog::record::Record;
use crate::packs::pack::PackNumber;
use crate::rules::broken::{self, Flaw};
use crate::steps::popular::{EnterStep, SweepStep, counts, entering, leftover, needs_check};
use crate::steps::removal::{VmUse, in_use};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Phase of a clean-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CleanUpPhase {
    Begun,
    /// It has stored the popular chunk.
    Enters(PackNumber),
    /// It waits for a check of the popular pack.
    Waits(PackNumber),
    /// It has decrypted the popular frame.
    GivesUp(PackNumber),
    /// It has read the VM's log up to this number, and then that the pack may be used.
    Moves(PackNumber, u64),
    /// It writes a list that a record already names.
    WritesList(PackNumber),
}

/// A clean-up of one frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CleanUp {
    vm: usize,
    session: [u8; 16],
    own: (PackNumber, u32, Id),
    pub(super) phase: CleanUpPhase,
}

/// A sweep of popular packs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SweepJob {
    /// The existing packs with their sessions; `None`: not listed yet.
    pub(super) listed: Option<Vec<(PackNumber, [u8; 16])>>,
    open: Option<BTreeSet<[u8; 16]>>,
    /// The pack that is removed next.
    going: Option<PackNumber>,
}

impl SweepJob {
    pub(super) fn new() -> SweepJob {
        SweepJob { listed: None, open: None, going: None }
    }
}

impl FleetState {
    /// Starts a clean-up of the first own frame that was not given up.
    pub(super) fn begin_cleanup(&mut self, vm: usize) -> Option<HostJob> {
        let state = &self.vms[vm];
        if in_use(state) != VmUse::Idle {
            return None;
        }
        let dead = self.store.dead_of(vm, state.dead.as_ref());
        let own = self.store.first_in_use(vm, &dead)?;
        let session = self.draw_session();
        Some(HostJob::CleanUp(CleanUp { vm, session, own, phase: CleanUpPhase::Begun }))
    }

    /// The record that a clean-up is about to append.
    pub(super) fn append_of_cleanup(
        &mut self,
        setup: &ModelSetup,
        host: usize,
        cleanup: &CleanUp,
    ) -> Option<PendingAppend> {
        let vm = cleanup.vm;
        match cleanup.phase {
            CleanUpPhase::Enters(pack) => self.enter(host, pack),
            CleanUpPhase::Moves(popular, number)
                if in_use(&self.vms[vm]) == VmUse::Idle && self.next_number(ModelLog::Vm(vm)) == number =>
            {
                let state = self.vms[vm].clone();
                let (number, slot, id) = cleanup.own;
                let mut lists = self.lists_with(&state, vm, id, popular);
                let mut dead = self.store.dead_of(vm, state.dead.as_ref());
                // Otherwise the pack was rewritten meanwhile.
                if let Some(pack) = self.store.packs.get(&number) {
                    add_dead(&mut dead, number, pack, slot);
                }
                let list = self.store.next_moved(vm, lists.len());
                if setup.is_weak(WeakRule::ListNotDurable) {
                    lists.clear();
                }
                self.store.moved.insert((vm, list.number), lists);
                let record = Record::Moved {
                    moved: vec![list],
                    dead: self.store.put_dead(vm, dead),
                    resolved_below: 0,
                };
                Some(self.next(ModelLog::Vm(vm), record))
            }
            _ => None,
        }
    }

    fn lists_with(
        &self,
        state: &crate::catalog::vm::VmState,
        vm: usize,
        id: Id,
        popular: PackNumber,
    ) -> BTreeMap<Id, PackNumber> {
        let in_force = state.moved.iter().filter_map(|list| self.store.moved.get(&(vm, list.number)));
        let mut lists: BTreeMap<Id, PackNumber> = in_force.flatten().map(|(id, pack)| (*id, *pack)).collect();
        lists.insert(id, popular);
        lists
    }

    /// The next step. `None`: the clean-up waits.
    pub(super) fn go_on_with_cleanup(
        &mut self,
        setup: &ModelSetup,
        host: usize,
        mut cleanup: CleanUp,
    ) -> Option<HostJob> {
        let (vm, (_, _, id)) = (cleanup.vm, cleanup.own);
        let append = self.append_of_cleanup(setup, host, &cleanup);
        let is_done = append.is_some_and(|append| self.append(&append));
        cleanup.phase = match cleanup.phase {
            CleanUpPhase::Begun => {
                let mut entered = self.popular.packs.iter().map(|pack| pack.pack);
                let found = entered.find(|pack| counts(&self.popular, *pack) && self.store.opens(*pack, id));
                match found {
                    Some(pack) => CleanUpPhase::GivesUp(pack),
                    None if self.left.popular > 0 => {
                        CleanUpPhase::Enters(self.put_popular(cleanup.session, id))
                    }
                    None => return Some(HostJob::Idle),
                }
            }
            CleanUpPhase::Enters(pack) => match entering(&self.popular, pack, 1) {
                EnterStep::Entered => CleanUpPhase::Waits(pack),
                _ => return Some(HostJob::Idle),
            },
            CleanUpPhase::Waits(pack) if counts(&self.popular, pack) && self.store.opens(pack, id) => {
                CleanUpPhase::GivesUp(pack)
            }
            CleanUpPhase::Waits(_) => return None,
            CleanUpPhase::GivesUp(pack)
                if counts(&self.popular, pack) || broken::by(Flaw::MovesToCondemned) =>
            {
                CleanUpPhase::Moves(pack, self.next_number(ModelLog::Vm(vm)))
            }
            CleanUpPhase::GivesUp(_) => return Some(HostJob::Idle),
            CleanUpPhase::Moves(pack, number) if !is_done && self.next_number(ModelLog::Vm(vm)) != number => {
                match in_use(&self.vms[vm]) {
                    VmUse::Idle => CleanUpPhase::GivesUp(pack),
                    VmUse::Open | VmUse::Retired => return Some(HostJob::Idle),
                }
            }
            CleanUpPhase::Moves(pack, _) if is_done && setup.is_weak(WeakRule::ListNotDurable) => {
                CleanUpPhase::WritesList(pack)
            }
            CleanUpPhase::Moves(..) => {
                let state = self.vms[vm].clone();
                self.store.drop_lists(vm, &state);
                return Some(HostJob::Idle);
            }
            CleanUpPhase::WritesList(pack) => {
                let newest = self.vms[vm].moved.last().expect("a record names it").number;
                self.store.moved.entry((vm, newest)).or_default().insert(id, pack);
                return Some(HostJob::Idle);
            }
        };
        Some(HostJob::CleanUp(cleanup))
    }

    /// A host other than the writer decrypts all of a pack and records the result; `None`: no check is
    /// needed.
    pub(super) fn check(&mut self, host: usize, pack: PackNumber) -> Option<()> {
        let known = self.popular.pack(pack)?;
        let is_other = known.writer.0 != host as u64;
        let opens = self.store.shared(pack).is_some_and(|pack| pack.spoilt_by.is_none());
        if !is_other || !needs_check(&self.popular, pack) {
            return None;
        }
        let host = Some(host_key(host));
        let append = self.next(
            ModelLog::Popular,
            match opens {
                true => Record::Checked { pack, host },
                false => Record::Spoiled { pack, host },
            },
        );
        self.append(&append).then_some(())
    }

    /// A host records a check of its own pack, without doing it.
    pub(super) fn lie(&mut self, host: usize, pack: PackNumber) -> Option<()> {
        let known = self.popular.pack(pack)?;
        if known.writer.0 != host as u64 || known.checked_at.is_some() {
            return None;
        }
        self.left.lies -= 1;
        let host = Some(host_key(host));
        let append = self.next(ModelLog::Popular, Record::Checked { pack, host });
        self.append(&append).then_some(())
    }

    fn list_popular(&self) -> Vec<(PackNumber, [u8; 16])> {
        let all = self.store.packs.iter();
        let shared = all.filter(|(number, _)| self.store.shared(**number).is_some());
        let unentered =
            shared.filter(|(number, _)| self.popular.pack(**number).is_none_or(|known| known.is_removed()));
        unentered.map(|(number, pack)| (*number, pack.session)).collect()
    }

    /// `is_newest_missed`: a delayed listing does not show the newest record of a log.
    fn open_sessions(&self, setup: &ModelSetup, is_newest_missed: bool) -> BTreeSet<[u8; 16]> {
        match is_newest_missed || setup.is_weak(WeakRule::TimeOfStore) {
            true => BTreeSet::new(),
            false => self.vms.iter().flat_map(|vm| vm.open.iter().copied()).collect(),
        }
    }

    /// The next step of a sweep.
    pub(super) fn go_on_with_sweep(&mut self, setup: &ModelSetup, mut sweep: SweepJob) -> HostJob {
        let is_turned = setup.is_weak(WeakRule::LogsBeforePacks);
        if let Some(pack) = sweep.going.take() {
            self.store.remove(pack);
            return HostJob::Sweep(sweep);
        }
        if sweep.open.is_none() && (is_turned || sweep.listed.is_some()) {
            sweep.open = Some(self.open_sessions(setup, setup.is_weak(WeakRule::PlainLogs)));
            return HostJob::Sweep(sweep);
        }
        let Some(listed) = &mut sweep.listed else {
            sweep.listed = Some(self.list_popular());
            return HostJob::Sweep(sweep);
        };
        let Some((pack, session)) = listed.pop() else {
            return HostJob::Idle;
        };
        let open: HashSet<[u8; 16]> = sweep.open.iter().flatten().copied().collect();
        let is_removed = match leftover(&self.popular, &open, pack, &session) {
            SweepStep::Stays => false,
            SweepStep::Remove => true,
            SweepStep::Mark { first_ordinal } => {
                let mark = Record::Popular {
                    volume: 0,
                    pack,
                    first_ordinal,
                    frames: 0,
                    writer: Default::default(),
                    host: None,
                };
                let append = self.next(ModelLog::Popular, mark);
                self.append(&append)
            }
        };
        sweep.going = is_removed.then_some(pack);
        HostJob::Sweep(sweep)
    }
}
