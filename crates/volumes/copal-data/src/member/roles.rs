//! Which groups this disk is a member of, in which state, at which epoch.

use super::{line::GroupQueue, rows::MemberCore, store::MemberStore};
use crate::{
    error::{corrupt, of_engine},
    format::MemberRow,
    keys,
};
use copal_kv::Durability;
use copal_volume::{
    VolumeError,
    group::{Bucket, Closing, Epoch, GroupId, OwnState, Role, own_role, without_future},
};
use std::sync::Arc;

/// What a member knows about itself in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The group.
    pub group: GroupId,
    /// The newest view it has taken part in.
    pub epoch: Epoch,
    /// Its own state.
    pub role: Role,
    /// The newest epoch in which it was whole, or had everything and was about to tell the master; 0: never.
    pub last_normal: Epoch,
    /// What it takes no more operations of.
    pub closing: Closing,
    /// Operations of earlier buckets are on every member.
    pub horizon: Bucket,
    /// Whether everything from before the horizon is here.
    pub is_covered: bool,
}

impl MemberStore {
    /// All groups of this disk.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn memberships(&self) -> Result<Vec<Membership>, VolumeError> {
        let rows = self.core.spaces.groups.prefix(&[]);
        rows.map(|row| {
            let (key, row) = row.map_err(|error| of_engine(&error))?;
            membership(&key, &row)
        })
        .collect()
    }

    /// What this disk is in a group; `None`: no member.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn membership(&self, group: GroupId) -> Result<Option<Membership>, VolumeError> {
        let queue = self.core.queue(group)?;
        Ok(queue.shown().map(|row| of_row(group, row)))
    }

    /// Writes down what lies in memory only, so that [`MemberStore::group_bytes`] counts it. Blocks.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn flush(&self) -> Result<(), VolumeError> {
        self.core.kv.flush().map_err(|error| of_engine(&error))
    }

    /// Bytes that the files of a group take here, about: without those whose keys lie in memory only. Reads
    /// nothing.
    pub fn group_bytes(&self, group: GroupId) -> u64 {
        let range = keys::range(&keys::group(group), None);
        let spaces = self.core.spaces.of_files();
        let bytes = spaces.map(|space| space.approximate_bytes(keys::borrowed(&range)));
        bytes.into_iter().fold(0, u64::saturating_add)
    }

    /// Takes part in a newer view. Returns when no operation of an older one is under way any more, and this
    /// is durable; an older view than the present one changes nothing.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn enter_view(&self, group: GroupId, epoch: Epoch, role: Role) -> Result<Membership, VolumeError> {
        let queue = self.core.queue(group)?;
        let mut member = queue.member.lock();
        let before = *member;
        let present = before.map_or(Epoch(0), |row| row.epoch);
        if let Some(row) = before
            && (epoch < present || (epoch == present && row.role == role))
        {
            return Ok(of_row(group, row));
        }
        let row = self.core.next_row(group, before, epoch, role)?;
        self.core.keep_rows(&[(group, Some(row))])?;
        queue.set(&mut member, Some(row));
        Ok(of_row(group, row))
    }

    /// Takes part in many newer views, with the state that the rules give (`own_role`): one durable write for
    /// all of them. Returns those that are new here.
    /// # Errors
    /// As [`MemberStore::enter_view`].
    pub fn enter_views(&self, views: &[ToldView]) -> Result<Vec<Membership>, VolumeError> {
        let mut views: Vec<&ToldView> = views.iter().collect();
        // In one order: whoever else takes several does so as well.
        views.sort_unstable_by_key(|view| view.group);
        views.dedup_by_key(|view| view.group);
        let queues = views.iter().map(|view| self.core.queue(view.group));
        let queues: Vec<Arc<GroupQueue>> = queues.collect::<Result<_, _>>()?;
        let mut members: Vec<_> = queues.iter().map(|queue| queue.member.lock()).collect();
        let (mut rows, mut entered) = (Vec::new(), Vec::new());
        for (at, view) in views.iter().enumerate() {
            let before = *members[at];
            if before.is_some_and(|row| view.epoch <= row.epoch) {
                continue;
            }
            let own = before.map(|row| OwnState { role: row.role, last_normal: row.last_normal });
            let role = own_role(own, view.role, view.missed);
            let row = self.core.next_row(view.group, before, view.epoch, role)?;
            rows.push((view.group, Some(row)));
            entered.push((at, row));
        }
        self.core.keep_rows(&rows)?;
        for &(at, row) in &entered {
            queues[at].set(&mut members[at], Some(row));
        }
        let entered = entered.into_iter();
        Ok(entered.map(|(at, row)| of_row(views[at].group, row)).collect())
    }

    /// A server that boots may have missed something in every group, until a view tells otherwise.
    pub(super) fn begin_recovering(&self) -> Result<(), VolumeError> {
        let mut rows = Vec::new();
        for membership in self.memberships()? {
            let queue = self.core.queue(membership.group)?;
            let mut member = queue.member.lock();
            if let Some(row) = member.filter(|row| row.role.is_in_sync()) {
                let row = MemberRow { role: row.role.out_of_sync(), ..row };
                queue.set(&mut member, Some(row));
                rows.push((membership.group, Some(row)));
            }
        }
        self.core.keep_rows(&rows)
    }

    /// The disk is no member of a group any more: every row of it goes, so that nothing of it decides
    /// anything should the disk become a member again.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn leave(&self, group: GroupId) -> Result<(), VolumeError> {
        let queue = self.core.queue(group)?;
        let mut member = queue.member.lock();
        if member.is_none() {
            return Ok(());
        }
        let core = &self.core;
        let spaces = [&core.own.tombs, &core.own.journal, &core.own.siblings];
        // The row of the group goes last: what is half done is done again.
        for space in core.spaces.of_files().into_iter().chain(spaces) {
            let purged = space.purge_prefix(&keys::group(group), Durability::Deferred);
            purged.map_err(|error| of_engine(&error))?;
        }
        core.forget_group(group);
        core.keep_rows(&[(group, None)])?;
        queue.set(&mut member, None);
        Ok(())
    }

    /// Something of a group is damaged here: the member is not whole until it has taken over what it lacks
    /// from another.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn note_damage(&self, group: GroupId) -> Result<(), VolumeError> {
        let queue = self.core.queue(group)?;
        let mut member = queue.member.lock();
        let Some(mut row) = *member else { return Ok(()) };
        row.role = row.role.out_of_sync();
        row.last_normal = Epoch(0);
        // What was lost may be as old as the group.
        row.is_covered = false;
        self.core.keep_rows(&[(group, Some(row))])?;
        queue.set(&mut member, Some(row));
        Ok(())
    }
}

/// A view of a group, as this disk is told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToldView {
    /// The group.
    pub group: GroupId,
    /// The view.
    pub epoch: Epoch,
    /// The disk's state in it.
    pub role: Role,
    /// The newest epoch in which operations could hold without this disk; 0: never, or not since it told that
    /// it is whole.
    pub missed: Epoch,
}

impl MemberCore {
    fn next_row(
        &self,
        group: GroupId,
        before: Option<MemberRow>,
        epoch: Epoch,
        role: Role,
    ) -> Result<MemberRow, VolumeError> {
        // Of a name with two live files nobody knows yet which stays (VOL-14).
        let role = match role.is_in_sync() && self.has_siblings(group)? {
            true => role.out_of_sync(),
            false => role,
        };
        let before = before.unwrap_or(MemberRow {
            epoch: Epoch(0),
            role,
            last_normal: Epoch(0),
            closing: Closing::default(),
            horizon: Bucket::default(),
            is_covered: false,
        });
        let is_whole = role.is_in_sync();
        let (closing, horizon) = match epoch > before.epoch {
            true => self.sealed_in_a_new_view(group, &before),
            false => (before.closing, before.horizon),
        };
        Ok(MemberRow {
            epoch,
            role,
            last_normal: if is_whole { epoch } else { before.last_normal },
            closing,
            horizon,
            is_covered: is_whole || before.is_covered,
        })
    }

    /// Seal and horizon of a group as they are in a newer view. What lies in the future of the cluster's
    /// clock was sealed by a clock that was wrong, and would refuse every operation until that time comes: it
    /// is ignored (VOL-43). Only here: what other members concluded from the seal they concluded in the older
    /// view, in which nothing holds any more.
    fn sealed_in_a_new_view(&self, group: GroupId, before: &MemberRow) -> (Closing, Bucket) {
        let Some(reference_ms) = self.clock.reference_ms() else {
            return (before.closing, before.horizon);
        };
        let below = without_future(before.closing.below, reference_ms);
        if below < before.closing.below {
            let ahead = (before.closing.below.0 - below.0) * copal_volume::group::BUCKET_MS / 1000;
            tracing::warn!(%group, ahead_seconds = ahead, "a seal lies in the future of the cluster's clock: it is ignored");
            // Buckets that are open again are counted again.
            self.digests.lock().forget_group(group);
        }
        (Closing { below }, before.horizon.min(below))
    }

    /// Makes rows of groups durable; `None`: the row goes.
    pub(super) fn keep_rows(&self, rows: &[(GroupId, Option<MemberRow>)]) -> Result<(), VolumeError> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut batch = self.kv.batch();
        for (group, row) in rows {
            let key = keys::group(*group);
            match row {
                Some(row) => batch.put(&self.spaces.groups, &key, row.row(&key)),
                None => batch.delete(&self.spaces.groups, &key),
            };
        }
        self.commit_essential(batch, Durability::Device)
    }
}

impl MemberCore {
    pub(super) fn has_siblings(&self, group: GroupId) -> Result<bool, VolumeError> {
        let first = self.own.siblings.prefix(&keys::group(group)).next();
        Ok(first.transpose().map_err(|error| of_engine(&error))?.is_some())
    }

    /// The queue of a group, with what the disk knows about itself there.
    pub(super) fn queue(&self, group: GroupId) -> Result<Arc<GroupQueue>, VolumeError> {
        if let Some(queue) = self.queues.lock().get(&group) {
            return Ok(Arc::clone(queue));
        }
        let key = keys::group(group);
        let row = self
            .spaces
            .groups
            .get(&key)
            .map_err(|error| of_engine(&error))?
            .map(|row| parse(&key, &row))
            .transpose()?;
        let mut queues = self.queues.lock();
        let queue = queues.entry(group).or_insert_with(|| Arc::new(GroupQueue::of(row)));
        Ok(Arc::clone(queue))
    }
}

fn parse(key: &[u8], row: &[u8]) -> Result<MemberRow, VolumeError> {
    MemberRow::parse(key, row).map_err(|error| corrupt(format!("the row of a group: {error}")))
}

fn membership(key: &[u8], row: &[u8]) -> Result<Membership, VolumeError> {
    let group = key.try_into().map(u32::from_be_bytes).map_err(|_| corrupt("a key of a group"))?;
    Ok(of_row(GroupId(group), parse(key, row)?))
}

fn of_row(group: GroupId, row: MemberRow) -> Membership {
    Membership {
        group,
        epoch: row.epoch,
        role: row.role,
        last_normal: row.last_normal,
        closing: row.closing,
        horizon: row.horizon,
        is_covered: row.is_covered,
    }
}
