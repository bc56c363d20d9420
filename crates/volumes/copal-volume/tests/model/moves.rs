//! All possible next events, for the search.

use crate::{
    recovery::CopyStep,
    setup::{ClientWork, FIRST, MEMBERS, ResyncRule, SearchSetup, WeakRule},
    state::{CallMessage, ClientState, ModelState},
};
use copal_volume::group::{
    Bucket, BucketSeal, OperationEvent, OperationOutcome, Role,
    invariants::{KnownResult, check, check_equal},
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
pub(crate) enum ModelMove {
    Start(usize),
    Arrives(CallMessage),
    /// The member handles the call, and its answer is lost.
    ArrivesAnswerLost(CallMessage),
    ClientLearnsView(usize),
    Deadline(usize),
    /// The client ends; its unsent calls are never sent.
    ClientDies(usize),
    MemberLearnsView(usize),
    IsMarkedDown(usize),
    Returns(usize),
    Restarts(usize),
    IsReplaced(usize),
    CopiesFrom(usize, usize),
    CopiesOne(usize),
    /// It persists that it has everything.
    PersistsInSync(usize),
    /// The master records it, and the member acts on the reply.
    BecomesInSync(usize),
    ClaimsInSync(usize),
    Seals(usize),
    Settles(usize, usize),
    RollsForward(usize, CopyStep),
}

impl ModelMove {
    /// Number of members that can be distinguished after it.
    fn touches(&self, state: &ModelState) -> usize {
        let touched = match *self {
            ModelMove::Start(_)
            | ModelMove::ClientLearnsView(_)
            | ModelMove::ClientDies(_)
            | ModelMove::Deadline(_) => None,
            ModelMove::Arrives(message) | ModelMove::ArrivesAnswerLost(message) => {
                state.member_of(message.disk)
            }
            ModelMove::CopiesFrom(at, other) => Some(at.max(other)),
            ModelMove::MemberLearnsView(at)
            | ModelMove::IsMarkedDown(at)
            | ModelMove::Returns(at)
            | ModelMove::Restarts(at)
            | ModelMove::IsReplaced(at)
            | ModelMove::CopiesOne(at)
            | ModelMove::PersistsInSync(at)
            | ModelMove::BecomesInSync(at)
            | ModelMove::ClaimsInSync(at)
            | ModelMove::Seals(at)
            | ModelMove::Settles(at, _)
            | ModelMove::RollsForward(at, _) => Some(at),
        };
        touched.map_or(0, |at| at + 1)
    }
}

impl Model for SearchSetup {
    type State = ModelState;
    type Action = ModelMove;

    fn init_states(&self) -> Vec<ModelState> {
        let mut state = ModelState::first(self);
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

    fn actions(&self, state: &ModelState, moves: &mut Vec<ModelMove>) {
        client_moves(self, state, moves);
        // Members without any event are equal: the event happens to the first of them.
        for at in 0..MEMBERS.min(state.touched + 1) {
            failures(state, at, moves);
            recovery(self, state, at, moves);
        }
    }

    fn next_state(&self, last: &ModelState, action: ModelMove) -> Option<ModelState> {
        let mut state = last.clone();
        state.touched = last.touched.max(action.touches(last));
        state.apply(self, action);
        state.tidy(self);
        for (before, after) in last.members.iter().zip(&state.members) {
            let (old, new) = (before.epoch(), after.epoch());
            assert!(before.disk != after.disk || old <= new, "I5: epochs never fall");
            // The master would count on it although it cannot be in sync.
            let is_lax = self.is_weak(WeakRule::InSyncWithTwoFiles);
            let is_one = !after.has_everything() || !after.has_two_of_one_name();
            assert!(is_lax || is_one, "who has everything has one file of a name");
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<SearchSetup>> {
        vec![
            Property::always(TOLD, |setup: &SearchSetup, state: &ModelState| {
                check(&state.seen(), &state.files(setup)).is_ok()
            }),
            Property::always(EQUAL, |setup: &SearchSetup, state: &ModelState| {
                let is_looked_at = setup.checks_equal && state.is_quiet(setup);
                !is_looked_at || check_equal(&state.seen(), &state.files(setup)).is_ok()
            }),
            Property::sometimes(HELD, |setup: &SearchSetup, state: &ModelState| {
                state.files(setup).iter().any(|file| file.created == KnownResult::Complete)
            }),
        ]
    }
}

fn client_moves(setup: &SearchSetup, state: &ModelState, moves: &mut Vec<ModelMove>) {
    for (at, client) in state.clients.iter().enumerate() {
        match client {
            ClientState::NotStarted => {
                let knows = match setup.work[at] {
                    ClientWork::Create(_) => true,
                    ClientWork::Delete(file) => state.members.iter().any(|member| member.live.has(file)),
                };
                if knows {
                    moves.push(ModelMove::Start(at));
                }
            }
            ClientState::At(op) => {
                if op.view().epoch < state.master.map.view.epoch {
                    moves.push(ModelMove::ClientLearnsView(at));
                }
                if state.left.deadlines > 0 {
                    moves.push(ModelMove::Deadline(at));
                }
                if setup.checks_equal {
                    moves.push(ModelMove::ClientDies(at));
                }
            }
            ClientState::Ended(_) => {}
        }
    }
    for message in &state.messages {
        if state.member_of(message.disk).is_some_and(|at| at <= state.touched) {
            moves.push(ModelMove::Arrives(*message));
            if state.left.lost_answers > 0 && matches!(state.clients[message.client], ClientState::At(_)) {
                moves.push(ModelMove::ArrivesAnswerLost(*message));
            }
        }
    }
}

fn failures(state: &ModelState, at: usize, moves: &mut Vec<ModelMove>) {
    let member = &state.members[at];
    let role = state.role_of(at);
    match role.is_up() {
        true if state.left.failures > 0 => moves.push(ModelMove::IsMarkedDown(at)),
        true => {}
        false => moves.push(ModelMove::Returns(at)),
    }
    if state.left.restarts > 0 {
        moves.push(ModelMove::Restarts(at));
    }
    if !role.is_up() && state.left.replacements > 0 {
        moves.push(ModelMove::IsReplaced(at));
    }
    if member.epoch() < state.master.map.view.epoch {
        moves.push(ModelMove::MemberLearnsView(at));
    }
}

fn recovery(setup: &SearchSetup, state: &ModelState, at: usize, moves: &mut Vec<ModelMove>) {
    let member = &state.members[at];
    let is_copying = member.copying.is_some() && !member.has_two_of_one_name();
    for other in (0..MEMBERS).filter(|&other| other != at) {
        if !is_copying && !member.has_everything() && state.may_copy(setup, at, other) {
            moves.push(ModelMove::CopiesFrom(at, other));
        }
        if setup.sync == ResyncRule::Containment
            && let Some(step) = state.forward(setup, at, other)
        {
            moves.push(ModelMove::RollsForward(at, step));
        }
    }
    if state.next_to_copy(at).is_some() {
        moves.push(ModelMove::CopiesOne(at));
    }
    if state.may_persist_in_sync(setup, at) {
        moves.push(ModelMove::PersistsInSync(at));
    }
    if state.may_become_in_sync(at) {
        moves.push(ModelMove::BecomesInSync(at));
    }
    if let Some(stays) = state.settled(setup, at) {
        moves.push(ModelMove::Settles(at, stays));
    }
    if state.may_claim_in_sync(at) {
        moves.push(ModelMove::ClaimsInSync(at));
    }
    if member.seal.below < Bucket(FIRST.0 + setup.seals) {
        moves.push(ModelMove::Seals(at));
    }
}

impl ModelState {
    fn apply(&mut self, setup: &SearchSetup, action: ModelMove) {
        match action {
            ModelMove::Start(client) => self.start(setup, client),
            ModelMove::Arrives(message) => self.deliver(setup, message, false),
            ModelMove::ArrivesAnswerLost(message) => {
                self.left.lost_answers -= 1;
                self.deliver(setup, message, true);
            }
            ModelMove::ClientLearnsView(client) => {
                let view = self.master.map.view.clone();
                self.tell(client, OperationEvent::View(view));
            }
            ModelMove::Deadline(client) => {
                self.left.deadlines -= 1;
                self.tell(client, OperationEvent::Deadline);
            }
            ModelMove::ClientDies(client) => {
                self.clients[client] = ClientState::Ended(OperationOutcome::Unknown);
                self.messages.retain(|message| message.client != client);
            }
            ModelMove::MemberLearnsView(at) => {
                let map = self.master.map.clone();
                self.members[at].enter(setup, &map);
            }
            ModelMove::IsMarkedDown(at) => {
                self.left.failures -= 1;
                self.give_role(at, Role::Failed);
            }
            ModelMove::Restarts(at) => {
                self.left.restarts -= 1;
                self.members[at].restart();
                self.come_back(at);
            }
            ModelMove::Returns(at) => self.come_back(at),
            ModelMove::IsReplaced(at) => {
                self.left.replacements -= 1;
                self.replace(at);
            }
            ModelMove::CopiesFrom(at, donor) => self.start_copying(setup, at, donor),
            ModelMove::CopiesOne(at) => self.copy_one(at),
            ModelMove::PersistsInSync(at) => self.persist_in_sync(setup, at),
            ModelMove::BecomesInSync(at) => self.become_in_sync(setup, at),
            ModelMove::ClaimsInSync(at) => self.give_role(at, Role::Normal),
            ModelMove::Seals(at) => {
                let below = Bucket(self.members[at].seal.below.0 + 1);
                self.members[at].seal = BucketSeal { below };
            }
            ModelMove::Settles(at, stays) => self.settle(at, stays),
            ModelMove::RollsForward(at, step) => self.roll_forward_step(at, step),
        }
    }

    /// Whether no operation is under way, all buckets are sealed, and every running member is in sync and
    /// knows the view.
    fn is_quiet(&self, setup: &SearchSetup) -> bool {
        let is_done = |client: &ClientState| !matches!(client, ClientState::At(_));
        let rests = |at: usize| {
            let member = &self.members[at];
            member.role.is_in_sync()
                && member.epoch() == self.master.map.view.epoch
                && member.seal.below == Bucket(FIRST.0 + setup.seals)
        };
        let brings = |at: usize, other: usize| {
            setup.sync == ResyncRule::Containment && self.forward(setup, at, other).is_some()
        };
        self.clients.iter().all(is_done)
            && self.messages.is_empty()
            && (0..MEMBERS).all(rests)
            && (0..MEMBERS).all(|at| (0..MEMBERS).all(|other| !brings(at, other)))
    }
}
