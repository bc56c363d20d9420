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
    group::{Epoch, GroupId, Role},
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
    /// The newest epoch in which it was whole; 0: never.
    pub last_normal: Epoch,
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
        let member = queue.member.lock();
        Ok(member.map(|row| of_row(group, row)))
    }

    /// Takes part in a newer view. Returns when no operation of an older one is under way any more, and this is durable;
    /// an older view than the present one changes nothing.
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
        let role = match role {
            // Of a name with two live files nobody knows yet which stays (VOL-14).
            Role::Normal if self.core.has_siblings(group)? => Role::Recovering,
            role => role,
        };
        let last_normal = match role {
            Role::Normal => epoch,
            _ => before.map_or(Epoch(0), |row| row.last_normal),
        };
        let row = MemberRow {
            epoch,
            role,
            last_normal,
        };
        let key = keys::group(group);
        let mut batch = self.core.kv.batch();
        batch.put(&self.core.spaces.groups, &key, row.row(&key));
        self.core.writable()?;
        let committed = batch.commit(Durability::Device);
        committed.map_err(|error| VolumeError::Failed {
            reason: self.core.fail(&error),
        })?;
        *member = Some(row);
        Ok(of_row(group, row))
    }
}

impl MemberCore {
    fn has_siblings(&self, group: GroupId) -> Result<bool, VolumeError> {
        let first = self.own.siblings.prefix(&keys::group(group)).next();
        Ok(first.transpose().map_err(|error| of_engine(&error))?.is_some())
    }

    /// The queue of a group, with what the disk knows about itself there.
    pub(super) fn queue(&self, group: GroupId) -> Result<Arc<GroupQueue>, VolumeError> {
        if let Some(queue) = self.queues.lock().get(&group) {
            return Ok(Arc::clone(queue));
        }
        let key = keys::group(group);
        let row = self.spaces.groups.get(&key).map_err(|error| of_engine(&error))?;
        let row = row.map(|row| parse(&key, &row)).transpose()?;
        let mut queues = self.queues.lock();
        let queue = queues
            .entry(group)
            .or_insert_with(|| Arc::new(GroupQueue::of(row)));
        Ok(Arc::clone(queue))
    }
}

fn parse(key: &[u8], row: &[u8]) -> Result<MemberRow, VolumeError> {
    MemberRow::parse(key, row).map_err(|error| corrupt(format!("the row of a group: {error}")))
}

fn membership(key: &[u8], row: &[u8]) -> Result<Membership, VolumeError> {
    let group = key.try_into().map(u32::from_be_bytes);
    let group = group.map_err(|_| corrupt("a key of a group"))?;
    Ok(of_row(GroupId(group), parse(key, row)?))
}

fn of_row(group: GroupId, row: MemberRow) -> Membership {
    Membership {
        group,
        epoch: row.epoch,
        role: row.role,
        last_normal: row.last_normal,
    }
}
