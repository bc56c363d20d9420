//! The client's part of a create or a delete: calls to all members of a group, without primary or quorum, in
//! one round trip.
//!
//! An operation is complete when every member that is up has answered Ok in one epoch, at least one of them
//! in role N, and enough of them have it on their device (VOL-12). After a change of the view, members that
//! have the bytes are asked to confirm; only the others are sent the bytes.
//!
//! Paper: beanfs §4.1, §5.1
//! Invariants
//! - A final refusal is reported only when no member can bring the file back (VOL-21): all members that are
//!   up delete it. If that is impossible in time, the outcome is reported as unknown.
//! - An answer counts only in the epoch for which it was given.
//!
//! Not here: members and their addresses, deadlines as times (the caller turns clocks into events).

use super::{
    member::MemberAnswer,
    role::Role,
    view::{DiskId, Epoch, View},
};
use crate::ids::FileId;
use std::collections::{BTreeMap, BTreeSet};

/// Kind of a client's call to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallKind {
    /// Accept the file, with its bytes.
    Create,
    /// Acknowledge in this epoch that the file is present.
    Confirm,
    /// Delete the file.
    Delete,
    /// Delete the file of this client's failed create.
    UndoCreate,
}

/// Event of an operation under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationEvent {
    /// A member answered a call that was sent in `epoch`.
    Answered {
        /// The member.
        disk: DiskId,
        /// Epoch of the call.
        epoch: Epoch,
        /// The call.
        call: CallKind,
        /// Answer of the member.
        answer: MemberAnswer,
    },
    /// A member could not be reached, or the connection broke before its answer.
    Unreachable {
        /// The member.
        disk: DiskId,
        /// The call.
        call: CallKind,
    },
    /// A view arrived: from the master, or from a member with a newer one.
    View(View),
    /// The caller's deadline: end the operation in one way or the other.
    Deadline,
    /// No time is left to delete a failed create.
    GiveUp,
}

/// Action of the caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OperationAction {
    /// Call a member in this epoch.
    Send {
        /// The member.
        disk: DiskId,
        /// Epoch of the call.
        epoch: Epoch,
        /// Kind of the call.
        call: CallKind,
    },
    /// Call a member a little later: it could not be reached, or is busy.
    SendLater {
        /// The member.
        disk: DiskId,
        /// Epoch of the call.
        epoch: Epoch,
        /// Kind of the call.
        call: CallKind,
    },
    /// Report to the master that a member does not answer.
    Suspect(DiskId),
    /// The operation has ended.
    Finish(OperationOutcome),
}

/// Reason of a final refusal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OperationRefusal {
    /// The name belongs to another file.
    Exists {
        /// The other file.
        fid: FileId,
    },
    /// The file was deleted by a client that settled it.
    Deleted,
    /// The bucket of the operation is sealed.
    TooOld,
    /// The client's time is wrong.
    ClockSkew,
    /// The volume was removed.
    VolumeGone,
    /// A member's disk is full.
    NoSpace,
    /// The file's id belongs to another name or volume.
    OtherFile,
    /// The quota is reached.
    QuotaExceeded {
        /// The volume's quota in bytes.
        quota: u64,
        /// Bytes of live files.
        used: u64,
        /// Bytes of the refused create.
        wanted: u64,
    },
    /// Too few members were up before the deadline.
    Degraded {
        /// Number of members that had it.
        have: usize,
        /// Number of members that were needed.
        need: usize,
    },
}

/// End of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OperationOutcome {
    /// It is complete: nothing takes it back.
    Complete,
    /// It did not happen and never will.
    Refused(OperationRefusal),
    /// Some member may have it; it may become complete or not.
    Unknown,
}

/// Known state of the operation on one member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum MemberProgress {
    /// A call was sent; it may have arrived.
    Sent,
    /// The member has the operation on its device, and answered so in this epoch.
    Has { epoch: Epoch, role: Role },
    /// The member does not have the operation, and will not accept it.
    Refused,
    /// The member has deleted the file, and answered so in this epoch.
    Deleted { epoch: Epoch, role: Role },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum OperationPhase {
    Sending,
    /// A member has no space, and no member has answered yet that it has the file. If all refuse it, there is
    /// nothing to delete, and a full disk gets no row of a delete.
    OutOfSpace {
        why: OperationRefusal,
    },
    /// The create has failed, and the file is deleted on all members that are up.
    Undoing {
        why: OperationRefusal,
    },
    Ended,
}

/// One operation under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientOp {
    is_create: bool,
    /// Whether a failed operation may delete the file: true for its creator, false for a client that only
    /// copies an existing file to other members.
    may_delete: bool,
    view: View,
    /// Epoch of the first call.
    first: Epoch,
    members: BTreeMap<DiskId, MemberProgress>,
    /// Members that were called more than once: a refusal of one call does not cover the others.
    again: BTreeSet<DiskId>,
    /// Whether any member has answered that it has the operation.
    was_taken: bool,
    phase: OperationPhase,
}

impl ClientOp {
    /// Starts to create a file on the members of `view`.
    pub fn create(view: View) -> (ClientOp, Vec<OperationAction>) {
        ClientOp::start(true, true, view)
    }

    /// Starts to copy a file of some member to all members of `view`. It may be acknowledged already, so it
    /// is never deleted: after a refusal the outcome is unknown.
    pub fn complete(view: View) -> (ClientOp, Vec<OperationAction>) {
        ClientOp::start(true, false, view)
    }

    /// Starts to delete a file on the members of `view`.
    pub fn delete(view: View) -> (ClientOp, Vec<OperationAction>) {
        ClientOp::start(false, false, view)
    }

    fn start(is_create: bool, may_delete: bool, view: View) -> (ClientOp, Vec<OperationAction>) {
        let mut op = ClientOp {
            is_create,
            may_delete,
            first: view.epoch,
            view,
            members: BTreeMap::new(),
            again: BTreeSet::new(),
            was_taken: false,
            phase: OperationPhase::Sending,
        };
        let actions = op.send_to_all();
        (op, actions)
    }

    /// States that the caller has sent creates and deletes to these members only, and sends no more: all
    /// other members have no trace of the operation. Must be called before [`OperationEvent::Deadline`].
    pub fn only_reached(&mut self, reached: &BTreeSet<DiskId>) {
        for (disk, state) in &mut self.members {
            if *state == MemberProgress::Sent && !reached.contains(disk) {
                *state = MemberProgress::Refused;
            }
        }
    }

    /// The current view of the operation.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Handles an event and returns the actions. Events after the end change nothing.
    pub fn step(&mut self, event: OperationEvent) -> Vec<OperationAction> {
        match (self.phase.clone(), event) {
            (OperationPhase::Ended, _) => Vec::new(),
            (OperationPhase::Sending, event) => self.step_sending(event),
            (OperationPhase::OutOfSpace { why }, event) => self.step_out_of_space(why, event),
            (OperationPhase::Undoing { why }, event) => self.step_undoing(why, event),
        }
    }

    fn step_sending(&mut self, event: OperationEvent) -> Vec<OperationAction> {
        match event {
            OperationEvent::Answered { disk, epoch, call, answer } => {
                self.answered(disk, epoch, call, answer)
            }
            OperationEvent::Unreachable { disk, call } => {
                let mut actions = vec![OperationAction::Suspect(disk)];
                actions.extend(self.again_later(disk, call));
                actions
            }
            OperationEvent::View(view) if view.epoch > self.view.epoch => {
                self.view = view;
                self.send_to_all()
            }
            OperationEvent::View(_) => Vec::new(),
            OperationEvent::Deadline | OperationEvent::GiveUp => {
                let have = self.holding().count();
                let need = self.view.needed();
                self.refuse(OperationRefusal::Degraded { have, need })
            }
        }
    }

    fn answered(
        &mut self,
        disk: DiskId,
        epoch: Epoch,
        call: CallKind,
        answer: MemberAnswer,
    ) -> Vec<OperationAction> {
        let refusal = match answer {
            MemberAnswer::Ok { role } => {
                self.was_taken = true;
                self.members.insert(disk, MemberProgress::Has { epoch, role });
                if epoch < self.view.epoch {
                    return self.send(disk).into_iter().collect();
                }
                return self.complete_if_all();
            }
            MemberAnswer::Missing => {
                self.members.insert(disk, MemberProgress::Sent);
                return self.send(disk).into_iter().collect();
            }
            MemberAnswer::Busy => return self.again_later(disk, call),
            MemberAnswer::Exists { fid } => OperationRefusal::Exists { fid },
            MemberAnswer::Deleted => OperationRefusal::Deleted,
            MemberAnswer::TooOld => OperationRefusal::TooOld,
            MemberAnswer::ClockSkew => OperationRefusal::ClockSkew,
            MemberAnswer::VolumeGone => OperationRefusal::VolumeGone,
            MemberAnswer::NoSpace => OperationRefusal::NoSpace,
            MemberAnswer::OtherFile => OperationRefusal::OtherFile,
            MemberAnswer::QuotaExceeded { quota, used, wanted } => {
                OperationRefusal::QuotaExceeded { quota, used, wanted }
            }
        };
        self.note_refused(disk, &refusal);
        self.refuse(refusal)
    }

    /// Records that a member which refused its only call does not have the operation.
    fn note_refused(&mut self, disk: DiskId, refusal: &OperationRefusal) {
        let was_sent = matches!(self.members.get(&disk), Some(MemberProgress::Sent));
        let never_has = matches!(refusal, OperationRefusal::Deleted | OperationRefusal::OtherFile);
        if never_has || (was_sent && !self.again.contains(&disk)) {
            self.members.insert(disk, MemberProgress::Refused);
        }
    }

    /// Calls every member that is up and has not answered in this epoch.
    fn send_to_all(&mut self) -> Vec<OperationAction> {
        let up: Vec<DiskId> = self.view.up().collect();
        up.into_iter().filter_map(|disk| self.send(disk)).collect()
    }

    fn send(&mut self, disk: DiskId) -> Option<OperationAction> {
        let epoch = self.view.epoch;
        if !self.view.role(disk)?.is_up() {
            return None;
        }
        let call = match self.members.get(&disk) {
            Some(MemberProgress::Has { epoch: of, .. }) if *of == epoch => return None,
            Some(MemberProgress::Has { .. }) if self.is_create => CallKind::Confirm,
            _ if self.is_create => CallKind::Create,
            _ => CallKind::Delete,
        };
        // A member with the operation keeps it, even if the confirmation fails.
        let has = matches!(self.members.get(&disk), Some(MemberProgress::Has { .. }));
        if !has && self.members.insert(disk, MemberProgress::Sent).is_some() {
            self.again.insert(disk);
        }
        Some(OperationAction::Send { disk, epoch, call })
    }

    fn again_later(&mut self, disk: DiskId, call: CallKind) -> Vec<OperationAction> {
        let epoch = self.view.epoch;
        self.again.insert(disk);
        let is_up = self.view.role(disk).is_some_and(Role::is_up);
        let later = OperationAction::SendLater { disk, epoch, call };
        is_up.then_some(later).into_iter().collect()
    }

    /// Roles of members that answered Ok in the current epoch.
    fn holding(&self) -> impl Iterator<Item = Role> + '_ {
        self.view.up().filter_map(|disk| match self.members.get(&disk) {
            Some(MemberProgress::Has { epoch, role }) if *epoch == self.view.epoch => Some(*role),
            _ => None,
        })
    }

    fn complete_if_all(&mut self) -> Vec<OperationAction> {
        let up = self.view.up().count();
        let have: Vec<Role> = self.holding().collect();
        if have.len() < up || have.len() < self.view.needed() || !have.iter().copied().any(Role::is_in_sync) {
            return Vec::new();
        }
        self.end(OperationOutcome::Complete)
    }

    /// Ends a failed operation. A create is deleted wherever it may have arrived. A delete may be repeated by
    /// any client.
    fn refuse(&mut self, why: OperationRefusal) -> Vec<OperationAction> {
        if !self.is_create {
            // Once a member has accepted it, it spreads despite the refusals of others.
            let is_untouched = self.members.values().all(|reached| *reached == MemberProgress::Refused);
            // No member deletes a file of a removed volume, or under a name that is not the file's.
            let is_final = matches!(why, OperationRefusal::VolumeGone | OperationRefusal::OtherFile);
            return self.end(match is_untouched || is_final {
                true => OperationOutcome::Refused(why),
                false => OperationOutcome::Unknown,
            });
        }
        if !self.may_delete {
            return self.end(OperationOutcome::Unknown);
        }
        if !self.was_taken && self.may_have().next().is_none() {
            return self.end(OperationOutcome::Refused(why));
        }
        let is_for_room = matches!(why, OperationRefusal::NoSpace | OperationRefusal::QuotaExceeded { .. });
        if is_for_room && !self.was_taken && self.phase == OperationPhase::Sending {
            self.phase = OperationPhase::OutOfSpace { why };
            return Vec::new();
        }
        self.begin_undo(why)
    }

    fn begin_undo(&mut self, why: OperationRefusal) -> Vec<OperationAction> {
        self.phase = OperationPhase::Undoing { why };
        self.send_undo()
    }

    /// Handles answers of the other members to a create that one has no space for. Any event except their
    /// refusals starts the delete.
    fn step_out_of_space(&mut self, why: OperationRefusal, event: OperationEvent) -> Vec<OperationAction> {
        match event {
            OperationEvent::Answered {
                disk,
                answer: MemberAnswer::NoSpace | MemberAnswer::QuotaExceeded { .. },
                ..
            } => {
                self.note_refused(disk, &OperationRefusal::NoSpace);
                match self.may_have().count() {
                    0 => self.end(OperationOutcome::Refused(why)),
                    _ => Vec::new(),
                }
            }
            OperationEvent::Answered { disk, epoch, answer: MemberAnswer::Ok { role }, .. } => {
                self.was_taken = true;
                self.members.insert(disk, MemberProgress::Has { epoch, role });
                self.begin_undo(why)
            }
            OperationEvent::Unreachable { disk, .. } => {
                let mut actions = vec![OperationAction::Suspect(disk)];
                actions.extend(self.begin_undo(why));
                actions
            }
            OperationEvent::View(view) if view.epoch <= self.view.epoch => Vec::new(),
            OperationEvent::View(view) => {
                self.view = view;
                self.begin_undo(why)
            }
            OperationEvent::Answered { .. } | OperationEvent::Deadline | OperationEvent::GiveUp => {
                self.begin_undo(why)
            }
        }
    }

    fn may_have(&self) -> impl Iterator<Item = DiskId> + '_ {
        let has_none = |reached: &MemberProgress| {
            matches!(reached, MemberProgress::Refused | MemberProgress::Deleted { .. })
        };
        let touched = self.members.iter();
        touched.filter_map(move |(disk, reached)| (!has_none(reached)).then_some(*disk))
    }

    /// Members that still have to delete the file: all that are up, as for a delete. A member that was not
    /// called, or that refused, may have copied the file from another one, in a resync or by roll-forward.
    fn undo_targets(&self) -> Vec<DiskId> {
        let present = self.view.epoch;
        let is_left = |disk: &DiskId| match self.members.get(disk) {
            Some(MemberProgress::Deleted { epoch, .. }) => *epoch != present,
            _ => true,
        };
        self.view.up().filter(is_left).collect()
    }

    fn send_undo(&mut self) -> Vec<OperationAction> {
        let (epoch, call) = (self.view.epoch, CallKind::UndoCreate);
        let send = |disk| OperationAction::Send { disk, epoch, call };
        self.undo_targets().into_iter().map(send).collect()
    }

    /// Whether no member can bring the file back. In the epoch of the first call only members that are up can
    /// have it. After a change of the view a member that is down may have it; it learns of the delete later,
    /// as of any delete.
    fn is_undone(&self) -> bool {
        if !self.undo_targets().is_empty() {
            return false;
        }
        let present = self.view.epoch;
        let roles = self.view.up().filter_map(|disk| match self.members.get(&disk) {
            Some(MemberProgress::Deleted { epoch, role }) if *epoch == present => Some(*role),
            _ => None,
        });
        let roles: Vec<Role> = roles.collect();
        present == self.first
            || (roles.len() >= self.view.needed() && roles.iter().copied().any(Role::is_in_sync))
    }

    fn step_undoing(&mut self, why: OperationRefusal, event: OperationEvent) -> Vec<OperationAction> {
        let present = self.view.epoch;
        match event {
            OperationEvent::Answered { answer: MemberAnswer::VolumeGone, .. } => {
                self.end(OperationOutcome::Refused(why))
            }
            OperationEvent::Answered {
                disk,
                epoch,
                call: call @ CallKind::UndoCreate,
                answer: answer @ (MemberAnswer::Ok { .. } | MemberAnswer::OtherFile),
            } => {
                let role = match answer {
                    MemberAnswer::Ok { role } => role,
                    // This member has no such file and accepts none in any role; its answer carries no role.
                    _ => Role::Recovering,
                };
                self.members.insert(disk, MemberProgress::Deleted { epoch, role });
                if self.is_undone() {
                    return self.end(OperationOutcome::Refused(why));
                }
                let again = epoch < present && self.undo_targets().contains(&disk);
                let send = OperationAction::Send { disk, epoch: present, call };
                again.then_some(send).into_iter().collect()
            }
            OperationEvent::Answered { disk, call: call @ CallKind::UndoCreate, .. }
            | OperationEvent::Unreachable { disk, call: call @ CallKind::UndoCreate } => {
                let later = OperationAction::SendLater { disk, epoch: present, call };
                let is_wanted = self.undo_targets().contains(&disk);
                is_wanted.then_some(later).into_iter().collect()
            }
            // A late answer to a create: a delete is under way to that member already, or is needed now.
            OperationEvent::Answered { disk, answer: MemberAnswer::Ok { role }, epoch, .. } => {
                self.was_taken = true;
                if matches!(self.members.get(&disk), Some(MemberProgress::Deleted { .. })) {
                    return Vec::new();
                }
                let known = self.members.insert(disk, MemberProgress::Has { epoch, role });
                let send = OperationAction::Send { disk, epoch: present, call: CallKind::UndoCreate };
                let is_needed = matches!(known, Some(MemberProgress::Refused) | None);
                is_needed.then_some(send).into_iter().collect()
            }
            OperationEvent::View(view) if view.epoch > present => {
                self.view = view;
                self.send_undo()
            }
            OperationEvent::GiveUp => self.end(OperationOutcome::Unknown),
            OperationEvent::Answered { .. }
            | OperationEvent::Unreachable { .. }
            | OperationEvent::View(_)
            | OperationEvent::Deadline => Vec::new(),
        }
    }

    fn end(&mut self, outcome: OperationOutcome) -> Vec<OperationAction> {
        self.phase = OperationPhase::Ended;
        vec![OperationAction::Finish(outcome)]
    }
}

#[cfg(test)]
mod tests;
