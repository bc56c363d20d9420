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
//! Not here: gossip (`copal-server`), when buckets are sealed and what the stable point is
//! (`copal_volume::group`).

use super::{
    GroupMembership, OperationError,
    core::MemberCore,
    file_ids::FileAddress,
    group_batch::GroupBatch,
    group_queue::GroupQueue,
    journal_entry::{JournalEntry, journal_entry},
    store::MemberStore,
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

impl MemberStore {
    /// Seals the due buckets of all groups that have operations in them, or that others have sealed further:
    /// `peer_seals` has those seals by group. The earlier of the cluster's clock and this machine's own determines
    /// the due buckets (VOL-42). It is one durable write, or none if nothing changes, so an idle group costs
    /// nothing. Expired uploads are freed. Returns groups with a journal.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn seal_due(&self, peer_seals: &BTreeMap<GroupId, BucketSeal>) -> Result<Vec<GroupId>, VolumeError> {
        // They are freed at the next call; sealing continues.
        if let Err(error) = self.expire_uploads() {
            tracing::warn!(%error, "expired uploads could not be freed");
        }
        let now_ms = self.core.clock.sealing_ms();
        let (mut open, mut seals) = (Vec::new(), Vec::new());
        for membership in self.memberships()? {
            let group = membership.group;
            let first = self.core.first_bucket(group, Bucket(0))?;
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
        self.seal_groups(&seals)?;
        Ok(open)
    }

    /// Seals buckets of many groups, given in ascending order, in one durable write.
    fn seal_groups(&self, seals: &[(GroupId, BucketSeal)]) -> Result<(), VolumeError> {
        let queues = seals.iter().map(|(group, _)| self.core.queue(*group));
        let queues: Vec<Arc<GroupQueue>> = queues.collect::<Result<_, _>>()?;
        let mut members: Vec<_> = queues.iter().map(|queue| queue.member.lock()).collect();
        let rows = seals.iter().zip(&members).map(|(&(group, seal), member)| {
            let row = member.map(|row| MemberRow { seal: row.seal.joined(seal), ..row });
            (group, row)
        });
        let rows: Vec<(GroupId, Option<MemberRow>)> = rows.filter(|(_, row)| row.is_some()).collect();
        self.core.write_rows(&rows)?;
        for (at, &(group, _)) in seals.iter().enumerate() {
            if let Some((_, row)) = rows.iter().find(|(of, _)| *of == group) {
                queues[at].set(&mut members[at], *row);
            }
        }
        Ok(())
    }

    /// The status of this member for its peers, with digests from the stable point on; `None`: not a member.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn peer_status(&self, group: GroupId, seed: u64) -> Result<Option<PeerStatus>, VolumeError> {
        let Some(membership) = self.membership(group)? else {
            return Ok(None);
        };
        let below = membership.seal.below;
        let mut digests = BTreeMap::new();
        let mut at = membership.stable_point;
        while let Some(bucket) = self.core.first_bucket(group, at)?
            && bucket < below
        {
            digests.insert(bucket, self.core.digest(group, bucket, seed)?);
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

    /// Digest of all operations from a bucket on, unsealed ones included, for the comparison after a member's
    /// return.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn digest_from(
        &self,
        group: GroupId,
        from: Bucket,
        seed: u64,
    ) -> Result<OperationDigest, VolumeError> {
        let mut digest = OperationDigest::default();
        self.core.each_record(group, from, None, |entry| {
            digest.add(seed, &entry.record());
        })?;
        Ok(digest)
    }

    /// Raises the stable point of a group, at most to its seal, and cuts rows well below it, in several
    /// batches.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn raise_stable_point(&self, group: GroupId, stable_point: Bucket) -> Result<(), VolumeError> {
        self.change(group, |row| match row.is_covered {
            true => MemberRow {
                // A view that was entered since may have taken back a seal in the future.
                stable_point: row.stable_point.max(stable_point.min(row.seal.below)),
                ..row
            },
            false => row,
        })?;
        self.core.cut(group)
    }

    /// Prepares the copy of everything from a donor. Below the donor's stable point files are copied instead
    /// of operations, and this member's own operations there are discarded. From now on it accepts nothing
    /// from clients in buckets that the donor has sealed.
    /// # Errors
    /// `Corrupt`, `NoSpace`, `Failed`.
    pub fn begin_resync(
        &self,
        group: GroupId,
        stable_point: Bucket,
        closed: BucketSeal,
    ) -> Result<(), VolumeError> {
        let is_covered = |row: GroupMembership| row.is_covered;
        if self.membership(group)?.is_none_or(is_covered) {
            return Ok(());
        }
        self.change(group, |row| match row.is_covered {
            true => row,
            false => MemberRow {
                stable_point: row.stable_point.max(stable_point),
                seal: row.seal.joined(closed),
                ..row
            },
        })?;
        self.core.discard_below(group, stable_point)
    }

    /// Up to `limit` operations of one bucket above a key.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn bucket_operations(
        &self,
        group: GroupId,
        bucket: Bucket,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<JournalEntry>, VolumeError> {
        let range = keys::range(&keys::journal_bucket(group, bucket.0), after);
        let rows = self.core.own.journal.iter(keys::borrowed(&range));
        rows.take(limit)
            .map(|row| {
                let (key, row) = row.map_err(|error| of_engine(&error))?;
                journal_entry(key, &row)
            })
            .collect()
    }

    /// The live file of a name, with its create.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn claim(&self, vid: VolumeId, name: &[u8]) -> Result<Option<NameClaim>, VolumeError> {
        let head = self.core.head(&self.core.spaces.files, &keys::named(vid, name))?;
        Ok(head.map(|head| claim_of(&head)))
    }

    /// Up to `limit` names of a group with more than one live file, each with all its files.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn disputed_names(&self, group: GroupId, limit: usize) -> Result<Vec<DisputedName>, VolumeError> {
        let mut disputed: Vec<DisputedName> = Vec::new();
        for row in self.core.own.siblings.prefix(&keys::group(group)) {
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
            let beside = self.core.siblings(vid, name)?;
            let claims = self.claim(vid, name)?.into_iter().chain(beside.iter().map(claim_of));
            disputed.push(DisputedName { vid, name: Bytes::copy_from_slice(name), claims: claims.collect() });
        }
        Ok(disputed)
    }

    /// Whether a file can never be live again: it has a tombstone, or its volume was removed.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn is_deleted_or_removed(&self, vid: VolumeId, fid: FileId) -> Result<bool, VolumeError> {
        self.core.is_deleted_or_removed(FileAddress { vid, name: None }, fid)
    }

    /// As [`MemberStore::is_deleted_or_removed`], for a file with a known name: a tombstone under another
    /// name does not count.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn is_deleted_or_removed_by_name(
        &self,
        vid: VolumeId,
        name: &[u8],
        fid: FileId,
    ) -> Result<bool, VolumeError> {
        self.core.is_deleted_or_removed(FileAddress::of_request(vid, name), fid)
    }

    /// Whether this journal lacks an operation of another member. Operations that every member has do not
    /// count.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn lacks_operation(&self, group: GroupId, entry: &JournalEntry) -> Result<bool, VolumeError> {
        let Some(membership) = self.membership(group)? else {
            return Ok(false);
        };
        if Bucket::of(entry.op) < membership.stable_point && membership.is_covered {
            return Ok(false);
        }
        let key = keys::journal(group, entry.op);
        let row = self.core.own.journal.get(&key);
        Ok(row.map_err(|error| of_engine(&error))?.is_none())
    }

    /// Whether any group has a seal in the future of the cluster's clock. The next view ignores such a seal.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn has_future_seals(&self) -> Result<bool, VolumeError> {
        let Some(reference_ms) = self.core.clock.reference_ms() else {
            return Ok(false);
        };
        let mut all = self.memberships()?.into_iter();
        Ok(all.any(|own| is_seal_in_future(own.seal.below, reference_ms)))
    }

    /// Whether a seal from another member is in the future of the cluster's clock.
    pub fn is_seal_in_future(&self, seal: BucketSeal) -> bool {
        let reference_ms = self.core.clock.reference_ms();
        reference_ms.is_some_and(|reference_ms| is_seal_in_future(seal.below, reference_ms))
    }

    fn change(&self, group: GroupId, change: impl FnOnce(MemberRow) -> MemberRow) -> Result<(), VolumeError> {
        let queue = self.core.queue(group)?;
        let mut member = queue.member.lock();
        let Some(before) = *member else { return Ok(()) };
        let row = change(before);
        if row == before {
            return Ok(());
        }
        self.core.write_rows(&[(group, Some(row))])?;
        queue.set(&mut member, Some(row));
        Ok(())
    }
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

impl MemberCore {
    /// The first bucket with operations, from `from` on.
    fn first_bucket(&self, group: GroupId, from: Bucket) -> Result<Option<Bucket>, VolumeError> {
        let prefix = keys::group(group);
        let end = keys::above(&prefix);
        let start = keys::journal_bucket(group, from.0);
        let end = match &end {
            Some(end) => std::ops::Bound::Excluded(&end[..]),
            None => std::ops::Bound::Unbounded,
        };
        let range = (std::ops::Bound::Included(&start[..]), end);
        let first = self.own.journal.iter(range).keys_only().next();
        let Some((key, _)) = first.transpose().map_err(|error| of_engine(&error))? else {
            return Ok(None);
        };
        Ok(keys::split_journal(&key).map(Bucket::of))
    }

    fn digest(&self, group: GroupId, bucket: Bucket, seed: u64) -> Result<OperationDigest, VolumeError> {
        if let Some(digest) = self.digests.lock().known(group, bucket) {
            return Ok(digest);
        }
        // No batch of the group is on its way meanwhile: the kept digest would lack its operations.
        let queue = self.queue(group)?;
        let member = queue.member.lock();
        let mut digest = OperationDigest::default();
        self.each_record(group, bucket, Some(bucket), |entry| {
            digest.add(seed, &entry.record());
        })?;
        if member.is_some_and(|row| bucket < row.seal.below) {
            self.digests.lock().keep(group, bucket, digest);
        }
        Ok(digest)
    }

    pub(super) fn each_record(
        &self,
        group: GroupId,
        from: Bucket,
        last: Option<Bucket>,
        mut each: impl FnMut(&JournalEntry),
    ) -> Result<(), VolumeError> {
        let start = keys::journal_bucket(group, from.0);
        let end = match last {
            Some(last) => keys::above(&keys::journal_bucket(group, last.0)),
            None => keys::above(&keys::group(group)),
        };
        let end = match &end {
            Some(end) => std::ops::Bound::Excluded(&end[..]),
            None => std::ops::Bound::Unbounded,
        };
        let range = (std::ops::Bound::Included(&start[..]), end);
        for row in self.own.journal.iter(range) {
            let (key, row) = row.map_err(|error| of_engine(&error))?;
            each(&journal_entry(key, &row)?);
        }
        Ok(())
    }

    /// Removes a new member's own operations below a stable point: files from clients, and deletes. The donor
    /// has those that completed. The others were refused elsewhere and never complete, and such a delete
    /// would hide a complete file. A member that was in sync before has no such operations: its seal covers
    /// everything below a stable point.
    fn discard_below(&self, group: GroupId, stable_point: Bucket) -> Result<(), VolumeError> {
        let queue = self.queue(group)?;
        let member = queue.member.lock();
        let Some(row) = member.filter(|row| row.role.is_joining()) else {
            return Ok(());
        };
        let mut discarded: Vec<JournalEntry> = Vec::new();
        let mut deleted: BTreeSet<FileId> = BTreeSet::new();
        self.each_record(group, Bucket(0), None, |entry| match Bucket::of(entry.op) < stable_point {
            true => discarded.push(entry.clone()),
            false if !entry.is_create => drop(deleted.insert(entry.fid)),
            false => {}
        })?;
        let failed = |error| match error {
            OperationError::Failed(error) => error,
            other => VolumeError::Failed {
                reason: format!("operations of a new member could not be discarded: {other:?}"),
            },
        };
        let mut batch = GroupBatch::new(self, group, &row);
        for entry in &discarded {
            if batch.is_full() || batch.is_split {
                std::mem::replace(&mut batch, GroupBatch::new(self, group, &row)).commit()?;
            }
            batch.undo(entry, deleted.contains(&entry.fid)).map_err(failed)?;
        }
        batch.commit()
    }

    /// Cuts journal and tombstones well below the stable point.
    fn cut(&self, group: GroupId) -> Result<(), VolumeError> {
        loop {
            let queue = self.queue(group)?;
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
            let mut batch = self.kv.batch();
            let (mut count, mut is_split) = (0, false);
            for row in self.own.journal.iter(range).take(CUT_ROWS) {
                let (key, row) = row.map_err(|error| of_engine(&error))?;
                let entry = journal_entry(key, &row)?;
                count += 1;
                is_split = self.cut_row(&mut batch, group, &entry, &self.own.journal)?;
                if is_split {
                    break;
                }
            }
            if count == 0 {
                return Ok(());
            }
            // Repeated after a power loss: nothing reads rows below it.
            let committed = self.commit_essential(batch, Durability::Deferred);
            drop(member);
            committed?;
            if count < CUT_ROWS && !is_split {
                return Ok(());
            }
        }
    }

    /// Cuts one row. Returns whether the next row must be in another batch.
    fn cut_row(
        &self,
        batch: &mut Batch,
        group: GroupId,
        entry: &JournalEntry,
        journal: &Keyspace,
    ) -> Result<bool, VolumeError> {
        batch.delete(journal, &entry.key);
        match entry.is_create {
            true => Ok(false),
            false => self.delete_tombstone(
                batch,
                group,
                FileAddress::of_request(entry.vid, &entry.name),
                entry.fid,
            ),
        }
    }
}

#[cfg(test)]
mod tests;
