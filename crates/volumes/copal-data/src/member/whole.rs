//! Becoming whole, in many groups at once: what a member writes down before it tells the master, and after
//! the master knows.
//!
//! Design: docs/design/cluster.md#rules VOL-16
//! Invariant: who is whole has told the master, and the master has taken it.
//!
//! Not here: how a member comes to have everything (`copal-server`).

use super::{line::GroupQueue, roles::Membership, store::MemberStore};
use crate::format::MemberRow;
use copal_volume::{
    VolumeError,
    group::{Closing, Epoch, GroupId, Role},
};
use std::sync::Arc;

/// A group of which this member has everything that its donor showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The group.
    pub group: GroupId,
    /// The epoch in which it is to be whole.
    pub epoch: Epoch,
    /// What the donor had closed.
    pub closing: Closing,
}

impl MemberStore {
    /// Everything of donors' snapshots is here, and no operation could hold without this member since: writes
    /// that down, many groups in one durable write, before the master is told (VOL-16): its answer may be
    /// lost. What a donor had closed is closed here (VOL-17). Returns the groups of which the master is to be
    /// told: not those in which a name has two files, and none whose epoch has passed.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn begin_whole(&self, taken: &[Taken]) -> Result<Vec<GroupId>, VolumeError> {
        let mut to_tell = Vec::new();
        self.change_many(taken.iter().map(|taken| (taken.group, taken.epoch)), |at, row| {
            let is_whole = !self.core.has_siblings(taken[at].group)?;
            if is_whole {
                to_tell.push(taken[at].group);
            }
            Ok(MemberRow {
                closing: row.closing.joined(taken[at].closing),
                is_covered: true,
                last_normal: if is_whole { row.epoch } else { row.last_normal },
                ..row
            })
        })?;
        Ok(to_tell)
    }

    /// The master knows that this member has everything of these groups: it is whole, unless a name has two
    /// files here by now, damage was met since, or the epoch has passed. Returns what it is in each.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn end_whole(&self, told: &[(GroupId, Epoch)]) -> Result<Vec<Membership>, VolumeError> {
        self.change_many(told.iter().copied(), |at, row| {
            // Looked up while no operation is under way: a second file that came meanwhile would be hidden on
            // a whole member.
            let is_whole = row.has_everything() && !self.core.has_siblings(told[at].0)?;
            Ok(MemberRow { role: if is_whole { Role::Normal } else { row.role }, ..row })
        })?;
        let now = told.iter().map(|(group, _)| self.membership(*group));
        now.filter_map(Result::transpose).collect()
    }

    /// Changes the rows of groups that are still in the epoch that is meant, in one durable write, while no
    /// operation of them is under way.
    fn change_many(
        &self,
        groups: impl Iterator<Item = (GroupId, Epoch)>,
        mut change: impl FnMut(usize, MemberRow) -> Result<MemberRow, VolumeError>,
    ) -> Result<(), VolumeError> {
        let mut groups: Vec<(usize, (GroupId, Epoch))> = groups.enumerate().collect();
        // In one order: whoever else takes several does so as well.
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
        self.core.keep_rows(&rows)?;
        for (locked, row) in changed {
            queues[locked].set(&mut members[locked], Some(row));
        }
        Ok(())
    }
}
