//! All possible next events, for the search.

use crate::{
    recovery::Step,
    setup::{FIRST, MEMBERS, Setup, Sync, Weak, Work},
    state::{Client, Message, State},
};
use copal_volume::group::{
    Bucket, Closing, Event, Outcome, Role,
    invariants::{Known, check, check_equal},
};
use stateright::{Model, Property};

/// The invariants that hold in every state.
pub(crate) const TOLD: &str = "what clients were told holds";
/// I2.
pub(crate) const EQUAL: &str = "members become equal";
/// The search does complete operations.
pub(crate) const HELD: &str = "a create holds";

/// One event. Members and clients are numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Move {
    Start(usize),
    Arrives(Message),
    /// The member handles the call, and its answer is lost.
    ArrivesUnheard(Message),
    ClientLearnsView(usize),
    Deadline(usize),
    /// The client ends; its unsent calls are never sent.
    ClientIsGone(usize),
    MemberLearnsView(usize),
    IsTakenForAway(usize),
    ComesBack(usize),
    Restarts(usize),
    IsReplaced(usize),
    CopiesFrom(usize, usize),
    CopiesOne(usize),
    /// It persists that it has everything.
    HasEverything(usize),
    /// The master records it, and the member acts on the reply.
    BecomesWhole(usize),
    SaysItIsWhole(usize),
    Closes(usize),
    Settles(usize, usize),
    BringsOver(usize, Step),
}

impl Move {
    /// Number of members that can be distinguished after it.
    fn touches(&self, state: &State) -> usize {
        let touched = match *self {
            Move::Start(_) | Move::ClientLearnsView(_) | Move::ClientIsGone(_) | Move::Deadline(_) => None,
            Move::Arrives(message) | Move::ArrivesUnheard(message) => state.member_of(message.disk),
            Move::CopiesFrom(at, other) => Some(at.max(other)),
            Move::MemberLearnsView(at)
            | Move::IsTakenForAway(at)
            | Move::ComesBack(at)
            | Move::Restarts(at)
            | Move::IsReplaced(at)
            | Move::CopiesOne(at)
            | Move::HasEverything(at)
            | Move::BecomesWhole(at)
            | Move::SaysItIsWhole(at)
            | Move::Closes(at)
            | Move::Settles(at, _)
            | Move::BringsOver(at, _) => Some(at),
        };
        touched.map_or(0, |at| at + 1)
    }
}

impl Model for Setup {
    type State = State;
    type Action = Move;

    fn init_states(&self) -> Vec<State> {
        let mut state = State::first(self);
        for action in &self.before {
            // All members can be distinguished here.
            state.touched = MEMBERS;
            let mut moves = Vec::new();
            self.actions(&state, &mut moves);
            assert!(moves.contains(action), "{action:?} cannot happen; {moves:#?}");
            state = self.next_state(&state, action.clone()).expect("it changes something");
        }
        state.touched = if self.before.is_empty() { 0 } else { MEMBERS };
        vec![state]
    }

    fn actions(&self, state: &State, moves: &mut Vec<Move>) {
        client_moves(self, state, moves);
        // Members without any event are equal: the event happens to the first of them.
        for at in 0..MEMBERS.min(state.touched + 1) {
            failures(state, at, moves);
            recovery(self, state, at, moves);
        }
    }

    fn next_state(&self, last: &State, action: Move) -> Option<State> {
        let mut state = last.clone();
        state.touched = last.touched.max(action.touches(last));
        state.apply(self, action);
        state.tidy(self);
        for (before, after) in last.members.iter().zip(&state.members) {
            let (old, new) = (before.epoch(), after.epoch());
            assert!(before.disk != after.disk || old <= new, "I5: epochs never fall");
            // The master would count on it although it cannot be in sync.
            let is_lax = self.is_weak(Weak::WholeWithTwoOfOneName);
            let is_one = !after.has_everything() || !after.has_two_of_one_name();
            assert!(is_lax || is_one, "who has everything has one file of a name");
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Setup>> {
        vec![
            Property::always(TOLD, |setup: &Setup, state: &State| {
                check(&state.seen(), &state.files(setup)).is_ok()
            }),
            Property::always(EQUAL, |setup: &Setup, state: &State| {
                let is_looked_at = setup.checks_equal && state.is_quiet(setup);
                !is_looked_at || check_equal(&state.seen(), &state.files(setup)).is_ok()
            }),
            Property::sometimes(HELD, |setup: &Setup, state: &State| {
                state.files(setup).iter().any(|file| file.created == Known::Held)
            }),
        ]
    }
}

fn client_moves(setup: &Setup, state: &State, moves: &mut Vec<Move>) {
    for (at, client) in state.clients.iter().enumerate() {
        match client {
            Client::NotStarted => {
                let knows = match setup.work[at] {
                    Work::Create(_) => true,
                    Work::Delete(file) => state.members.iter().any(|member| member.live.has(file)),
                };
                if knows {
                    moves.push(Move::Start(at));
                }
            }
            Client::At(op) => {
                if op.view().epoch < state.master.map.view.epoch {
                    moves.push(Move::ClientLearnsView(at));
                }
                if state.left.deadlines > 0 {
                    moves.push(Move::Deadline(at));
                }
                if setup.checks_equal {
                    moves.push(Move::ClientIsGone(at));
                }
            }
            Client::Ended(_) => {}
        }
    }
    for message in &state.messages {
        if state.member_of(message.disk).is_some_and(|at| at <= state.touched) {
            moves.push(Move::Arrives(*message));
            if state.left.lost_answers > 0 && matches!(state.clients[message.client], Client::At(_)) {
                moves.push(Move::ArrivesUnheard(*message));
            }
        }
    }
}

fn failures(state: &State, at: usize, moves: &mut Vec<Move>) {
    let member = &state.members[at];
    let role = state.role_of(at);
    match role.is_up() {
        true if state.left.failures > 0 => moves.push(Move::IsTakenForAway(at)),
        true => {}
        false => moves.push(Move::ComesBack(at)),
    }
    if state.left.restarts > 0 {
        moves.push(Move::Restarts(at));
    }
    if !role.is_up() && state.left.replacements > 0 {
        moves.push(Move::IsReplaced(at));
    }
    if member.epoch() < state.master.map.view.epoch {
        moves.push(Move::MemberLearnsView(at));
    }
}

fn recovery(setup: &Setup, state: &State, at: usize, moves: &mut Vec<Move>) {
    let member = &state.members[at];
    let is_copying = member.copying.is_some() && !member.has_two_of_one_name();
    for other in (0..MEMBERS).filter(|&other| other != at) {
        if !is_copying && !member.has_everything() && state.may_copy(setup, at, other) {
            moves.push(Move::CopiesFrom(at, other));
        }
        if setup.sync == Sync::Containment
            && let Some(step) = state.forward(setup, at, other)
        {
            moves.push(Move::BringsOver(at, step));
        }
    }
    if state.next_to_copy(at).is_some() {
        moves.push(Move::CopiesOne(at));
    }
    if state.may_have_everything(setup, at) {
        moves.push(Move::HasEverything(at));
    }
    if state.may_become_whole(at) {
        moves.push(Move::BecomesWhole(at));
    }
    if let Some(stays) = state.settled(setup, at) {
        moves.push(Move::Settles(at, stays));
    }
    if state.may_say_whole(at) {
        moves.push(Move::SaysItIsWhole(at));
    }
    if member.closing.below < Bucket(FIRST.0 + setup.closings) {
        moves.push(Move::Closes(at));
    }
}

impl State {
    fn apply(&mut self, setup: &Setup, action: Move) {
        match action {
            Move::Start(client) => self.start(setup, client),
            Move::Arrives(message) => self.deliver(setup, message, false),
            Move::ArrivesUnheard(message) => {
                self.left.lost_answers -= 1;
                self.deliver(setup, message, true);
            }
            Move::ClientLearnsView(client) => {
                let view = self.master.map.view.clone();
                self.tell(client, Event::View(view));
            }
            Move::Deadline(client) => {
                self.left.deadlines -= 1;
                self.tell(client, Event::Deadline);
            }
            Move::ClientIsGone(client) => {
                self.clients[client] = Client::Ended(Outcome::Unknown);
                self.messages.retain(|message| message.client != client);
            }
            Move::MemberLearnsView(at) => {
                let map = self.master.map.clone();
                self.members[at].enter(setup, &map);
            }
            Move::IsTakenForAway(at) => {
                self.left.failures -= 1;
                self.give_role(at, Role::Failed);
            }
            Move::Restarts(at) => {
                self.left.restarts -= 1;
                self.members[at].restart();
                self.come_back(at);
            }
            Move::ComesBack(at) => self.come_back(at),
            Move::IsReplaced(at) => {
                self.left.replacements -= 1;
                self.replace(at);
            }
            Move::CopiesFrom(at, donor) => self.start_copying(setup, at, donor),
            Move::CopiesOne(at) => self.copy_one(at),
            Move::HasEverything(at) => self.have_everything(setup, at),
            Move::BecomesWhole(at) => self.become_whole(setup, at),
            Move::SaysItIsWhole(at) => self.give_role(at, Role::Normal),
            Move::Closes(at) => {
                let below = Bucket(self.members[at].closing.below.0 + 1);
                self.members[at].closing = Closing { below };
            }
            Move::Settles(at, stays) => self.settle(at, stays),
            Move::BringsOver(at, step) => self.bring_over(at, step),
        }
    }

    /// Whether no operation is under way, all buckets are sealed, and every running member is in sync and
    /// knows the view.
    fn is_quiet(&self, setup: &Setup) -> bool {
        let is_done = |client: &Client| !matches!(client, Client::At(_));
        let rests = |at: usize| {
            let member = &self.members[at];
            member.role.is_in_sync()
                && member.epoch() == self.master.map.view.epoch
                && member.closing.below == Bucket(FIRST.0 + setup.closings)
        };
        let brings = |at: usize, other: usize| {
            setup.sync == Sync::Containment && self.forward(setup, at, other).is_some()
        };
        self.clients.iter().all(is_done)
            && self.messages.is_empty()
            && (0..MEMBERS).all(rests)
            && (0..MEMBERS).all(|at| (0..MEMBERS).all(|other| !brings(at, other)))
    }
}
