//! What other members of groups told of themselves last.
//!
//! Invariant: what was told in one view of a group says nothing in another.

use copal_volume::group::{Closing, DiskId, Epoch, GroupId, OwnTold, View};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// What other members told of their groups.
#[derive(Default)]
pub(crate) struct Heard {
    groups: Mutex<BTreeMap<GroupId, OfGroup>>,
}

#[derive(Default)]
struct OfGroup {
    epoch: Epoch,
    members: BTreeMap<DiskId, OwnTold>,
}

impl Heard {
    pub(crate) fn note(&self, group: GroupId, from: DiskId, told: OwnTold) {
        let mut groups = self.groups.lock();
        let known = groups.entry(group).or_default();
        if told.epoch > known.epoch {
            // What was told in an older view is of members that may be others now.
            known.members.clear();
            known.epoch = told.epoch;
        }
        if told.epoch == known.epoch {
            known.members.insert(from, told);
        }
    }

    /// What was told of a group in this epoch.
    pub(crate) fn of(&self, group: GroupId, epoch: Epoch) -> BTreeMap<DiskId, OwnTold> {
        let groups = self.groups.lock();
        let heard = groups.get(&group).filter(|known| known.epoch == epoch);
        heard.map(|known| known.members.clone()).unwrap_or_default()
    }

    /// Groups of which others have digests: something is to be compared.
    pub(crate) fn with_digests(&self) -> Vec<GroupId> {
        let groups = self.groups.lock();
        let has = |known: &OfGroup| known.members.values().any(|told| !told.digests.is_empty());
        let of = groups.iter().filter(|(_, known)| has(known));
        of.map(|(group, _)| *group).collect()
    }

    /// What others have closed at most, by group.
    pub(crate) fn closings(&self) -> BTreeMap<GroupId, Closing> {
        let groups = self.groups.lock();
        let most = |known: &OfGroup| {
            let closings = known.members.values().map(|told| told.closing);
            closings.fold(Closing::default(), Closing::joined)
        };
        groups.iter().map(|(group, known)| (*group, most(known))).collect()
    }
}

/// What all members that take part have closed: the least of it. One that told nothing in this epoch has
/// closed nothing.
pub(crate) fn closed_by_all(
    view: &View,
    own: (DiskId, Closing),
    heard: &BTreeMap<DiskId, OwnTold>,
) -> Vec<Closing> {
    let up = view.members.iter().filter(|(_, role)| role.is_up());
    up.map(|(disk, _)| match *disk == own.0 {
        true => own.1,
        false => heard.get(disk).map(|told| told.closing).unwrap_or_default(),
    })
    .collect()
}
