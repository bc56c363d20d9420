//! Removal of damaged rows of a group, so that the member can copy them from another one.
//!
//! Readable rows stay. A file with any unreadable byte is dropped with its head: then it is missing, and the
//! next resync copies it (VOL-16). Lost tombstones and journal rows are copied in the same way.
//!
//! Design: docs/design/cluster.md#rules VOL-28
//! Not here: whether another member has everything, and when damage is searched for (`copal-server`).

use super::{disk_state::MemberCore, heads, roles, verify};
use crate::{
    error::{corrupt, of_engine},
    format::FileHead,
    keys,
    local::delete_pieces,
};
use bytes::Bytes;
use copal_kv::{DamagedRange, Durability, Keyspace};
use copal_volume::{FileId, VolumeError, VolumeId, group::GroupId};
use std::ops::Bound;

/// Number of damaged ranges of one keyspace and group after which the removal fails.
const MOST_RANGES: usize = 100_000;

/// Rows that were dropped from a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedRows {
    /// Files.
    pub files: u64,
    /// Ranges of keys.
    pub ranges: u64,
}

/// An unreadable file.
struct UnreadableFile {
    key: Bytes,
    vid: VolumeId,
    /// `None`: its head is unreadable.
    file: Option<(FileId, u64)>,
}

/// A background read of the disk; ends on drop.
pub struct DiskScrub(copal_kv::Scrub);

impl DiskScrub {
    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.0.is_over()
    }
}

/// See `MemberStore::scrub`.
pub(super) fn scrub(core: &MemberCore, bytes_per_s: u64) -> Option<DiskScrub> {
    core.kv.scrub(bytes_per_s).ok().map(DiskScrub)
}

/// See `MemberStore::damaged_groups`.
pub(super) fn damaged_groups(core: &MemberCore) -> Result<Vec<GroupId>, VolumeError> {
    let damaged = core.kv.damaged_ranges();
    let mut groups = Vec::new();
    if damaged.is_empty() {
        return Ok(groups);
    }
    for membership in roles::memberships(core)? {
        let group = membership.group;
        let is_of_group = |damage: &DamagedRange| {
            space_of_group(core, &damage.keyspace).is_some() && within(damage, group).is_some()
        };
        if damaged.iter().any(is_of_group) {
            groups.push(group);
        }
    }
    Ok(groups)
}

/// See `MemberStore::drop_damaged`.
pub(super) fn drop_damaged(core: &MemberCore, group: GroupId) -> Result<DroppedRows, VolumeError> {
    let mut dropped = DroppedRows { ranges: salvage(core, group)?, files: 0 };
    let own = &core.own;
    for space in [&own.tombstones, &own.journal, &own.siblings] {
        walk(core, group, space, &mut dropped, |_, _| Ok(()))?;
    }
    let mut unreadable = Vec::new();
    walk(core, group, &core.spaces.files, &mut dropped, |key, row| {
        let Some((vid, _)) = keys::split(key) else {
            return Err(corrupt("the key of a file is cut"));
        };
        let file = match FileHead::parse(key, row) {
            Ok(head) => match verify::find_damage(core, key, &head)? {
                Some(_) => Some((head.fid, head.size)),
                None => return Ok(()),
            },
            Err(_) => None,
        };
        unreadable.push(UnreadableFile { key: key.clone(), vid, file });
        Ok(())
    })?;
    for file in unreadable {
        dropped.files += u64::from(drop_file(core, group, &file)?);
    }
    // Pieces whose damage the reads found, and pieces of dropped files.
    dropped.ranges += salvage(core, group)?;
    core.digests.lock().forget_group(group);
    core.usage.forget_group(group);
    Ok(dropped)
}

/// Calls `each` for the rows of a group in one keyspace. Damaged ranges are dropped on the way.
fn walk(
    core: &MemberCore,
    group: GroupId,
    space: &Keyspace,
    dropped: &mut DroppedRows,
    mut each: impl FnMut(&Bytes, &Bytes) -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    let mut after: Option<Bytes> = None;
    for _ in 0..MOST_RANGES {
        let range = keys::range(&keys::group(group), after.as_deref());
        let mut damage = None;
        for row in space.iter(keys::borrowed(&range)) {
            match row {
                Ok((key, row)) => {
                    each(&key, &row)?;
                    after = Some(key);
                }
                Err(error) if error.is_corruption() => {
                    damage = Some(error.to_string());
                    break;
                }
                Err(error) => return Err(of_engine(&error)),
            }
        }
        let Some(what) = damage else { return Ok(()) };
        match salvage(core, group)? {
            0 => return Err(corrupt(what)),
            ranges => dropped.ranges += ranges,
        }
    }
    Err(corrupt("the damage of a group does not end"))
}

/// Drops the known damaged ranges of a group and keeps their readable rows. Returns their number.
fn salvage(core: &MemberCore, group: GroupId) -> Result<u64, VolumeError> {
    let mut ranges = 0;
    for damage in core.kv.damaged_ranges() {
        let Some(space) = space_of_group(core, &damage.keyspace) else {
            continue;
        };
        let Some((start, end)) = within(&damage, group) else {
            continue;
        };
        let queue = roles::queue(core, group)?;
        // No operation writes there meanwhile.
        let _member = queue.member.lock();
        let end = end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(&end[..]));
        let salvaged = space.salvage((Bound::Included(&start[..]), end));
        salvaged.map_err(|error| of_engine(&error))?;
        tracing::warn!(%group, keyspace = damage.keyspace, what = damage.what, "damaged rows were dropped");
        ranges += 1;
    }
    Ok(ranges)
}

/// Drops an unreadable file. Returns whether it still had its name.
fn drop_file(core: &MemberCore, group: GroupId, file: &UnreadableFile) -> Result<bool, VolumeError> {
    let queue = roles::queue(core, group)?;
    let _member = queue.member.lock();
    let mut batch = core.kv.batch();
    if let Some((fid, size)) = file.file {
        let now = heads::find_head(&core.spaces.files, &file.key)?;
        if now.is_none_or(|now| now.fid != fid) {
            return Ok(false);
        }
        delete_pieces(&core.spaces, &mut batch, file.vid, fid, size);
    }
    batch.delete(&core.spaces.files, &file.key);
    core.commit_essential(batch, Durability::Device)?;
    tracing::warn!(%group, volume = %file.vid, "an unreadable file was dropped");
    Ok(true)
}

/// A keyspace with replicas on other members.
fn space_of_group<'a>(core: &'a MemberCore, name: &str) -> Option<&'a Keyspace> {
    let (spaces, own) = (core.spaces.of_files(), &core.own);
    let all = spaces.into_iter().chain([&own.tombstones, &own.journal, &own.siblings]);
    let mut named = all.filter(|space| space.name() == name);
    named.next()
}

/// The part of a damaged range that belongs to a group: its first key, and the first key after it.
fn within(damage: &DamagedRange, group: GroupId) -> Option<(Bytes, Option<Bytes>)> {
    let first = Bytes::copy_from_slice(&keys::group(group));
    let behind = keys::above(&first).map(Bytes::from);
    let start = damage.start.clone().max(first);
    let end = match (damage.end.clone(), behind) {
        (Some(end), Some(behind)) => Some(end.min(behind)),
        (end, behind) => end.or(behind),
    };
    let is_empty = end.as_ref().is_some_and(|end| *end <= start);
    (!is_empty).then_some((start, end))
}
