//! State of a group of three members, its master, its clients and the calls between them.

use crate::setup::{MEMBERS, NAME, SearchSetup, VID, WeakRule, fid};
use copal_volume::{
    FileId, VolumeId,
    group::{
        BucketSeal, CallKind, ClientOp, DiskId, Epoch, OperationOutcome, OwnState, Role, View,
        invariants::{FileResults, KnownResult, ReplicaState},
        own_role,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Files by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct FileSet(pub(crate) u8);

impl FileSet {
    pub(crate) fn has(self, file: usize) -> bool {
        self.0 >> file & 1 == 1
    }
    pub(crate) fn add(&mut self, file: usize) {
        self.0 |= 1 << file;
    }
    pub(crate) fn remove(&mut self, file: usize) {
        self.0 &= !(1 << file);
    }
    pub(crate) fn without(self, other: FileSet) -> FileSet {
        FileSet(self.0 & !other.0)
    }
    pub(crate) fn and(self, other: FileSet) -> FileSet {
        FileSet(self.0 | other.0)
    }
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..8).filter(move |&file| self.has(file))
    }
    pub(crate) fn count(self) -> u32 {
        self.0.count_ones()
    }
}

/// A view, and the facts that the master sends with it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelMap {
    pub(crate) view: View,
    /// For each member, the epoch from which on operations could complete without it, in its last absence.
    pub(crate) missed: BTreeMap<DiskId, Epoch>,
    /// For each member, the epoch of its last change of role.
    pub(crate) since: BTreeMap<DiskId, Epoch>,
}

impl ModelMap {
    /// The master stores which members are down while operations can complete: when enough are up, and one of
    /// them has missed nothing.
    pub(crate) fn note_missed(&mut self) {
        let may_hold = self.view.up().any(|disk| !self.missed.contains_key(&disk));
        if self.view.up().count() < self.view.needed() || !may_hold {
            return;
        }
        for &(disk, role) in &self.view.members {
            let known = self.missed.get(&disk);
            let is_known = known.is_some_and(|missed| *missed >= self.since[&disk]);
            if !role.is_up() && !is_known {
                self.missed.insert(disk, self.view.epoch);
            }
        }
    }
}

/// A resync under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ResyncState {
    /// The donor's snapshot.
    pub(crate) live: FileSet,
    pub(crate) bound: Option<usize>,
    pub(crate) deleted: FileSet,
    pub(crate) seal: BucketSeal,
    /// The member's epoch at its request.
    pub(crate) asked_in: Epoch,
    /// Seals of every member that is up, from before the snapshot.
    pub(crate) everywhere: BucketSeal,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelMember {
    pub(crate) disk: DiskId,
    pub(crate) role: Role,
    pub(crate) last_in_sync: Epoch,
    /// The newest epoch in which it has taken part; none: new.
    pub(crate) map: Option<Arc<ModelMap>>,
    pub(crate) live: FileSet,
    /// The live file to which its name leads.
    pub(crate) bound: Option<usize>,
    pub(crate) deleted: FileSet,
    pub(crate) seal: BucketSeal,
    pub(crate) copying: Option<ResyncState>,
    /// The paper's log of operations that each other member misses.
    pub(crate) missed: [FileSet; MEMBERS],
}

impl ModelMember {
    pub(crate) fn new(disk: DiskId) -> ModelMember {
        ModelMember {
            disk,
            role: Role::Joining,
            last_in_sync: Epoch(0),
            map: None,
            live: FileSet::default(),
            bound: None,
            deleted: FileSet::default(),
            seal: BucketSeal { below: crate::setup::FIRST },
            copying: None,
            missed: Default::default(),
        }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.map.as_ref().map_or(Epoch(0), |map| map.view.epoch)
    }

    /// Accepts a file, beside another or under its name.
    pub(crate) fn take(&mut self, file: usize) {
        self.live.add(file);
        self.bound.get_or_insert(file);
    }

    /// Deletes a file; the lowest of those beside it takes the name.
    pub(crate) fn delete(&mut self, file: usize) {
        self.live.remove(file);
        self.deleted.add(file);
        if self.bound == Some(file) {
            self.bound = self.live.iter().next();
        }
    }

    pub(crate) fn has_two_of_one_name(&self) -> bool {
        self.live.count() > 1
    }

    /// Restarts: it does not know which operations it missed.
    pub(crate) fn restart(&mut self) {
        self.role = self.role.out_of_sync();
        self.copying = None;
    }

    pub(crate) fn enter(&mut self, setup: &SearchSetup, map: &Arc<ModelMap>) {
        if map.view.epoch <= self.epoch() {
            return;
        }
        let own = self.map.as_ref().map(|_| OwnState { role: self.role, last_in_sync: self.last_in_sync });
        let told = map.view.role(self.disk).unwrap_or(Role::Failed);
        let missed = match setup.is_weak(WeakRule::MissedNotSent) {
            true => Epoch(0),
            false => map.missed.get(&self.disk).copied().unwrap_or_default(),
        };
        self.map = Some(Arc::clone(map));
        self.be(own_role(own, told, missed));
        if self.copying.as_ref().is_some_and(|copying| missed >= copying.asked_in) {
            self.copying = None;
        }
    }

    /// Takes a role in the current epoch. Of a name with two live files it is not yet known which one stays.
    pub(crate) fn be(&mut self, role: Role) {
        self.role = match self.has_two_of_one_name() {
            true => role.out_of_sync(),
            false => role,
        };
        self.note_in_sync();
    }

    /// Like the row of a member (`copal-data`): it is in sync, or has persisted in this epoch that it is
    /// about to be.
    pub(crate) fn has_everything(&self) -> bool {
        self.role.is_in_sync() || (self.last_in_sync == self.epoch() && self.last_in_sync > Epoch(0))
    }

    pub(crate) fn note_in_sync(&mut self) {
        if self.role.is_in_sync() {
            self.last_in_sync = self.epoch();
            self.copying = None;
        }
    }

    /// Whether it is up in the view it knows.
    pub(crate) fn takes_part(&self) -> bool {
        let role = self.map.as_ref().and_then(|map| map.view.role(self.disk));
        role.is_some_and(Role::takes_writes)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClientState {
    NotStarted,
    At(ClientOp),
    Ended(OperationOutcome),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelMaster {
    pub(crate) map: Arc<ModelMap>,
}

/// A call under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CallMessage {
    pub(crate) client: usize,
    pub(crate) disk: DiskId,
    pub(crate) epoch: Epoch,
    pub(crate) call: CallKind,
}

/// Numbers of faults that may still happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RemainingFaults {
    pub(crate) failures: u8,
    pub(crate) restarts: u8,
    pub(crate) replacements: u8,
    pub(crate) deadlines: u8,
    pub(crate) lost_answers: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelState {
    pub(crate) master: ModelMaster,
    pub(crate) members: Vec<ModelMember>,
    pub(crate) clients: Vec<ClientState>,
    pub(crate) messages: BTreeSet<CallMessage>,
    pub(crate) left: RemainingFaults,
    /// Members below this one can be distinguished; all others are still equal.
    pub(crate) touched: usize,
}

impl ModelState {
    pub(crate) fn first(setup: &SearchSetup) -> ModelState {
        let view = setup.first_view();
        let disks = view.members.iter().map(|&(disk, _)| disk);
        let map = Arc::new(ModelMap {
            since: disks.clone().map(|disk| (disk, view.epoch)).collect(),
            missed: BTreeMap::new(),
            view: view.clone(),
        });
        let member = |disk| {
            let mut member = ModelMember::new(disk);
            member.enter(setup, &map);
            member
        };
        ModelState {
            members: disks.map(member).collect(),
            master: ModelMaster { map: Arc::clone(&map) },
            clients: vec![ClientState::NotStarted; setup.work.len()],
            messages: BTreeSet::new(),
            touched: 0,
            left: RemainingFaults {
                failures: setup.failures,
                restarts: setup.restarts,
                replacements: setup.replacements,
                deadlines: setup.deadlines,
                lost_answers: setup.lost_answers,
            },
        }
    }

    pub(crate) fn member_of(&self, disk: DiskId) -> Option<usize> {
        self.members.iter().position(|member| member.disk == disk)
    }

    pub(crate) fn role_of(&self, member: usize) -> Role {
        let role = self.master.map.view.role(self.members[member].disk);
        role.unwrap_or(Role::Failed)
    }

    pub(crate) fn seen(&self) -> Vec<MemberView<'_>> {
        // A member that returned and does not know it answers clients of old views only.
        let knows = |member: &ModelMember| {
            let since = self.master.map.since.get(&member.disk);
            since.is_some_and(|since| member.epoch() >= *since)
        };
        let seen = |(at, member)| MemberView {
            member,
            counts: match self.role_of(at) {
                role if role.is_in_sync() => true,
                role => role.is_up() && knows(member),
            },
        };
        self.members.iter().enumerate().map(seen).collect()
    }

    /// Results of each file's operations as the clients know them.
    pub(crate) fn files(&self, setup: &SearchSetup) -> Vec<FileResults<'static>> {
        use crate::setup::ClientWork::{Create, Delete};
        let of = |wanted| {
            let at = setup.work.iter().position(|&work| work == wanted);
            at.map_or(KnownResult::NotAsked, |at| known(&self.clients[at]))
        };
        let files = (0..setup.files()).map(|file| FileResults {
            vid: VID,
            name: NAME,
            fid: fid(file),
            created: of(Create(file)),
            deleted: of(Delete(file)),
        });
        files.collect()
    }
}

fn known(client: &ClientState) -> KnownResult {
    match client {
        ClientState::NotStarted => KnownResult::NotAsked,
        ClientState::At(_) | ClientState::Ended(OperationOutcome::Unknown) => KnownResult::Open,
        ClientState::Ended(OperationOutcome::Complete) => KnownResult::Complete,
        ClientState::Ended(OperationOutcome::Refused(_)) => KnownResult::Refused,
    }
}

/// A member as the invariants see it.
pub(crate) struct MemberView<'a> {
    member: &'a ModelMember,
    counts: bool,
}

impl ReplicaState for MemberView<'_> {
    fn disk(&self) -> DiskId {
        self.member.disk
    }
    fn role(&self) -> Role {
        match self.counts {
            true => self.member.role,
            false => Role::Failed,
        }
    }
    fn resolve(&self, _: VolumeId, _: &[u8]) -> Option<FileId> {
        self.member.bound.map(fid)
    }
    fn is_live(&self, _: VolumeId, _: &[u8], file: FileId) -> bool {
        self.member.live.has(crate::setup::number(file))
    }
}
