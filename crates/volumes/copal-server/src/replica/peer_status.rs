//! Latest gossip from each replica, by group and epoch.
//!
//! Invariant: gossip of one view of a group does not count in another.

use copal_volume::group::{BucketSeal, DiskId, Epoch, GroupId, PeerStatus, View};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Latest gossip from other members.
#[derive(Default)]
pub(crate) struct PeerReports {
    groups: Mutex<BTreeMap<GroupId, GroupStatus>>,
}

#[derive(Default)]
struct GroupStatus {
    epoch: Epoch,
    members: BTreeMap<DiskId, PeerStatus>,
}

impl PeerReports {
    pub(crate) fn record(&self, group: GroupId, from: DiskId, report: PeerStatus) {
        let mut groups = self.groups.lock();
        let known = groups.entry(group).or_default();
        if report.epoch > known.epoch {
            // Gossip of an older view does not count any more: roles and members may have changed.
            known.members.clear();
            known.epoch = report.epoch;
        }
        if report.epoch == known.epoch {
            known.members.insert(from, report);
        }
    }

    /// Gossip about a group in this epoch.
    pub(crate) fn in_epoch(&self, group: GroupId, epoch: Epoch) -> BTreeMap<DiskId, PeerStatus> {
        let groups = self.groups.lock();
        let reports = groups.get(&group).filter(|known| known.epoch == epoch);
        reports.map(|known| known.members.clone()).unwrap_or_default()
    }

    /// Groups of which other members have digests to compare.
    pub(crate) fn with_digests(&self) -> Vec<GroupId> {
        let groups = self.groups.lock();
        let has = |known: &GroupStatus| known.members.values().any(|report| !report.digests.is_empty());
        let of = groups.iter().filter(|(_, known)| has(known));
        of.map(|(group, _)| *group).collect()
    }

    /// The highest seal of other members, by group.
    pub(crate) fn highest_seals(&self) -> BTreeMap<GroupId, BucketSeal> {
        let groups = self.groups.lock();
        let most = |known: &GroupStatus| {
            let seals = known.members.values().map(|report| report.seal);
            seals.fold(BucketSeal::default(), BucketSeal::joined)
        };
        groups.iter().map(|(group, known)| (*group, most(known))).collect()
    }
}

/// Seals of all participating members. A member without gossip in this epoch counts as having sealed nothing.
pub(crate) fn sealed_by_all(
    view: &View,
    own: (DiskId, BucketSeal),
    reports: &BTreeMap<DiskId, PeerStatus>,
) -> Vec<BucketSeal> {
    let up = view.members.iter().filter(|(_, role)| role.is_up());
    up.map(|(disk, _)| match *disk == own.0 {
        true => own.1,
        false => reports.get(disk).map(|report| report.seal).unwrap_or_default(),
    })
    .collect()
}
