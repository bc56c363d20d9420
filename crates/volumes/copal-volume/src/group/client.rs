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
    member::Answer,
    role::Role,
    view::{DiskId, Epoch, View},
};
use crate::ids::FileId;
use std::collections::{BTreeMap, BTreeSet};

/// Kind of a client's call to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// Accept the file, with its bytes.
    Create,
    /// Acknowledge in this epoch that the file is present.
    Confirm,
    /// Delete the file.
    Delete,
    /// Delete the file of this client's failed create.
    Bury,
}

/// Event of an operation under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member answered a call that was sent in `epoch`.
    Answered {
        /// The member.
        disk: DiskId,
        /// Epoch of the call.
        epoch: Epoch,
        /// The call.
        call: Call,
        /// Answer of the member.
        answer: Answer,
    },
    /// A member could not be reached, or the connection broke before its answer.
    Unreachable {
        /// The member.
        disk: DiskId,
        /// The call.
        call: Call,
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
pub enum Action {
    /// Call a member in this epoch.
    Send {
        /// The member.
        disk: DiskId,
        /// Epoch of the call.
        epoch: Epoch,
        /// Kind of the call.
        call: Call,
    },
    /// Call a member a little later: it could not be reached, or is busy.
    SendLater {
        /// The member.
        disk: DiskId,
        /// Epoch of the call.
        epoch: Epoch,
        /// Kind of the call.
        call: Call,
    },
    /// Report to the master that a member does not answer.
    Suspect(DiskId),
    /// The operation has ended.
    Finish(Outcome),
}

/// Reason of a final refusal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The name belongs to another file.
    Exists {
        /// The other file.
        fid: FileId,
    },
    /// The file was deleted by a client that settled it.
    Buried,
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
        /// Bytes of the refused create.
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
pub enum Outcome {
    /// It is complete: nothing takes it back.
    Held,
    /// It did not happen and never will.
    Refused(Refusal),
    /// Some member may have it; it may become complete or not.
    Unknown,
}

/// Known state of the operation on one member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Reached {
    /// A call was sent; it may have arrived.
    Sent,
    /// The member has the operation on its device, and answered so in this epoch.
    Has { epoch: Epoch, role: Role },
    /// The member does not have the operation, and will not accept it.
    Refused,
    /// The member has deleted the file, and answered so in this epoch.
    Buried { epoch: Epoch, role: Role },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Bringing,
    /// A member has no space, and no member has answered yet that it has the file. If all refuse it, there is
    /// nothing to delete, and a full disk gets no row of a delete.
    Refusing {
        why: Refusal,
    },
    /// The create has failed, and the file is deleted on all members that are up.
    Burying {
        why: Refusal,
    },
    Ended,
}

/// One operation under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientOp {
    is_create: bool,
    /// Whether a failed operation may delete the file: true for its creator, false for a client that only
    /// copies an existing file to other members.
    may_bury: bool,
    view: View,
    /// Epoch of the first call.
    first: Epoch,
    members: BTreeMap<DiskId, Reached>,
    /// Members that were called more than once: a refusal of one call does not cover the others.
    again: BTreeSet<DiskId>,
    /// Whether any member has answered that it has the operation.
    was_taken: bool,
    phase: Phase,
}

impl ClientOp {
    /// Starts to create a file on the members of `view`.
    pub fn create(view: View) -> (ClientOp, Vec<Action>) {
        ClientOp::start(true, true, view)
    }

    /// Starts to copy a file of some member to all members of `view`. It may be acknowledged already, so it
    /// is never deleted: after a refusal the outcome is unknown.
    pub fn complete(view: View) -> (ClientOp, Vec<Action>) {
        ClientOp::start(true, false, view)
    }

    /// Starts to delete a file on the members of `view`.
    pub fn delete(view: View) -> (ClientOp, Vec<Action>) {
        ClientOp::start(false, false, view)
    }

    fn start(is_create: bool, may_bury: bool, view: View) -> (ClientOp, Vec<Action>) {
        let mut op = ClientOp {
            is_create,
            may_bury,
            first: view.epoch,
            view,
            members: BTreeMap::new(),
            again: BTreeSet::new(),
            was_taken: false,
            phase: Phase::Bringing,
        };
        let actions = op.send_to_all();
        (op, actions)
    }

    /// States that the caller has sent creates and deletes to these members only, and sends no more: all
    /// other members have no trace of the operation. Must be called before [`Event::Deadline`].
    pub fn only_reached(&mut self, reached: &BTreeSet<DiskId>) {
        for (disk, state) in &mut self.members {
            if *state == Reached::Sent && !reached.contains(disk) {
                *state = Reached::Refused;
            }
        }
    }

    /// The current view of the operation.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Handles an event and returns the actions. Events after the end change nothing.
    pub fn step(&mut self, event: Event) -> Vec<Action> {
        match (self.phase.clone(), event) {
            (Phase::Ended, _) => Vec::new(),
            (Phase::Bringing, event) => self.bring(event),
            (Phase::Refusing { why }, event) => self.hear_the_others(why, event),
            (Phase::Burying { why }, event) => self.bury(why, event),
        }
    }

    fn bring(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Answered { disk, epoch, call, answer } => self.answered(disk, epoch, call, answer),
            Event::Unreachable { disk, call } => {
                let mut actions = vec![Action::Suspect(disk)];
                actions.extend(self.again_later(disk, call));
                actions
            }
            Event::View(view) if view.epoch > self.view.epoch => {
                self.view = view;
                self.send_to_all()
            }
            Event::View(_) => Vec::new(),
            Event::Deadline | Event::GiveUp => {
                let have = self.holding().count();
                let need = self.view.needed();
                self.refuse(Refusal::Degraded { have, need })
            }
        }
    }

    fn answered(&mut self, disk: DiskId, epoch: Epoch, call: Call, answer: Answer) -> Vec<Action> {
        let refusal = match answer {
            Answer::Ok { role } => {
                self.was_taken = true;
                self.members.insert(disk, Reached::Has { epoch, role });
                if epoch < self.view.epoch {
                    return self.send(disk).into_iter().collect();
                }
                return self.hold_if_all();
            }
            Answer::Missing => {
                self.members.insert(disk, Reached::Sent);
                return self.send(disk).into_iter().collect();
            }
            Answer::Busy => return self.again_later(disk, call),
            Answer::Exists { fid } => Refusal::Exists { fid },
            Answer::Buried => Refusal::Buried,
            Answer::TooOld => Refusal::TooOld,
            Answer::ClockSkew => Refusal::ClockSkew,
            Answer::VolumeGone => Refusal::VolumeGone,
            Answer::NoSpace => Refusal::NoSpace,
            Answer::OtherFile => Refusal::OtherFile,
            Answer::QuotaExceeded { quota, used, wanted } => Refusal::QuotaExceeded { quota, used, wanted },
        };
        self.note_refused(disk, &refusal);
        self.refuse(refusal)
    }

    /// Records that a member which refused its only call does not have the operation.
    fn note_refused(&mut self, disk: DiskId, refusal: &Refusal) {
        let was_sent = matches!(self.members.get(&disk), Some(Reached::Sent));
        let never_has = matches!(refusal, Refusal::Buried | Refusal::OtherFile);
        if never_has || (was_sent && !self.again.contains(&disk)) {
            self.members.insert(disk, Reached::Refused);
        }
    }

    /// Calls every member that is up and has not answered in this epoch.
    fn send_to_all(&mut self) -> Vec<Action> {
        let up: Vec<DiskId> = self.view.up().collect();
        up.into_iter().filter_map(|disk| self.send(disk)).collect()
    }

    fn send(&mut self, disk: DiskId) -> Option<Action> {
        let epoch = self.view.epoch;
        if !self.view.role(disk)?.is_up() {
            return None;
        }
        let call = match self.members.get(&disk) {
            Some(Reached::Has { epoch: of, .. }) if *of == epoch => return None,
            Some(Reached::Has { .. }) if self.is_create => Call::Confirm,
            _ if self.is_create => Call::Create,
            _ => Call::Delete,
        };
        // A member with the operation keeps it, even if the confirmation fails.
        let has = matches!(self.members.get(&disk), Some(Reached::Has { .. }));
        if !has && self.members.insert(disk, Reached::Sent).is_some() {
            self.again.insert(disk);
        }
        Some(Action::Send { disk, epoch, call })
    }

    fn again_later(&mut self, disk: DiskId, call: Call) -> Vec<Action> {
        let epoch = self.view.epoch;
        self.again.insert(disk);
        let is_up = self.view.role(disk).is_some_and(Role::is_up);
        let later = Action::SendLater { disk, epoch, call };
        is_up.then_some(later).into_iter().collect()
    }

    /// Roles of members that answered Ok in the current epoch.
    fn holding(&self) -> impl Iterator<Item = Role> + '_ {
        self.view.up().filter_map(|disk| match self.members.get(&disk) {
            Some(Reached::Has { epoch, role }) if *epoch == self.view.epoch => Some(*role),
            _ => None,
        })
    }

    fn hold_if_all(&mut self) -> Vec<Action> {
        let up = self.view.up().count();
        let have: Vec<Role> = self.holding().collect();
        if have.len() < up || have.len() < self.view.needed() || !have.iter().copied().any(Role::is_in_sync) {
            return Vec::new();
        }
        self.end(Outcome::Held)
    }

    /// Ends a failed operation. A create is deleted wherever it may have arrived. A delete may be repeated by
    /// any client.
    fn refuse(&mut self, why: Refusal) -> Vec<Action> {
        if !self.is_create {
            // Once a member has accepted it, it spreads despite the refusals of others.
            let is_untouched = self.members.values().all(|reached| *reached == Reached::Refused);
            // No member deletes a file of a removed volume, or under a name that is not the file's.
            let is_void = matches!(why, Refusal::VolumeGone | Refusal::OtherFile);
            return self.end(match is_untouched || is_void {
                true => Outcome::Refused(why),
                false => Outcome::Unknown,
            });
        }
        if !self.may_bury {
            return self.end(Outcome::Unknown);
        }
        if !self.was_taken && self.may_have().next().is_none() {
            return self.end(Outcome::Refused(why));
        }
        let is_for_room = matches!(why, Refusal::NoSpace | Refusal::QuotaExceeded { .. });
        if is_for_room && !self.was_taken && self.phase == Phase::Bringing {
            self.phase = Phase::Refusing { why };
            return Vec::new();
        }
        self.begin_burial(why)
    }

    fn begin_burial(&mut self, why: Refusal) -> Vec<Action> {
        self.phase = Phase::Burying { why };
        self.send_burials()
    }

    /// Handles answers of the other members to a create that one has no space for. Any event except their
    /// refusals starts the delete.
    fn hear_the_others(&mut self, why: Refusal, event: Event) -> Vec<Action> {
        match event {
            Event::Answered { disk, answer: Answer::NoSpace | Answer::QuotaExceeded { .. }, .. } => {
                self.note_refused(disk, &Refusal::NoSpace);
                match self.may_have().count() {
                    0 => self.end(Outcome::Refused(why)),
                    _ => Vec::new(),
                }
            }
            Event::Answered { disk, epoch, answer: Answer::Ok { role }, .. } => {
                self.was_taken = true;
                self.members.insert(disk, Reached::Has { epoch, role });
                self.begin_burial(why)
            }
            Event::Unreachable { disk, .. } => {
                let mut actions = vec![Action::Suspect(disk)];
                actions.extend(self.begin_burial(why));
                actions
            }
            Event::View(view) if view.epoch <= self.view.epoch => Vec::new(),
            Event::View(view) => {
                self.view = view;
                self.begin_burial(why)
            }
            Event::Answered { .. } | Event::Deadline | Event::GiveUp => self.begin_burial(why),
        }
    }

    fn may_have(&self) -> impl Iterator<Item = DiskId> + '_ {
        let has_none = |reached: &Reached| matches!(reached, Reached::Refused | Reached::Buried { .. });
        let touched = self.members.iter();
        touched.filter_map(move |(disk, reached)| (!has_none(reached)).then_some(*disk))
    }

    /// Members that still have to delete the file: all that are up, as for a delete. A member that was not
    /// called, or that refused, may have copied the file from another one, in a resync or by roll-forward.
    fn to_bury(&self) -> Vec<DiskId> {
        let present = self.view.epoch;
        let is_left = |disk: &DiskId| match self.members.get(disk) {
            Some(Reached::Buried { epoch, .. }) => *epoch != present,
            _ => true,
        };
        self.view.up().filter(is_left).collect()
    }

    fn send_burials(&mut self) -> Vec<Action> {
        let (epoch, call) = (self.view.epoch, Call::Bury);
        let send = |disk| Action::Send { disk, epoch, call };
        self.to_bury().into_iter().map(send).collect()
    }

    /// Whether no member can bring the file back. In the epoch of the first call only members that are up can
    /// have it. After a change of the view a member that is down may have it; it learns of the delete later,
    /// as of any delete.
    fn is_buried(&self) -> bool {
        if !self.to_bury().is_empty() {
            return false;
        }
        let present = self.view.epoch;
        let roles = self.view.up().filter_map(|disk| match self.members.get(&disk) {
            Some(Reached::Buried { epoch, role }) if *epoch == present => Some(*role),
            _ => None,
        });
        let roles: Vec<Role> = roles.collect();
        present == self.first
            || (roles.len() >= self.view.needed() && roles.iter().copied().any(Role::is_in_sync))
    }

    fn bury(&mut self, why: Refusal, event: Event) -> Vec<Action> {
        let present = self.view.epoch;
        match event {
            Event::Answered { answer: Answer::VolumeGone, .. } => self.end(Outcome::Refused(why)),
            Event::Answered {
                disk,
                epoch,
                call: call @ Call::Bury,
                answer: answer @ (Answer::Ok { .. } | Answer::OtherFile),
            } => {
                let role = match answer {
                    Answer::Ok { role } => role,
                    // This member has no such file and accepts none in any role; its answer carries no role.
                    _ => Role::Recovering,
                };
                self.members.insert(disk, Reached::Buried { epoch, role });
                if self.is_buried() {
                    return self.end(Outcome::Refused(why));
                }
                let again = epoch < present && self.to_bury().contains(&disk);
                let send = Action::Send { disk, epoch: present, call };
                again.then_some(send).into_iter().collect()
            }
            Event::Answered { disk, call: call @ Call::Bury, .. }
            | Event::Unreachable { disk, call: call @ Call::Bury } => {
                let later = Action::SendLater { disk, epoch: present, call };
                let is_wanted = self.to_bury().contains(&disk);
                is_wanted.then_some(later).into_iter().collect()
            }
            // A late answer to a create: a delete is under way to that member already, or is needed now.
            Event::Answered { disk, answer: Answer::Ok { role }, epoch, .. } => {
                self.was_taken = true;
                if matches!(self.members.get(&disk), Some(Reached::Buried { .. })) {
                    return Vec::new();
                }
                let known = self.members.insert(disk, Reached::Has { epoch, role });
                let send = Action::Send { disk, epoch: present, call: Call::Bury };
                let is_needed = matches!(known, Some(Reached::Refused) | None);
                is_needed.then_some(send).into_iter().collect()
            }
            Event::View(view) if view.epoch > present => {
                self.view = view;
                self.send_burials()
            }
            Event::GiveUp => self.end(Outcome::Unknown),
            Event::Answered { .. } | Event::Unreachable { .. } | Event::View(_) | Event::Deadline => {
                Vec::new()
            }
        }
    }

    fn end(&mut self, outcome: Outcome) -> Vec<Action> {
        self.phase = Phase::Ended;
        vec![Action::Finish(outcome)]
    }
}

#[cfg(test)]
mod tests;
