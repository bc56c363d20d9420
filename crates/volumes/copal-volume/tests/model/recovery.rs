//! Failures and resync of members: master and members, by the production rules.

use crate::{
    setup::{MEMBERS, ResyncRule, SearchSetup, WeakRule, create, fid, number},
    state::{FileSet, ModelMember, ModelState, ResyncState},
};
use copal_volume::group::{
    AcceptKind, Bucket, BucketSeal, CreateFacts, DiskId, Epoch, NameClaim, Role, RollForward, View,
    decide_copy, roll_forward, settle_name,
};
use std::sync::Arc;

impl ModelState {
    /// The master publishes a view with other roles.
    fn give_out(&mut self, changed: DiskId, change: impl FnOnce(&mut View)) {
        let mut map = (*self.master.map).clone();
        map.view.epoch = Epoch(map.view.epoch.0 + 1);
        change(&mut map.view);
        map.since.insert(changed, map.view.epoch);
        let is_member = |disk: &DiskId| map.view.role(*disk).is_some();
        map.since.retain(|disk, _| is_member(disk));
        map.missed.retain(|disk, _| is_member(disk));
        map.note_missed();
        if map.view.role(changed).is_some_and(Role::is_joining) && !map.missed.contains_key(&changed) {
            // A new member has missed everything before.
            map.missed.insert(changed, Epoch(map.view.epoch.0 - 1));
        }
        self.master.map = Arc::new(map);
    }

    pub(crate) fn give_role(&mut self, member: usize, role: Role) {
        let disk = self.members[member].disk;
        self.give_out(disk, |view| {
            for entry in view.members.iter_mut().filter(|(other, _)| *other == disk) {
                entry.1 = role;
            }
        });
    }

    /// The master hears from a member that was down, or that has restarted.
    pub(crate) fn come_back(&mut self, at: usize) {
        let role = match self.role_of(at) {
            role if role.is_joining() => role,
            _ => Role::Recovering,
        };
        self.give_role(at, role);
    }

    /// A new disk replaces a member that is down.
    pub(crate) fn replace(&mut self, at: usize) {
        let old = self.members[at].disk;
        let disk = DiskId(old.0 + MEMBERS as u32);
        self.members[at] = ModelMember::new(disk);
        for member in &mut self.members {
            member.missed[at] = FileSet::default();
        }
        self.give_out(disk, |view| {
            view.members.retain(|&(other, _)| other != old);
            view.members.push((disk, Role::Joining));
            view.members.sort_by_key(|&(disk, _)| disk);
        });
    }

    /// Whether the master accepts a member's report that it is in sync: not one from before the master knew
    /// of its return.
    pub(crate) fn may_claim_in_sync(&self, at: usize) -> bool {
        let member = &self.members[at];
        let role = self.role_of(at);
        let is_back = role.is_up() && !role.is_in_sync();
        is_back && member.role.is_in_sync() && member.epoch() >= self.master.map.since[&member.disk]
    }

    /// Seals of every member that is up, as another member of the same epoch can ask for them.
    fn seals(&self, at: usize) -> Vec<BucketSeal> {
        let asking = &self.members[at];
        let Some(map) = &asking.map else {
            return vec![BucketSeal::default()];
        };
        let of = |disk| {
            let member = self.members.iter().find(|member| member.disk == disk);
            let answers = member.filter(|member| member.epoch() == asking.epoch());
            answers.map_or(BucketSeal::default(), |member| member.seal)
        };
        map.view.up().map(of).collect()
    }

    pub(crate) fn may_copy(&self, setup: &SearchSetup, at: usize, donor: usize) -> bool {
        let (member, donor) = (&self.members[at], &self.members[donor]);
        let is_new_enough = donor.epoch() >= member.epoch() || setup.is_weak(WeakRule::DonorBehind);
        let is_asked = member.takes_part() || setup.is_weak(WeakRule::CopiesWhileDown);
        let wants = !member.role.is_in_sync() && is_asked;
        wants && donor.role.is_in_sync() && is_new_enough
    }

    pub(crate) fn start_copying(&mut self, setup: &SearchSetup, at: usize, donor: usize) {
        if matches!(setup.sync, ResyncRule::MissedLog { .. }) {
            let missed = std::mem::take(&mut self.members[donor].missed[at]);
            for file in missed.iter() {
                self.members[at].take(file);
            }
            self.members[at].be(Role::Normal);
            self.forget_missed(setup, at);
            return;
        }
        let seals = self.seals(at);
        let everywhere = seals.iter().map(|seal| seal.below).min();
        let asked_in = self.members[at].epoch();
        let donor = &self.members[donor];
        self.members[at].copying = Some(ResyncState {
            asked_in,
            live: donor.live,
            bound: donor.bound,
            deleted: donor.deleted,
            seal: donor.seal,
            everywhere: BucketSeal { below: everywhere.unwrap_or_default() },
        });
    }

    /// Missing operations of the snapshot, live files first, in the order of a donor.
    pub(crate) fn next_to_copy(&self, at: usize) -> Option<(bool, usize)> {
        let member = &self.members[at];
        let copying = member.copying.as_ref()?;
        let known = member.live.and(member.deleted);
        let live = copying.live.without(known).iter().map(|file| (true, file));
        let deleted = copying.deleted.without(member.deleted).iter().map(|file| (false, file));
        live.chain(deleted).next()
    }

    pub(crate) fn copy_one(&mut self, at: usize) {
        match self.next_to_copy(at) {
            Some((true, file)) => self.unite(at, file),
            Some((false, file)) => self.members[at].delete(file),
            None => {}
        }
    }

    /// Copies a file of another member.
    fn unite(&mut self, at: usize, file: usize) {
        let member = &mut self.members[at];
        let facts = CreateFacts {
            has_everything: member.has_everything(),
            now_ms: create(file).ms(),
            op: create(file),
            fid: fid(file),
            is_volume_gone: false,
            has_tombstone: member.deleted.has(file),
            is_sealed: member.seal.is_sealed(create(file)),
            is_live: member.live.has(file),
            other: member.bound.map(fid).filter(|&other| number(other) != file),
        };
        if matches!(decide_copy(&facts), Ok(AcceptKind::Apply | AcceptKind::ApplyBeside)) {
            member.take(file);
        }
    }

    /// Whether it has all of the snapshot, and is in a view in which no operation completes without it.
    pub(crate) fn may_persist_in_sync(&self, setup: &SearchSetup, at: usize) -> bool {
        let member = &self.members[at];
        let (Some(copying), Some(map)) = (&member.copying, &member.map) else {
            return false;
        };
        let missed = map.missed.get(&member.disk).copied().unwrap_or_default();
        let is_in_sync = self.next_to_copy(at).is_none() && missed < copying.asked_in;
        let is_one = !member.has_two_of_one_name() || setup.is_weak(WeakRule::InSyncWithTwoFiles);
        is_in_sync && is_one && member.takes_part() && !member.has_everything()
    }

    /// Persists this, with the donor's seal.
    pub(crate) fn persist_in_sync(&mut self, setup: &SearchSetup, at: usize) {
        let member = &mut self.members[at];
        let Some(copying) = &member.copying else {
            return;
        };
        if !setup.is_weak(WeakRule::SealNotCopied) {
            member.seal = member.seal.joined(copying.seal);
        }
        member.last_in_sync = member.epoch();
        member.copying = None;
    }

    /// The master accepts the report only in its current view.
    pub(crate) fn may_become_in_sync(&self, at: usize) -> bool {
        let member = &self.members[at];
        let is_present = member.epoch() == self.master.map.view.epoch && member.takes_part();
        !member.role.is_in_sync() && member.has_everything() && is_present
    }

    /// Reports to the master, and acts on the reply.
    pub(crate) fn become_in_sync(&mut self, setup: &SearchSetup, at: usize) {
        self.forget_missed(setup, at);
        let member = &mut self.members[at];
        if setup.is_weak(WeakRule::InSyncWithTwoFiles) {
            member.role = Role::Normal;
            member.note_in_sync();
        } else {
            member.be(Role::Normal);
        }
    }

    fn forget_missed(&mut self, setup: &SearchSetup, at: usize) {
        let mut map = (*self.master.map).clone();
        map.missed.remove(&self.members[at].disk);
        if !setup.is_weak(WeakRule::ReportRecordsNoMiss) {
            map.note_missed();
        }
        self.master.map = Arc::new(map);
    }

    fn claims(&self, at: usize) -> Vec<NameClaim> {
        self.members[at].live.iter().map(claim).collect()
    }

    /// The file that keeps the name on a member that has copied all and knows of two.
    pub(crate) fn settled(&self, setup: &SearchSetup, at: usize) -> Option<usize> {
        let member = &self.members[at];
        let copying = member.copying.as_ref()?;
        if !member.has_two_of_one_name() || self.next_to_copy(at).is_some() {
            return None;
        }
        let everywhere = match setup.is_weak(WeakRule::SettleBeforeSeal) {
            true => member.seal.joined(BucketSeal { below: Bucket(u64::MAX) }),
            false => copying.everywhere,
        };
        let donors = copying.bound.map(fid);
        settle_name(&self.claims(at), &[everywhere], donors).map(number)
    }

    pub(crate) fn settle(&mut self, at: usize, stays: usize) {
        let member = &mut self.members[at];
        for file in member.live.iter().filter(|&file| file != stays) {
            member.delete(file);
        }
    }

    /// Action for a sealed operation that another member has and it lacks: a file to copy or to delete.
    pub(crate) fn forward(&self, setup: &SearchSetup, at: usize, other: usize) -> Option<CopyStep> {
        let (member, other) = (&self.members[at], &self.members[other]);
        let is_near = member.epoch() == other.epoch();
        if !is_near || !member.takes_part() || !other.takes_part() {
            return None;
        }
        if let Some(file) = other.deleted.without(member.deleted).iter().next() {
            return Some(CopyStep::CopyDelete(file));
        }
        let lacks = other.live.without(member.live.and(member.deleted));
        let bound = member.bound.map(claim);
        let seals = self.seals(at);
        let their_role = match setup.is_weak(WeakRule::InSyncYieldsToAny) {
            true => Role::Normal,
            false => other.role,
        };
        let roles = (member.role, their_role);
        lacks.iter().find_map(|file| match roll_forward(roles, &claim(file), bound.as_ref(), &seals) {
            RollForward::Wait => None,
            RollForward::Copy => Some(CopyStep::CopyFile(file)),
            RollForward::Delete { loser } => Some(CopyStep::CopyDelete(number(loser))),
        })
    }

    pub(crate) fn roll_forward_step(&mut self, at: usize, step: CopyStep) {
        match step {
            CopyStep::CopyFile(file) => self.unite(at, file),
            CopyStep::CopyDelete(file) => self.members[at].delete(file),
        }
    }
}

/// An operation copied from another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CopyStep {
    CopyFile(usize),
    CopyDelete(usize),
}

fn claim(file: usize) -> NameClaim {
    NameClaim { fid: fid(file), op: create(file) }
}
