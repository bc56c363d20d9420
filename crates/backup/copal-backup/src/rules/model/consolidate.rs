//! Model of a clean-up of a VM, of the check of a popular pack, and of the sweep of abandoned packs.

use super::backup::{enter_popular, put_popular};
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

/// Starts a clean-up of the first own frame that was not given up.
pub(super) fn begin_cleanup(fleet: &mut FleetState, vm: usize) -> Option<HostJob> {
    let state = &fleet.vms[vm];
    if in_use(state) != VmUse::Idle {
        return None;
    }
    let dead = fleet.store.dead_of(vm, state.dead.as_ref());
    let own = fleet.store.first_in_use(vm, &dead)?;
    let session = fleet.draw_session();
    Some(HostJob::CleanUp(CleanUp { vm, session, own, phase: CleanUpPhase::Begun }))
}

/// The record that a clean-up is about to append.
pub(super) fn append_of_cleanup(
    fleet: &mut FleetState,
    setup: &ModelSetup,
    host: usize,
    cleanup: &CleanUp,
) -> Option<PendingAppend> {
    let vm = cleanup.vm;
    match cleanup.phase {
        CleanUpPhase::Enters(pack) => enter_popular(fleet, host, pack),
        CleanUpPhase::Moves(popular, number)
            if in_use(&fleet.vms[vm]) == VmUse::Idle && fleet.next_number(ModelLog::Vm(vm)) == number =>
        {
            let state = fleet.vms[vm].clone();
            let (number, slot, id) = cleanup.own;
            let mut lists = lists_with(fleet, &state, vm, id, popular);
            let mut dead = fleet.store.dead_of(vm, state.dead.as_ref());
            // Otherwise the pack was rewritten meanwhile.
            if let Some(pack) = fleet.store.packs.get(&number) {
                add_dead(&mut dead, number, pack, slot);
            }
            let list = fleet.store.next_moved(vm, lists.len());
            if setup.is_weak(WeakRule::ListNotDurable) {
                lists.clear();
            }
            fleet.store.moved.insert((vm, list.number), lists);
            let floor = setup.list_floor(state.next_number);
            let dead = fleet.store.put_dead(vm, dead, floor);
            let record = Record::Moved { moved: vec![list], dead, resolved_below: 0 };
            Some(fleet.next(ModelLog::Vm(vm), record))
        }
        _ => None,
    }
}

fn lists_with(
    fleet: &FleetState,
    state: &crate::catalog::vm::VmState,
    vm: usize,
    id: Id,
    popular: PackNumber,
) -> BTreeMap<Id, PackNumber> {
    let in_force = state.moved.iter().filter_map(|list| fleet.store.moved.get(&(vm, list.number)));
    let mut lists: BTreeMap<Id, PackNumber> = in_force.flatten().map(|(id, pack)| (*id, *pack)).collect();
    lists.insert(id, popular);
    lists
}

/// The next step. `None`: the clean-up waits.
pub(super) fn go_on_with_cleanup(
    fleet: &mut FleetState,
    setup: &ModelSetup,
    host: usize,
    mut cleanup: CleanUp,
) -> Option<HostJob> {
    let (vm, (_, _, id)) = (cleanup.vm, cleanup.own);
    let append = append_of_cleanup(fleet, setup, host, &cleanup);
    let is_done = append.is_some_and(|append| fleet.append(&append));
    cleanup.phase = match cleanup.phase {
        CleanUpPhase::Begun => {
            let mut entered = fleet.popular.packs.iter().map(|pack| pack.pack);
            let found = entered.find(|pack| counts(&fleet.popular, *pack) && fleet.store.opens(*pack, id));
            match found {
                Some(pack) => CleanUpPhase::GivesUp(pack),
                None if fleet.left.popular > 0 => {
                    CleanUpPhase::Enters(put_popular(fleet, cleanup.session, id))
                }
                None => return Some(HostJob::Idle),
            }
        }
        CleanUpPhase::Enters(pack) => match entering(&fleet.popular, pack, 1) {
            EnterStep::Entered => CleanUpPhase::Waits(pack),
            _ => return Some(HostJob::Idle),
        },
        CleanUpPhase::Waits(pack) if counts(&fleet.popular, pack) && fleet.store.opens(pack, id) => {
            CleanUpPhase::GivesUp(pack)
        }
        CleanUpPhase::Waits(_) => return None,
        CleanUpPhase::GivesUp(pack) if counts(&fleet.popular, pack) || broken::by(Flaw::MovesToCondemned) => {
            CleanUpPhase::Moves(pack, fleet.next_number(ModelLog::Vm(vm)))
        }
        CleanUpPhase::GivesUp(_) => return Some(HostJob::Idle),
        CleanUpPhase::Moves(pack, number) if !is_done && fleet.next_number(ModelLog::Vm(vm)) != number => {
            match in_use(&fleet.vms[vm]) {
                VmUse::Idle => CleanUpPhase::GivesUp(pack),
                VmUse::Open | VmUse::Retired => return Some(HostJob::Idle),
            }
        }
        CleanUpPhase::Moves(pack, _) if is_done && setup.is_weak(WeakRule::ListNotDurable) => {
            CleanUpPhase::WritesList(pack)
        }
        CleanUpPhase::Moves(..) => {
            let state = fleet.vms[vm].clone();
            fleet.store.drop_lists(vm, &state, state.dead.as_ref(), 0);
            return Some(HostJob::Idle);
        }
        CleanUpPhase::WritesList(pack) => {
            let newest = fleet.vms[vm].moved.last().expect("a record names it").number;
            fleet.store.moved.entry((vm, newest)).or_default().insert(id, pack);
            return Some(HostJob::Idle);
        }
    };
    Some(HostJob::CleanUp(cleanup))
}

/// A host other than the writer decrypts all of a pack and records the result; `None`: no check is
/// needed.
pub(super) fn check_pack(fleet: &mut FleetState, host: usize, pack: PackNumber) -> Option<()> {
    let known = fleet.popular.pack(pack)?;
    let is_other = known.writer.0 != host as u64;
    let opens = fleet.store.shared(pack).is_some_and(|pack| pack.spoilt_by.is_none());
    if !is_other || !needs_check(&fleet.popular, pack) {
        return None;
    }
    let host = Some(host_key(host));
    let append = fleet.next(
        ModelLog::Popular,
        match opens {
            true => Record::Checked { pack, host },
            false => Record::Spoiled { pack, host },
        },
    );
    fleet.append(&append).then_some(())
}

/// A host records a check of its own pack, without doing it.
pub(super) fn claim_check(fleet: &mut FleetState, host: usize, pack: PackNumber) -> Option<()> {
    let known = fleet.popular.pack(pack)?;
    if known.writer.0 != host as u64 || known.checked_at.is_some() {
        return None;
    }
    fleet.left.lies -= 1;
    let host = Some(host_key(host));
    let append = fleet.next(ModelLog::Popular, Record::Checked { pack, host });
    fleet.append(&append).then_some(())
}

fn list_popular(fleet: &FleetState) -> Vec<(PackNumber, [u8; 16])> {
    let all = fleet.store.packs.iter();
    let shared = all.filter(|(number, _)| fleet.store.shared(**number).is_some());
    let unentered =
        shared.filter(|(number, _)| fleet.popular.pack(**number).is_none_or(|known| known.is_removed()));
    unentered.map(|(number, pack)| (*number, pack.session)).collect()
}

/// `is_newest_missed`: a delayed listing does not show the newest record of a log.
fn open_sessions(fleet: &FleetState, setup: &ModelSetup, is_newest_missed: bool) -> BTreeSet<[u8; 16]> {
    match is_newest_missed || setup.is_weak(WeakRule::TimeOfStore) {
        true => BTreeSet::new(),
        false => fleet.vms.iter().flat_map(|vm| vm.open.iter().copied()).collect(),
    }
}

/// The next step of a sweep.
pub(super) fn go_on_with_sweep(fleet: &mut FleetState, setup: &ModelSetup, mut sweep: SweepJob) -> HostJob {
    let is_turned = setup.is_weak(WeakRule::LogsBeforePacks);
    if let Some(pack) = sweep.going.take() {
        fleet.store.remove(pack);
        return HostJob::Sweep(sweep);
    }
    if sweep.open.is_none() && (is_turned || sweep.listed.is_some()) {
        sweep.open = Some(open_sessions(fleet, setup, setup.is_weak(WeakRule::PlainLogs)));
        return HostJob::Sweep(sweep);
    }
    let Some(listed) = &mut sweep.listed else {
        sweep.listed = Some(list_popular(fleet));
        return HostJob::Sweep(sweep);
    };
    let Some((pack, session)) = listed.pop() else {
        return HostJob::Idle;
    };
    let open: HashSet<[u8; 16]> = sweep.open.iter().flatten().copied().collect();
    let is_removed = match leftover(&fleet.popular, &open, pack, &session) {
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
            let append = fleet.next(ModelLog::Popular, mark);
            fleet.append(&append)
        }
    };
    sweep.going = is_removed.then_some(pack);
    HostJob::Sweep(sweep)
}
