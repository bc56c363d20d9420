//! Memberships of a disk: its groups, with role and epoch in each.

use super::{disk_state::MemberCore, group_queue::GroupQueue, heads, upload_rows};
use crate::{
    error::{corrupt, of_engine},
    format::MemberRow,
    keys,
};
use copal_kv::Durability;
use copal_volume::{
    VolumeError,
    group::{Bucket, BucketSeal, Epoch, GroupId, OwnState, Role, own_role, without_future},
};
use std::sync::Arc;

/// State of a disk in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMembership {
    /// The group.
    pub group: GroupId,
    /// The newest view that it has entered.
    pub epoch: Epoch,
    /// Its own role.
    pub role: Role,
    /// The newest epoch in which it was in sync, or had everything and was about to report that; 0: never.
    pub last_in_sync: Epoch,
    /// Its sealed buckets.
    pub seal: BucketSeal,
    /// The stable point: operations of earlier buckets are on every member.
    pub stable_point: Bucket,
    /// Whether it has everything below the stable point.
    pub is_covered: bool,
}

/// See `MemberStore::memberships`.
pub(super) fn memberships(core: &MemberCore) -> Result<Vec<GroupMembership>, VolumeError> {
    let rows = core.spaces.groups.prefix(&[]);
    rows.map(|row| {
        let (key, row) = row.map_err(|error| of_engine(&error))?;
        decode_membership(&key, &row)
    })
    .collect()
}

/// See `MemberStore::membership`.
pub(super) fn membership(core: &MemberCore, group: GroupId) -> Result<Option<GroupMembership>, VolumeError> {
    let queue = queue(core, group)?;
    Ok(queue.published().map(|row| of_row(group, row)))
}

/// See `MemberStore::flush`.
pub(super) fn flush(core: &MemberCore) -> Result<(), VolumeError> {
    core.kv.flush().map_err(|error| of_engine(&error))
}

/// See `MemberStore::group_bytes`.
pub(super) fn group_bytes(core: &MemberCore, group: GroupId) -> u64 {
    let range = keys::range(&keys::group(group), None);
    let spaces = core.spaces.of_files();
    let bytes = spaces.map(|space| space.approximate_bytes(keys::borrowed(&range)));
    bytes.into_iter().fold(0, u64::saturating_add)
}

/// See `MemberStore::enter_view`.
pub(super) fn enter_view(
    core: &MemberCore,
    group: GroupId,
    epoch: Epoch,
    role: Role,
) -> Result<GroupMembership, VolumeError> {
    let queue = queue(core, group)?;
    let mut member = queue.member.lock();
    let before = *member;
    let present = before.map_or(Epoch(0), |row| row.epoch);
    if let Some(row) = before
        && (epoch < present || (epoch == present && row.role == role))
    {
        return Ok(of_row(group, row));
    }
    let row = next_row(core, group, before, epoch, role)?;
    write_rows(core, &[(group, Some(row))])?;
    queue.set(&mut member, Some(row));
    Ok(of_row(group, row))
}

/// See `MemberStore::enter_views`.
pub(super) fn enter_views(
    core: &MemberCore,
    views: &[AssignedView],
) -> Result<Vec<GroupMembership>, VolumeError> {
    let mut views: Vec<&AssignedView> = views.iter().collect();
    // All callers lock several groups in ascending order.
    views.sort_unstable_by_key(|view| view.group);
    views.dedup_by_key(|view| view.group);
    let queues = views.iter().map(|view| queue(core, view.group));
    let queues: Vec<Arc<GroupQueue>> = queues.collect::<Result<_, _>>()?;
    let mut members: Vec<_> = queues.iter().map(|queue| queue.member.lock()).collect();
    let (mut rows, mut entered) = (Vec::new(), Vec::new());
    for (at, view) in views.iter().enumerate() {
        let before = *members[at];
        if before.is_some_and(|row| view.epoch <= row.epoch) {
            continue;
        }
        let own = before.map(|row| OwnState { role: row.role, last_in_sync: row.last_in_sync });
        let role = own_role(own, view.role, view.missed);
        let row = next_row(core, view.group, before, view.epoch, role)?;
        rows.push((view.group, Some(row)));
        entered.push((at, row));
    }
    write_rows(core, &rows)?;
    for &(at, row) in &entered {
        queues[at].set(&mut members[at], Some(row));
    }
    let entered = entered.into_iter();
    Ok(entered.map(|(at, row)| of_row(views[at].group, row)).collect())
}

/// Sets all groups out of sync: a booting server may lack operations of each until a view says otherwise.
pub(super) fn begin_recovering(core: &MemberCore) -> Result<(), VolumeError> {
    let mut rows = Vec::new();
    for membership in memberships(core)? {
        let queue = queue(core, membership.group)?;
        let mut member = queue.member.lock();
        if let Some(row) = member.filter(|row| row.role.is_in_sync()) {
            let row = MemberRow { role: row.role.out_of_sync(), ..row };
            queue.set(&mut member, Some(row));
            rows.push((membership.group, Some(row)));
        }
    }
    write_rows(core, &rows)
}

/// See `MemberStore::leave`.
pub(super) fn leave(core: &MemberCore, group: GroupId) -> Result<(), VolumeError> {
    let queue = queue(core, group)?;
    let mut member = queue.member.lock();
    if member.is_none() {
        return Ok(());
    }
    let spaces = [&core.own.tombstones, &core.own.journal, &core.own.siblings];
    // The row of the group is deleted last: after a crash the deletion is repeated.
    for space in core.spaces.of_files().into_iter().chain(spaces) {
        let purged = space.purge_prefix(&keys::group(group), Durability::Deferred);
        purged.map_err(|error| of_engine(&error))?;
    }
    upload_rows::forget_group(core, group);
    write_rows(core, &[(group, None)])?;
    queue.set(&mut member, None);
    Ok(())
}

/// See `MemberStore::note_damage`.
pub(super) fn note_damage(core: &MemberCore, group: GroupId) -> Result<(), VolumeError> {
    let queue = queue(core, group)?;
    let mut member = queue.member.lock();
    let Some(mut row) = *member else { return Ok(()) };
    row.role = row.role.out_of_sync();
    row.last_in_sync = Epoch(0);
    // The lost rows may be as old as the group.
    row.is_covered = false;
    write_rows(core, &[(group, Some(row))])?;
    queue.set(&mut member, Some(row));
    Ok(())
}

/// A view of a group, with the disk's role in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssignedView {
    /// The group.
    pub group: GroupId,
    /// Epoch of the view.
    pub epoch: Epoch,
    /// The disk's role in it.
    pub role: Role,
    /// The newest epoch in which operations could complete without this disk; 0: never, or not since it
    /// reported that it is in sync.
    pub missed: Epoch,
}

fn next_row(
    core: &MemberCore,
    group: GroupId,
    before: Option<MemberRow>,
    epoch: Epoch,
    role: Role,
) -> Result<MemberRow, VolumeError> {
    // Of a name with two live files, it is unknown yet which one stays (VOL-14).
    let role = match role.is_in_sync() && heads::has_siblings(core, group)? {
        true => role.out_of_sync(),
        false => role,
    };
    let before = before.unwrap_or(MemberRow {
        epoch: Epoch(0),
        role,
        last_in_sync: Epoch(0),
        seal: BucketSeal::default(),
        stable_point: Bucket::default(),
        is_covered: false,
    });
    let is_in_sync = role.is_in_sync();
    let (seal, stable_point) = match epoch > before.epoch {
        true => sealed_in_a_new_view(core, group, &before),
        false => (before.seal, before.stable_point),
    };
    Ok(MemberRow {
        epoch,
        role,
        last_in_sync: if is_in_sync { epoch } else { before.last_in_sync },
        seal,
        stable_point,
        is_covered: is_in_sync || before.is_covered,
    })
}

/// Seal and stable point of a group in a newer view. A wrong clock made a seal in the future of the
/// cluster's clock, which would refuse every operation until that time. Such a seal is ignored (VOL-43).
/// This is done only at the change of the view. Other members derived their conclusions from the seal in
/// the older view, and those no longer count.
fn sealed_in_a_new_view(core: &MemberCore, group: GroupId, before: &MemberRow) -> (BucketSeal, Bucket) {
    let Some(reference_ms) = core.clock.reference_ms() else {
        return (before.seal, before.stable_point);
    };
    let below = without_future(before.seal.below, reference_ms);
    if below < before.seal.below {
        let ahead = (before.seal.below.0 - below.0) * copal_volume::group::BUCKET_MS / 1000;
        tracing::warn!(%group, ahead_seconds = ahead, "a seal in the future of the cluster's clock is ignored");
        // Buckets that are open again get new digests.
        core.digests.lock().forget_group(group);
    }
    (BucketSeal { below }, before.stable_point.min(below))
}

/// Writes rows of groups durably; `None` deletes the row.
pub(super) fn write_rows(
    core: &MemberCore,
    rows: &[(GroupId, Option<MemberRow>)],
) -> Result<(), VolumeError> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut batch = core.kv.batch();
    for (group, row) in rows {
        let key = keys::group(*group);
        match row {
            Some(row) => batch.put(&core.spaces.groups, &key, row.row(&key)),
            None => batch.delete(&core.spaces.groups, &key),
        };
    }
    core.commit_essential(batch, Durability::Device)
}

/// The queue of a group, with the disk's state in it.
pub(super) fn queue(core: &MemberCore, group: GroupId) -> Result<Arc<GroupQueue>, VolumeError> {
    if let Some(queue) = core.queues.get(group) {
        return Ok(queue);
    }
    let key = keys::group(group);
    let row = core
        .spaces
        .groups
        .get(&key)
        .map_err(|error| of_engine(&error))?
        .map(|row| parse(&key, &row))
        .transpose()?;
    Ok(core.queues.get_or_insert(group, row))
}

fn parse(key: &[u8], row: &[u8]) -> Result<MemberRow, VolumeError> {
    MemberRow::parse(key, row).map_err(|error| corrupt(format!("the row of a group: {error}")))
}

fn decode_membership(key: &[u8], row: &[u8]) -> Result<GroupMembership, VolumeError> {
    let group = key.try_into().map(u32::from_be_bytes).map_err(|_| corrupt("a key of a group"))?;
    Ok(of_row(GroupId(group), parse(key, row)?))
}

fn of_row(group: GroupId, row: MemberRow) -> GroupMembership {
    GroupMembership {
        group,
        epoch: row.epoch,
        role: row.role,
        last_in_sync: row.last_in_sync,
        seal: row.seal,
        stable_point: row.stable_point,
        is_covered: row.is_covered,
    }
}
