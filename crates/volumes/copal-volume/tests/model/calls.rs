//! A call at a member, and its answer at the client, by the steps of servers and clients.

use crate::{
    setup::{MEMBERS, Setup, Sync, Weak, Work, create, delete, fid, number},
    state::{Client, Message, State},
};
use copal_volume::group::{
    Accept, Action, Answer, Call, ClientOp, CreateFacts, DeleteFacts, Event, Matching, Outcome, Role,
    decide_confirm, decide_create, decide_delete, match_epoch,
};
use std::sync::Arc;

impl State {
    /// Starts a client's operation.
    pub(crate) fn start(&mut self, setup: &Setup, client: usize) {
        let view = self.master.map.view.clone();
        let (op, actions) = match setup.work[client] {
            Work::Create(_) => ClientOp::create(view),
            Work::Delete(_) => ClientOp::delete(view),
        };
        self.clients[client] = Client::At(op);
        self.obey(client, actions);
    }

    /// Passes an event to a client's operation.
    pub(crate) fn tell(&mut self, client: usize, event: Event) {
        if let Client::At(op) = &mut self.clients[client] {
            let actions = op.step(event);
            self.obey(client, actions);
        }
    }

    fn obey(&mut self, client: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { disk, epoch, call } | Action::SendLater { disk, epoch, call } => {
                    self.messages.insert(Message { client, disk, epoch, call });
                }
                Action::Suspect(_) => {}
                Action::Finish(outcome) => self.clients[client] = Client::Ended(outcome),
            }
        }
    }

    /// A call arrives. `is_answer_lost`: the member handles it, and the client calls again.
    pub(crate) fn deliver(&mut self, setup: &Setup, message: Message, is_answer_lost: bool) {
        let Some(at) = self.member_of(message.disk) else {
            return;
        };
        if match_epoch(self.members[at].epoch(), message.epoch) == Matching::Refresh {
            let map = Arc::clone(&self.master.map);
            self.members[at].enter(setup, &map);
        }
        let event = match match_epoch(self.members[at].epoch(), message.epoch) {
            Matching::Run => Event::Answered {
                disk: message.disk,
                epoch: message.epoch,
                call: message.call,
                answer: match self.execute(setup, at, &message) {
                    Ok(role) => Answer::Ok { role },
                    Err(answer) => answer,
                },
            },
            Matching::Stale | Matching::Refresh => {
                let map = self.members[at].map.as_ref();
                Event::View(map.expect("it has an epoch").view.clone())
            }
        };
        if is_answer_lost {
            return;
        }
        self.messages.remove(&message);
        self.tell(message.client, event);
    }

    fn execute(&mut self, setup: &Setup, at: usize, message: &Message) -> Result<Role, Answer> {
        let (file, op) = match (setup.work[message.client], message.call) {
            (Work::Create(file), Call::Create | Call::Confirm) => (file, create(file)),
            (Work::Create(file) | Work::Delete(file), _) => (file, delete(file)),
        };
        let member = &mut self.members[at];
        if matches!(message.call, Call::Delete | Call::Bury) {
            decide_delete(&DeleteFacts {
                now_ms: op.ms(),
                op,
                is_volume_gone: false,
                is_buried: member.buried.has(file),
                is_closed: member.closing.is_closed(op),
                created_ms: 0,
            })?;
            member.bury(file);
            return Ok(member.role);
        }
        let is_lax = member.live.has(file) && setup.is_weak(Weak::ConfirmAfterClosing);
        let facts = CreateFacts {
            has_everything: member.has_everything(),
            now_ms: op.ms(),
            op,
            fid: fid(file),
            is_volume_gone: false,
            is_buried: member.buried.has(file),
            is_closed: member.closing.is_closed(op) && !is_lax,
            is_held: member.live.has(file),
            other: member.bound.map(fid).filter(|&other| number(other) != file),
        };
        let accept = match message.call {
            Call::Confirm => decide_confirm(&facts)?,
            _ => decide_create(&facts)?,
        };
        if accept != Accept::Again {
            member.take(file);
        }
        if let Sync::MissedLog { cache } = setup.sync
            && (accept != Accept::Again || !cache)
        {
            self.log_missed(at, file);
        }
        Ok(self.members[at].role)
    }

    /// The paper: a member that accepts an operation logs it for each member that is down.
    fn log_missed(&mut self, at: usize, file: usize) {
        for other in 0..MEMBERS {
            let disk = self.members[other].disk;
            let map = self.members[at].map.as_ref();
            if map.and_then(|map| map.view.role(disk)).is_some_and(|role| !role.is_up()) {
                self.members[at].missed[other].add(file);
            }
        }
    }

    /// Drops calls without further effect: those of older views whose client has ended or knows the newer
    /// view, and those of ended clients that the member has handled.
    pub(crate) fn tidy(&mut self, setup: &Setup) {
        let (members, clients) = (&self.members, &self.clients);
        self.messages.retain(|message| {
            let Some(member) = members.iter().find(|member| member.disk == message.disk) else {
                return false;
            };
            let is_old = message.epoch < member.epoch();
            let (Work::Create(file) | Work::Delete(file)) = setup.work[message.client];
            let is_known = match message.call {
                Call::Create => member.live.and(member.buried).has(file),
                Call::Confirm => true,
                Call::Delete | Call::Bury => member.buried.has(file),
            };
            match &clients[message.client] {
                Client::At(op) => !is_old || op.view().epoch < member.epoch(),
                Client::Ended(_) | Client::NotStarted => !is_old && !is_known,
            }
        });
        for client in &mut self.clients {
            // The reason of a refusal has no further effect.
            if let Client::Ended(Outcome::Refused(refusal)) = client {
                *refusal = copal_volume::group::Refusal::TooOld;
            }
        }
    }
}
