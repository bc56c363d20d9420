//! Whose turn it is on a host: one VM reads or stores at a time, round after round. Pure but for the waiting.
//!
//! Invariants
//! - A part is read in its round, and no round begins before all parts of the one before it are stored, or
//!   given up.
//! - Whoever waits for a turn gets it, or learns that the job ends.

use parking_lot::{Condvar, Mutex};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// A VM's place in the plan, and one of its parts.
pub(crate) type PlanPart = (usize, u32);

/// How often who waits looks whether the job ends.
const LOOK: Duration = Duration::from_millis(200);
/// A part is stored in two turns: what all shall find, then the rest.
const STORE_TURNS: u32 = 2;

/// What a turn made of its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnEffect {
    /// Others go on.
    More,
    /// Everything of the round has been asked.
    AllAsked,
}

/// Turns of a job on this host.
pub(crate) struct TurnTable {
    state: Mutex<TurnState>,
    changed: Condvar,
}

struct TurnState {
    /// Parts of each round, in the order in which they are read.
    rounds: Vec<Vec<PlanPart>>,
    round: usize,
    /// Whoever has the turn.
    holder: Option<usize>,
    read: BTreeSet<PlanPart>,
    stored: BTreeMap<PlanPart, u32>,
    /// VMs that have ended.
    ended: BTreeSet<usize>,
    /// Whether it was said of the round that all is asked.
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

    /// Whether the round is asked through, said once.
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
            self.changed.wait_for(&mut state, LOOK);
        }
    }

    /// The part was read and asked about.
    pub(crate) fn end_reading(&self, item: PlanPart) -> TurnEffect {
        self.end(|state| {
            state.read.insert(item);
        })
    }

    /// One of the turns that store the part is over.
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

    /// The VM has no more parts, or gives up.
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

    /// VMs whose first part is in the round that is on.
    pub(crate) fn beginners(&self) -> Vec<usize> {
        let state = self.state.lock();
        let first = state.now().iter().filter(|(_, part)| *part == 0);
        first.map(|(vm, _)| *vm).collect()
    }

    /// Whether the round that is on has been asked through without anybody's turn: it has no parts, or their
    /// VMs ended.
    pub(crate) fn look(&self) -> TurnEffect {
        self.state.lock().after()
    }

    /// Waits until the round that is on is stored, and begins the next. `false`: that was the last, or the
    /// job ends.
    pub(crate) fn next_round(&self, ends: &dyn Fn() -> bool) -> bool {
        let mut state = self.state.lock();
        while !state.now().iter().all(|item| state.is_stored(item)) {
            if ends() {
                return false;
            }
            self.changed.wait_for(&mut state, LOOK);
        }
        state.round += 1;
        state.is_asked = false;
        let more = state.round < state.rounds.len();
        drop(state);
        self.changed.notify_all();
        more
    }

    /// The round that is on, from 0.
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
        // It fails while it has the turn.
        assert_eq!(turns.end_vm(1), TurnEffect::AllAsked);
        assert!(!turns.next_round(&GOES_ON));
    }

    #[test]
    fn a_vm_that_ends_holds_up_nobody() {
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
    fn who_waits_learns_that_the_job_ends() {
        let turns = TurnTable::new(vec![vec![(0, 0), (1, 0)]]);
        assert!(!turns.begin_reading((1, 0), &|| true));
        assert!(!turns.next_round(&|| true));
    }
}
