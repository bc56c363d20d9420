//! In-sync state of a member, for many groups at once: the rows it persists before and after its report to
//! the leader.
//!
//! Design: docs/design/cluster.md#rules VOL-16
//! Invariant: a member is in sync only after the leader has recorded its report.
//!
//! Not here: the resync itself (`copal-server`).

use super::{
    disk_state::MemberCore,
    group_queue::GroupQueue,
    heads,
    roles::{self, GroupMembership},
};
use crate::format::MemberRow;
use copal_volume::{
    VolumeError,
    group::{BucketSeal, Epoch, GroupId, Role},
};
use std::sync::Arc;

/// A group in which a member has everything, by a resync or by an operator's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResyncedGroup {
    /// The group.
    pub group: GroupId,
    /// The member's present epoch, in which it has everything.
    pub epoch: Epoch,
    /// Seal of the donor.
    pub seal: BucketSeal,
}

/// See `MemberStore::persist_has_everything`.
pub(super) fn persist_has_everything(
    core: &MemberCore,
    resynced: &[ResyncedGroup],
) -> Result<Vec<GroupId>, VolumeError> {
    let mut to_report = Vec::new();
    change_many(core, resynced.iter().map(|resynced| (resynced.group, resynced.epoch)), |at, row| {
        // Of a name with two files, it is unknown yet which one stays.
        let has_everything = !heads::has_siblings(core, resynced[at].group)?;
        if has_everything {
            to_report.push(resynced[at].group);
        }
        Ok(MemberRow {
            seal: row.seal.joined(resynced[at].seal),
            is_covered: true,
            last_in_sync: if has_everything { row.epoch } else { row.last_in_sync },
            ..row
        })
    })?;
    Ok(to_report)
}

/// See `MemberStore::confirm_in_sync`.
pub(super) fn confirm_in_sync(
    core: &MemberCore,
    recorded: &[(GroupId, Epoch)],
) -> Result<Vec<GroupMembership>, VolumeError> {
    change_many(core, recorded.iter().copied(), |at, row| {
        // Looked up while no operation is under way: a second file that arrived meanwhile would be hidden
        // on an in-sync member.
        let is_in_sync = row.has_everything() && !heads::has_siblings(core, recorded[at].0)?;
        Ok(MemberRow { role: if is_in_sync { Role::Normal } else { row.role }, ..row })
    })?;
    let now = recorded.iter().map(|(group, _)| roles::membership(core, *group));
    now.filter_map(Result::transpose).collect()
}

/// Changes the rows of groups that are still in the expected epoch, in one durable write, while none of
/// their operations is under way.
fn change_many(
    core: &MemberCore,
    groups: impl Iterator<Item = (GroupId, Epoch)>,
    mut change: impl FnMut(usize, MemberRow) -> Result<MemberRow, VolumeError>,
) -> Result<(), VolumeError> {
    let mut groups: Vec<(usize, (GroupId, Epoch))> = groups.enumerate().collect();
    // All callers lock several groups in ascending order.
    groups.sort_unstable_by_key(|(_, (group, _))| *group);
    groups.dedup_by_key(|(_, (group, _))| *group);
    let queues = groups.iter().map(|(_, (group, _))| roles::queue(core, *group));
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
    roles::write_rows(core, &rows)?;
    for (locked, row) in changed {
        queues[locked].set(&mut members[locked], Some(row));
    }
    Ok(())
}
