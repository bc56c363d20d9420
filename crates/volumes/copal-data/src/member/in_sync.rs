//! In-sync state of a member, for many groups at once: the rows it persists before and after its report to
//! the leader.
//!
//! Design: docs/design/cluster.md#rules VOL-16
//! Invariant: a member is in sync only after the leader has recorded its report.
//!
//! Not here: the resync itself (`copal-server`).

use super::{group_queue::GroupQueue, roles::GroupMembership, store::MemberStore};
use crate::format::MemberRow;
use copal_volume::{
    VolumeError,
    group::{BucketSeal, Epoch, GroupId, Role},
};
use std::sync::Arc;

/// A group whose resync is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResyncedGroup {
    /// The group.
    pub group: GroupId,
    /// The epoch in which the member is to be in sync.
    pub epoch: Epoch,
    /// Seal of the donor.
    pub seal: BucketSeal,
}

impl MemberStore {
    /// Persists that the resyncs of these groups are complete, in one durable write. Since the snapshots, no
    /// operation could complete without this member. It is persisted before the report to the leader, since
    /// the reply may be lost (VOL-16). The seals of the donors become this member's (VOL-17). Returns the
    /// groups to report: none with two files of a name, and none with another epoch.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn record_in_sync(&self, resynced: &[ResyncedGroup]) -> Result<Vec<GroupId>, VolumeError> {
        let mut to_report = Vec::new();
        self.change_many(resynced.iter().map(|resynced| (resynced.group, resynced.epoch)), |at, row| {
            let is_in_sync = !self.core.has_siblings(resynced[at].group)?;
            if is_in_sync {
                to_report.push(resynced[at].group);
            }
            Ok(MemberRow {
                seal: row.seal.joined(resynced[at].seal),
                is_covered: true,
                last_in_sync: if is_in_sync { row.epoch } else { row.last_in_sync },
                ..row
            })
        })?;
        Ok(to_report)
    }

    /// Sets these groups in sync after the leader has recorded that. A group stays out of sync if a name has
    /// two files by now, if damage was found since, or if the epoch has changed. Returns the state in each.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn confirm_in_sync(
        &self,
        recorded: &[(GroupId, Epoch)],
    ) -> Result<Vec<GroupMembership>, VolumeError> {
        self.change_many(recorded.iter().copied(), |at, row| {
            // Looked up while no operation is under way: a second file that arrived meanwhile would be hidden
            // on an in-sync member.
            let is_in_sync = row.has_everything() && !self.core.has_siblings(recorded[at].0)?;
            Ok(MemberRow { role: if is_in_sync { Role::Normal } else { row.role }, ..row })
        })?;
        let now = recorded.iter().map(|(group, _)| self.membership(*group));
        now.filter_map(Result::transpose).collect()
    }

    /// Changes the rows of groups that are still in the expected epoch, in one durable write, while none of
    /// their operations is under way.
    fn change_many(
        &self,
        groups: impl Iterator<Item = (GroupId, Epoch)>,
        mut change: impl FnMut(usize, MemberRow) -> Result<MemberRow, VolumeError>,
    ) -> Result<(), VolumeError> {
        let mut groups: Vec<(usize, (GroupId, Epoch))> = groups.enumerate().collect();
        // All callers lock several groups in ascending order.
        groups.sort_unstable_by_key(|(_, (group, _))| *group);
        groups.dedup_by_key(|(_, (group, _))| *group);
        let queues = groups.iter().map(|(_, (group, _))| self.core.queue(*group));
        let queues: Vec<Arc<GroupQueue>> = queues.collect::<Result<_, _>>()?;
        let mut members: Vec<_> = queues.iter().map(|queue| queue.member.lock()).collect();
        let (mut rows, mut changed) = (Vec::new(), Vec::new());
        for (locked, &(at, (group, epoch))) in groups.iter().enumerate() {
            let Some(before) = members[locked].filter(|row| row.epoch == epoch) else {
                continue;
            };
            let row = change(at, before)?;
            if row != before {
                rows.push((group, Some(row)));
                changed.push((locked, row));
            }
        }
        self.core.write_rows(&rows)?;
        for (locked, row) in changed {
            queues[locked].set(&mut members[locked], Some(row));
        }
        Ok(())
    }
}
