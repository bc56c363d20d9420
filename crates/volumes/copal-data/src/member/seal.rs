//! Sealed buckets of a member: sealing, their digests, and cutting of journal and tombstones below the stable
//! point.
//!
//! A digest is computed from the journal after its bucket is sealed. It stays in memory until the bucket gets
//! another operation, which only a copy from another member adds. An operation therefore costs nothing but
//! its journal row, and a digest always matches its rows.
//!
//! Design: docs/design/cluster.md#rules VOL-17, VOL-18
//! Invariants
//! - A seal is on the device before it is sent.
//! - A tombstone is cut together with the last journal row of its delete, long after all members have that.
//!
//! Not here: gossip (`copal-server`), the time of seals, the definition of the stable point
//! (`copal_volume::group`).

use super::{
    GroupMembership, OperationError,
    disk_state::MemberCore,
    file_ids::{self, FileAddress},
    group_batch::GroupBatch,
    group_queue::GroupQueue,
    heads,
    journal_entry::{self, JournalEntry, journal_entry},
    roles, upload_expiry,
};
use crate::{
    error::{corrupt, of_engine},
    format::{FileHead, MemberRow},
    keys,
};
use bytes::Bytes;
use copal_kv::{Batch, Durability, Keyspace};
use copal_volume::{
    FileId, VolumeError, VolumeId,
    group::{
        Bucket, BucketSeal, GroupId, NameClaim, OperationDigest, OperationRecord, PeerStatus,
        is_seal_in_future,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Number of buckets below the stable point whose journal is kept. The ids of two clients may differ by the
/// skew of their clocks, and the tombstone of an early delete must outlive a late create of its file.
const KEPT_BUCKETS: u64 = 3;
/// Maximum number of rows that one batch of cutting reads.
const CUT_ROWS: usize = 2_000;

/// See `MemberStore::seal_due`.
pub(super) fn seal_due(
    core: &MemberCore,
    peer_seals: &BTreeMap<GroupId, BucketSeal>,
) -> Result<Vec<GroupId>, VolumeError> {
    // They are freed at the next call; sealing continues.
    if let Err(error) = upload_expiry::expire_uploads(core) {
        tracing::warn!(%error, "expired uploads could not be freed");
    }
    let now_ms = core.clock.sealing_ms();
    let (mut open, mut seals) = (Vec::new(), Vec::new());
    for membership in roles::memberships(core)? {
        let group = membership.group;
        let first = journal_entry::first_bucket(core, group, Bucket(0))?;
        let peer = peer_seals.get(&group).copied().unwrap_or_default();
        if first.is_none() && peer.below <= membership.seal.below {
            continue;
        }
        let due = membership.seal.at(now_ms);
        // A group with a journal is sealed further, until all of its journal is well below the stable
        // point.
        if due.below > membership.seal.below {
            seals.push((group, due));
        }
        if first.is_some() {
            open.push(group);
        }
    }
    seal_groups(core, &seals)?;
    Ok(open)
}

/// Seals buckets of many groups, given in ascending order, in one durable write.
fn seal_groups(core: &MemberCore, seals: &[(GroupId, BucketSeal)]) -> Result<(), VolumeError> {
    let queues = seals.iter().map(|(group, _)| roles::queue(core, *group));
    let queues: Vec<Arc<GroupQueue>> = queues.collect::<Result<_, _>>()?;
    let mut members: Vec<_> = queues.iter().map(|queue| queue.member.lock()).collect();
    let rows = seals.iter().zip(&members).map(|(&(group, seal), member)| {
        let row = member.map(|row| MemberRow { seal: row.seal.joined(seal), ..row });
        (group, row)
    });
    let rows: Vec<(GroupId, Option<MemberRow>)> = rows.filter(|(_, row)| row.is_some()).collect();
    roles::write_rows(core, &rows)?;
    for (at, &(group, _)) in seals.iter().enumerate() {
        if let Some((_, row)) = rows.iter().find(|(of, _)| *of == group) {
            queues[at].set(&mut members[at], *row);
        }
    }
    Ok(())
}

/// See `MemberStore::peer_status`.
pub(super) fn peer_status(
    core: &MemberCore,
    group: GroupId,
    seed: u64,
) -> Result<Option<PeerStatus>, VolumeError> {
    let Some(membership) = roles::membership(core, group)? else {
        return Ok(None);
    };
    let below = membership.seal.below;
    let mut digests = BTreeMap::new();
    let mut at = membership.stable_point;
    while let Some(bucket) = journal_entry::first_bucket(core, group, at)?
        && bucket < below
    {
        digests.insert(bucket, digest(core, group, bucket, seed)?);
        at = Bucket(bucket.0 + 1);
    }
    Ok(Some(PeerStatus {
        epoch: membership.epoch,
        role: membership.role,
        seal: membership.seal,
        stable_point: membership.stable_point,
        is_covered: membership.is_covered,
        digests,
    }))
}

/// See `MemberStore::digest_from`.
pub(super) fn digest_from(
    core: &MemberCore,
    group: GroupId,
    from: Bucket,
    seed: u64,
) -> Result<OperationDigest, VolumeError> {
    let mut digest = OperationDigest::default();
    journal_entry::each_record(core, group, from, None, |entry| {
        digest.add(seed, &entry.record());
    })?;
    Ok(digest)
}

/// See `MemberStore::raise_stable_point`.
pub(super) fn raise_stable_point(
    core: &MemberCore,
    group: GroupId,
    stable_point: Bucket,
) -> Result<(), VolumeError> {
    change(core, group, |row| match row.is_covered {
        true => MemberRow {
            // A view that was entered since may have taken back a seal in the future.
            stable_point: row.stable_point.max(stable_point.min(row.seal.below)),
            ..row
        },
        false => row,
    })?;
    cut(core, group)
}

/// See `MemberStore::begin_resync`.
pub(super) fn begin_resync(
    core: &MemberCore,
    group: GroupId,
    stable_point: Bucket,
    closed: BucketSeal,
) -> Result<(), VolumeError> {
    let is_covered = |row: GroupMembership| row.is_covered;
    if roles::membership(core, group)?.is_none_or(is_covered) {
        return Ok(());
    }
    change(core, group, |row| match row.is_covered {
        true => row,
        false => MemberRow {
            stable_point: row.stable_point.max(stable_point),
            seal: row.seal.joined(closed),
            ..row
        },
    })?;
    discard_below(core, group, stable_point)
}

/// See `MemberStore::bucket_operations`.
pub(super) fn bucket_operations(
    core: &MemberCore,
    group: GroupId,
    bucket: Bucket,
    after: Option<&[u8]>,
    limit: usize,
) -> Result<Vec<JournalEntry>, VolumeError> {
    let range = keys::range(&keys::journal_bucket(group, bucket.0), after);
    let rows = core.own.journal.iter(keys::borrowed(&range));
    rows.take(limit)
        .map(|row| {
            let (key, row) = row.map_err(|error| of_engine(&error))?;
            journal_entry(key, &row)
        })
        .collect()
}

/// See `MemberStore::claim`.
pub(super) fn claim(core: &MemberCore, vid: VolumeId, name: &[u8]) -> Result<Option<NameClaim>, VolumeError> {
    let head = heads::find_head(&core.spaces.files, &keys::named(vid, name))?;
    Ok(head.map(|head| claim_of(&head)))
}

/// See `MemberStore::disputed_names`.
pub(super) fn disputed_names(
    core: &MemberCore,
    group: GroupId,
    limit: usize,
) -> Result<Vec<DisputedName>, VolumeError> {
    let mut disputed: Vec<DisputedName> = Vec::new();
    for row in core.own.siblings.prefix(&keys::group(group)) {
        let (key, _) = row.map_err(|error| of_engine(&error))?;
        let cut = || corrupt("the key of a file beside another is cut");
        let (vid, rest) = keys::split(&key).ok_or_else(cut)?;
        let (name, _) = keys::split_sibling(rest).ok_or_else(cut)?;
        if disputed.iter().any(|known| known.vid == vid && known.name == name) {
            continue;
        }
        if disputed.len() == limit {
            break;
        }
        let beside = heads::find_siblings(core, vid, name)?;
        let claims = claim(core, vid, name)?.into_iter().chain(beside.iter().map(claim_of));
        disputed.push(DisputedName { vid, name: Bytes::copy_from_slice(name), claims: claims.collect() });
    }
    Ok(disputed)
}

/// See `MemberStore::is_deleted_or_removed`.
pub(super) fn is_deleted_or_removed(
    core: &MemberCore,
    vid: VolumeId,
    fid: FileId,
) -> Result<bool, VolumeError> {
    file_ids::is_deleted_or_removed(core, FileAddress { vid, name: None }, fid)
}

/// See `MemberStore::is_deleted_or_removed_by_name`.
pub(super) fn is_deleted_or_removed_by_name(
    core: &MemberCore,
    vid: VolumeId,
    name: &[u8],
    fid: FileId,
) -> Result<bool, VolumeError> {
    file_ids::is_deleted_or_removed(core, FileAddress::of_request(vid, name), fid)
}

/// See `MemberStore::lacks_operation`.
pub(super) fn lacks_operation(
    core: &MemberCore,
    group: GroupId,
    entry: &JournalEntry,
) -> Result<bool, VolumeError> {
    let Some(membership) = roles::membership(core, group)? else {
        return Ok(false);
    };
    if Bucket::of(entry.op) < membership.stable_point && membership.is_covered {
        return Ok(false);
    }
    let key = keys::journal(group, entry.op);
    let row = core.own.journal.get(&key);
    Ok(row.map_err(|error| of_engine(&error))?.is_none())
}

/// See `MemberStore::has_future_seals`.
pub(super) fn has_future_seals(core: &MemberCore) -> Result<bool, VolumeError> {
    let Some(reference_ms) = core.clock.reference_ms() else {
        return Ok(false);
    };
    let mut all = roles::memberships(core)?.into_iter();
    Ok(all.any(|own| is_seal_in_future(own.seal.below, reference_ms)))
}

/// See `MemberStore::is_seal_in_future`.
pub(super) fn is_peer_seal_in_future(core: &MemberCore, seal: BucketSeal) -> bool {
    let reference_ms = core.clock.reference_ms();
    reference_ms.is_some_and(|reference_ms| is_seal_in_future(seal.below, reference_ms))
}

fn change(
    core: &MemberCore,
    group: GroupId,
    change: impl FnOnce(MemberRow) -> MemberRow,
) -> Result<(), VolumeError> {
    let queue = roles::queue(core, group)?;
    let mut member = queue.member.lock();
    let Some(before) = *member else { return Ok(()) };
    let row = change(before);
    if row == before {
        return Ok(());
    }
    roles::write_rows(core, &[(group, Some(row))])?;
    queue.set(&mut member, Some(row));
    Ok(())
}

/// A name with more than one live file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisputedName {
    /// Its volume.
    pub vid: VolumeId,
    /// The name.
    pub name: Bytes,
    /// Its files.
    pub claims: Vec<NameClaim>,
}

fn claim_of(head: &FileHead) -> NameClaim {
    NameClaim { fid: head.fid, op: head.op }
}

impl JournalEntry {
    /// The operation in the form for digests.
    pub fn record(&self) -> OperationRecord {
        OperationRecord { is_create: self.is_create, op: self.op, vid: self.vid, fid: self.fid }
    }
}

fn digest(
    core: &MemberCore,
    group: GroupId,
    bucket: Bucket,
    seed: u64,
) -> Result<OperationDigest, VolumeError> {
    if let Some(digest) = core.digests.lock().known(group, bucket) {
        return Ok(digest);
    }
    // No batch of the group is on its way meanwhile: the kept digest would lack its operations.
    let queue = roles::queue(core, group)?;
    let member = queue.member.lock();
    let mut digest = OperationDigest::default();
    journal_entry::each_record(core, group, bucket, Some(bucket), |entry| {
        digest.add(seed, &entry.record());
    })?;
    if member.is_some_and(|row| bucket < row.seal.below) {
        core.digests.lock().keep(group, bucket, digest);
    }
    Ok(digest)
}

/// Removes a new member's own operations below a stable point: files from clients, and deletes. The donor
/// has those that completed. The others were refused elsewhere and never complete, and such a delete
/// would hide a complete file. A member that was in sync before has no such operations: its seal covers
/// everything below a stable point.
fn discard_below(core: &MemberCore, group: GroupId, stable_point: Bucket) -> Result<(), VolumeError> {
    let queue = roles::queue(core, group)?;
    let member = queue.member.lock();
    let Some(row) = member.filter(|row| row.role.is_joining()) else {
        return Ok(());
    };
    let mut discarded: Vec<JournalEntry> = Vec::new();
    let mut deleted: BTreeSet<FileId> = BTreeSet::new();
    journal_entry::each_record(core, group, Bucket(0), None, |entry| {
        match Bucket::of(entry.op) < stable_point {
            true => discarded.push(entry.clone()),
            false if !entry.is_create => drop(deleted.insert(entry.fid)),
            false => {}
        }
    })?;
    let failed = |error| match error {
        OperationError::Failed(error) => error,
        other => VolumeError::Failed {
            reason: format!("operations of a new member could not be discarded: {other:?}"),
        },
    };
    let mut batch = GroupBatch::new(core, group, &row);
    for entry in &discarded {
        if batch.is_full() || batch.is_split {
            std::mem::replace(&mut batch, GroupBatch::new(core, group, &row)).commit()?;
        }
        batch.undo(entry, deleted.contains(&entry.fid)).map_err(failed)?;
    }
    batch.commit()
}

/// Cuts journal and tombstones well below the stable point.
fn cut(core: &MemberCore, group: GroupId) -> Result<(), VolumeError> {
    loop {
        let queue = roles::queue(core, group)?;
        let member = queue.member.lock();
        let Some(row) = member.filter(|row| row.is_covered) else {
            return Ok(());
        };
        let below = row.stable_point.0.saturating_sub(KEPT_BUCKETS);
        let start = keys::group(group);
        let end = keys::journal_bucket(group, below);
        if end[..] <= start[..] {
            return Ok(());
        }
        let range = (std::ops::Bound::Included(&start[..]), std::ops::Bound::Excluded(&end[..]));
        let mut batch = core.kv.batch();
        let (mut count, mut is_split) = (0, false);
        for row in core.own.journal.iter(range).take(CUT_ROWS) {
            let (key, row) = row.map_err(|error| of_engine(&error))?;
            let entry = journal_entry(key, &row)?;
            count += 1;
            is_split = cut_row(core, &mut batch, group, &entry, &core.own.journal)?;
            if is_split {
                break;
            }
        }
        if count == 0 {
            return Ok(());
        }
        // Repeated after a power loss: nothing reads rows below it.
        let committed = core.commit_essential(batch, Durability::Deferred);
        drop(member);
        committed?;
        if count < CUT_ROWS && !is_split {
            return Ok(());
        }
    }
}

/// Cuts one row. Returns whether the next row must be in another batch.
fn cut_row(
    core: &MemberCore,
    batch: &mut Batch,
    group: GroupId,
    entry: &JournalEntry,
    journal: &Keyspace,
) -> Result<bool, VolumeError> {
    batch.delete(journal, &entry.key);
    match entry.is_create {
        true => Ok(false),
        false => file_ids::delete_tombstone(
            core,
            batch,
            group,
            FileAddress::of_request(entry.vid, &entry.name),
            entry.fid,
        ),
    }
}

#[cfg(test)]
mod tests;
