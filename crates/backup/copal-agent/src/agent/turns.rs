//! Turns on a host: one VM reads or stores at a time, round after round. Pure, except for the waiting.
//!
//! Invariants
//! - A part is read in its round, and a round begins only after all parts of the previous one are stored or
//!   given up.
//! - A thread that waits for a turn gets it, or learns that the job ends.

use parking_lot::{Condvar, Mutex};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// A VM's position in the plan, and one of its parts.
pub(crate) type PlanPart = (usize, u32);

/// Poll interval of threads that wait for a turn.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// A part is stored in two turns: popular chunks first, then the rest.
const STORE_TURNS: u32 = 2;

/// Effect of a turn on its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnEffect {
    /// The round continues with other turns.
    More,
    /// All parts of the round have been asked about.
    AllAsked,
}

/// Turns of a job on this host.
pub(crate) struct TurnTable {
    state: Mutex<TurnState>,
    changed: Condvar,
}

struct TurnState {
    /// Parts of each round, in reading order.
    rounds: Vec<Vec<PlanPart>>,
    round: usize,
    /// The VM that has the turn.
    holder: Option<usize>,
    read: BTreeSet<PlanPart>,
    stored: BTreeMap<PlanPart, u32>,
    /// VMs that have ended.
    ended: BTreeSet<usize>,
    /// Whether the end of the round's queries was reported.
    is_asked: bool,
}

impl TurnState {
    fn now(&self) -> &[PlanPart] {
        self.rounds.get(self.round).map_or(&[], Vec::as_slice)
    }

    fn is_read(&self, item: &PlanPart) -> bool {
        self.read.contains(item) || self.ended.contains(&item.0)
    }

    fn is_stored(&self, item: &PlanPart) -> bool {
        self.stored.get(item).is_some_and(|turns| *turns >= STORE_TURNS) || self.ended.contains(&item.0)
    }

    /// Whether all parts of the round have been asked about; reported once.
    fn after(&mut self) -> TurnEffect {
        if !self.is_asked && self.now().iter().all(|item| self.is_read(item)) {
            self.is_asked = true;
            return TurnEffect::AllAsked;
        }
        TurnEffect::More
    }
}

impl TurnTable {
    pub(crate) fn new(rounds: Vec<Vec<PlanPart>>) -> TurnTable {
        TurnTable {
            state: Mutex::new(TurnState {
                rounds,
                round: 0,
                holder: None,
                read: BTreeSet::new(),
                stored: BTreeMap::new(),
                ended: BTreeSet::new(),
                is_asked: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Waits until a part may be read. `false`: the job ends.
    pub(crate) fn begin_reading(&self, item: PlanPart, ends: &dyn Fn() -> bool) -> bool {
        self.wait_for(item.0, ends, |state| {
            let next = state.now().iter().find(|other| !state.is_read(other));
            next == Some(&item)
        })
    }

    /// Waits until a part may be stored. `false`: the job ends.
    pub(crate) fn begin_storing(&self, vm: usize, ends: &dyn Fn() -> bool) -> bool {
        self.wait_for(vm, ends, |_| true)
    }

    fn wait_for(&self, vm: usize, ends: &dyn Fn() -> bool, is_due: impl Fn(&TurnState) -> bool) -> bool {
        let mut state = self.state.lock();
        loop {
            if ends() {
                return false;
            }
            if state.holder.is_none() && is_due(&state) {
                state.holder = Some(vm);
                return true;
            }
            self.changed.wait_for(&mut state, POLL_INTERVAL);
        }
    }

    /// Ends a reading turn: the part was read and asked about.
    pub(crate) fn end_reading(&self, item: PlanPart) -> TurnEffect {
        self.end(|state| {
            state.read.insert(item);
        })
    }

    /// Ends one of the turns that store the part.
    pub(crate) fn end_storing(&self, item: PlanPart) -> TurnEffect {
        self.end(|state| *state.stored.entry(item).or_default() += 1)
    }

    fn end(&self, note: impl FnOnce(&mut TurnState)) -> TurnEffect {
        let mut state = self.state.lock();
        state.holder = None;
        note(&mut state);
        let after = state.after();
        drop(state);
        self.changed.notify_all();
        after
    }

    /// Ends a VM: it has no more parts, or gives up.
    pub(crate) fn end_vm(&self, vm: usize) -> TurnEffect {
        let mut state = self.state.lock();
        state.ended.insert(vm);
        if state.holder == Some(vm) {
            state.holder = None;
        }
        let after = state.after();
        drop(state);
        self.changed.notify_all();
        after
    }

    /// VMs whose first part is in the current round.
    pub(crate) fn beginners(&self) -> Vec<usize> {
        let state = self.state.lock();
        let first = state.now().iter().filter(|(_, part)| *part == 0);
        first.map(|(vm, _)| *vm).collect()
    }

    /// Whether the queries of the current round have ended without a turn: it has no parts, or their VMs
    /// ended.
    pub(crate) fn look(&self) -> TurnEffect {
        self.state.lock().after()
    }

    /// Waits until the current round is stored, and begins the next. `false`: there is none, or the job ends.
    pub(crate) fn next_round(&self, ends: &dyn Fn() -> bool) -> bool {
        let mut state = self.state.lock();
        while !state.now().iter().all(|item| state.is_stored(item)) {
            if ends() {
                return false;
            }
            self.changed.wait_for(&mut state, POLL_INTERVAL);
        }
        state.round += 1;
        state.is_asked = false;
        let more = state.round < state.rounds.len();
        drop(state);
        self.changed.notify_all();
        more
    }

    /// The current round, from 0.
    pub(crate) fn round(&self) -> usize {
        self.state.lock().round
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOES_ON: fn() -> bool = || false;

    #[test]
    fn parts_are_read_in_their_order_and_stored_in_any() {
        let turns = TurnTable::new(vec![vec![(1, 0), (0, 0)], vec![(1, 1)]]);
        assert_eq!(turns.beginners(), [1, 0]);
        assert!(turns.begin_reading((1, 0), &GOES_ON));
        assert_eq!(turns.end_reading((1, 0)), TurnEffect::More);
        assert!(turns.begin_reading((0, 0), &GOES_ON));
        assert_eq!(turns.end_reading((0, 0)), TurnEffect::AllAsked);
        for item in [(0, 0), (1, 0), (1, 0), (0, 0)] {
            assert!(turns.begin_storing(item.0, &GOES_ON));
            assert_eq!(turns.end_storing(item), TurnEffect::More);
        }
        assert_eq!(turns.end_vm(0), TurnEffect::More);
        assert!(turns.next_round(&GOES_ON));
        assert_eq!((turns.round(), turns.beginners()), (1, vec![]));
        assert!(turns.begin_reading((1, 1), &GOES_ON));
        // The VM fails while it has the turn.
        assert_eq!(turns.end_vm(1), TurnEffect::AllAsked);
        assert!(!turns.next_round(&GOES_ON));
    }

    #[test]
    fn a_vm_that_ends_delays_no_other() {
        let turns = TurnTable::new(vec![vec![(0, 0), (1, 0)], vec![]]);
        assert_eq!(turns.end_vm(0), TurnEffect::More);
        assert!(turns.begin_reading((1, 0), &GOES_ON));
        assert_eq!(turns.end_reading((1, 0)), TurnEffect::AllAsked);
        assert_eq!(turns.end_vm(1), TurnEffect::More);
        assert!(turns.next_round(&GOES_ON));
        assert_eq!(turns.look(), TurnEffect::AllAsked, "nothing to ask in an empty round");
        assert_eq!(turns.look(), TurnEffect::More, "said once");
        assert!(!turns.next_round(&GOES_ON));
    }

    #[test]
    fn waiting_vms_learn_that_the_job_ends() {
        let turns = TurnTable::new(vec![vec![(0, 0), (1, 0)]]);
        assert!(!turns.begin_reading((1, 0), &|| true));
        assert!(!turns.next_round(&|| true));
    }
}
