//! A call at a member, and its answer at the client, by the steps of servers and clients.

use crate::{
    setup::{ClientWork, MEMBERS, ResyncRule, SearchSetup, WeakRule, create, delete, fid, number},
    state::{CallMessage, ClientState, ModelState},
};
use copal_volume::group::{
    AcceptKind, CallKind, ClientOp, CreateFacts, DeleteFacts, EpochMatch, MemberAnswer, OperationAction,
    OperationEvent, OperationOutcome, Role, decide_confirm, decide_create, decide_delete, match_epoch,
};
use std::sync::Arc;

impl ModelState {
    /// Starts a client's operation.
    pub(crate) fn start(&mut self, setup: &SearchSetup, client: usize) {
        let view = self.master.map.view.clone();
        let (op, actions) = match setup.work[client] {
            ClientWork::Create(_) => ClientOp::create(view),
            ClientWork::Delete(_) => ClientOp::delete(view),
        };
        self.clients[client] = ClientState::At(op);
        self.obey(client, actions);
    }

    /// Passes an event to a client's operation.
    pub(crate) fn tell(&mut self, client: usize, event: OperationEvent) {
        if let ClientState::At(op) = &mut self.clients[client] {
            let actions = op.step(event);
            self.obey(client, actions);
        }
    }

    fn obey(&mut self, client: usize, actions: Vec<OperationAction>) {
        for action in actions {
            match action {
                OperationAction::Send { disk, epoch, call }
                | OperationAction::SendLater { disk, epoch, call } => {
                    self.messages.insert(CallMessage { client, disk, epoch, call });
                }
                OperationAction::Suspect(_) => {}
                OperationAction::Finish(outcome) => self.clients[client] = ClientState::Ended(outcome),
            }
        }
    }

    /// A call arrives. `is_answer_lost`: the member handles it, and the client calls again.
    pub(crate) fn deliver(&mut self, setup: &SearchSetup, message: CallMessage, is_answer_lost: bool) {
        let Some(at) = self.member_of(message.disk) else {
            return;
        };
        if match_epoch(self.members[at].epoch(), message.epoch) == EpochMatch::Refresh {
            let map = Arc::clone(&self.master.map);
            self.members[at].enter(setup, &map);
        }
        let event = match match_epoch(self.members[at].epoch(), message.epoch) {
            EpochMatch::Run => OperationEvent::Answered {
                disk: message.disk,
                epoch: message.epoch,
                call: message.call,
                answer: match self.execute(setup, at, &message) {
                    Ok(role) => MemberAnswer::Ok { role },
                    Err(answer) => answer,
                },
            },
            EpochMatch::Stale | EpochMatch::Refresh => {
                let map = self.members[at].map.as_ref();
                OperationEvent::View(map.expect("it has an epoch").view.clone())
            }
        };
        if is_answer_lost {
            return;
        }
        self.messages.remove(&message);
        self.tell(message.client, event);
    }

    fn execute(
        &mut self,
        setup: &SearchSetup,
        at: usize,
        message: &CallMessage,
    ) -> Result<Role, MemberAnswer> {
        let (file, op) = match (setup.work[message.client], message.call) {
            (ClientWork::Create(file), CallKind::Create | CallKind::Confirm) => (file, create(file)),
            (ClientWork::Create(file) | ClientWork::Delete(file), _) => (file, delete(file)),
        };
        let member = &mut self.members[at];
        if matches!(message.call, CallKind::Delete | CallKind::UndoCreate) {
            decide_delete(&DeleteFacts {
                now_ms: op.ms(),
                op,
                is_volume_gone: false,
                has_tombstone: member.deleted.has(file),
                is_sealed: member.seal.is_sealed(op),
                created_ms: 0,
            })?;
            member.delete(file);
            return Ok(member.role);
        }
        let is_lax = member.live.has(file) && setup.is_weak(WeakRule::ConfirmAfterSeal);
        let facts = CreateFacts {
            has_everything: member.has_everything(),
            now_ms: op.ms(),
            op,
            fid: fid(file),
            is_volume_gone: false,
            has_tombstone: member.deleted.has(file),
            is_sealed: member.seal.is_sealed(op) && !is_lax,
            is_live: member.live.has(file),
            other: member.bound.map(fid).filter(|&other| number(other) != file),
        };
        let accept = match message.call {
            CallKind::Confirm => decide_confirm(&facts)?,
            _ => decide_create(&facts)?,
        };
        if accept != AcceptKind::Again {
            member.take(file);
        }
        if let ResyncRule::MissedLog { cache } = setup.sync
            && (accept != AcceptKind::Again || !cache)
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
    pub(crate) fn tidy(&mut self, setup: &SearchSetup) {
        let (members, clients) = (&self.members, &self.clients);
        self.messages.retain(|message| {
            let Some(member) = members.iter().find(|member| member.disk == message.disk) else {
                return false;
            };
            let is_old = message.epoch < member.epoch();
            let (ClientWork::Create(file) | ClientWork::Delete(file)) = setup.work[message.client];
            let is_known = match message.call {
                CallKind::Create => member.live.and(member.deleted).has(file),
                CallKind::Confirm => true,
                CallKind::Delete | CallKind::UndoCreate => member.deleted.has(file),
            };
            match &clients[message.client] {
                ClientState::At(op) => !is_old || op.view().epoch < member.epoch(),
                ClientState::Ended(_) | ClientState::NotStarted => !is_old && !is_known,
            }
        });
        for client in &mut self.clients {
            // The reason of a refusal has no further effect.
            if let ClientState::Ended(OperationOutcome::Refused(refusal)) = client {
                *refusal = copal_volume::group::OperationRefusal::TooOld;
            }
        }
    }
}
