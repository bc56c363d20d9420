//! The end of a time: what a member closes, the digests of what it has closed, and the cutting of what is
//! stable.
//!
//! A digest is counted from the journal once its bucket is closed, and kept in memory until something is
//! added to the bucket, which only union does. So an operation costs nothing beside its journal row, and a
//! digest can never drift from the rows that it speaks for.
//!
//! Design: docs/design/cluster.md#rules VOL-17, VOL-18
//! Invariants
//! - What is told as closed is on the device.
//! - A deleted id goes with the last journal row that its delete has, and that goes long after all members
//!   have it.
//!
//! Not here: who tells whom (`copal-server`), when buckets close and what the horizon is
//! (`copal_volume::group`).

use super::{
    Membership, NotHeld,
    apply::Batching,
    file_ids::Called,
    journal_entry::{JournalEntry, journal_entry},
    line::GroupQueue,
    rows::MemberCore,
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
    group::{Bucket, Claim, Closing, Digest, GroupId, OwnTold, Record, is_seal_in_future},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Journals are kept for so many buckets below the horizon: ids of two clients may differ by the skew of
/// their clocks, and a delete that was drawn early has to outlive the create that it buries.
const KEPT_BUCKETS: u64 = 3;
/// Rows that one batch of cutting reads.
const CUT_ROWS: usize = 2_000;

impl MemberStore {
    /// Closes in all groups what is due and has operations in it, and what others have closed: `told` by
    /// group. What is due goes by the cluster's clock or by this machine's own, whichever is earlier
    /// (VOL-42).
    /// One durable write, and none where nothing changes, so a group that nobody writes to costs nothing.
    /// Frees uploads that have expired. Returns groups whose journal is not empty.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn close_due(&self, told: &BTreeMap<GroupId, Closing>) -> Result<Vec<GroupId>, VolumeError> {
        // What cannot be freed now is tried again, and keeps no bucket open.
        if let Err(error) = self.expire_uploads() {
            tracing::warn!(%error, "uploads that nobody goes on with could not be freed");
        }
        let now_ms = self.core.clock.sealing_ms();
        let (mut open, mut closes) = (Vec::new(), Vec::new());
        for membership in self.memberships()? {
            let group = membership.group;
            let first = self.core.first_bucket(group, Bucket(0))?;
            let others = told.get(&group).copied().unwrap_or_default();
            if first.is_none() && others.below <= membership.closing.below {
                continue;
            }
            let due = membership.closing.at(now_ms);
            // A journal that nothing is added to is closed on, until all of it lies well below the horizon.
            if due.below > membership.closing.below {
                closes.push((group, due));
            }
            if first.is_some() {
                open.push(group);
            }
        }
        self.close_groups(&closes)?;
        Ok(open)
    }

    /// Closes in many groups, which stand in their order; one durable write.
    fn close_groups(&self, closes: &[(GroupId, Closing)]) -> Result<(), VolumeError> {
        let queues = closes.iter().map(|(group, _)| self.core.queue(*group));
        let queues: Vec<Arc<GroupQueue>> = queues.collect::<Result<_, _>>()?;
        let mut members: Vec<_> = queues.iter().map(|queue| queue.member.lock()).collect();
        let rows = closes.iter().zip(&members).map(|(&(group, closing), member)| {
            let row = member.map(|row| MemberRow { closing: row.closing.joined(closing), ..row });
            (group, row)
        });
        let rows: Vec<(GroupId, Option<MemberRow>)> = rows.filter(|(_, row)| row.is_some()).collect();
        self.core.keep_rows(&rows)?;
        for (at, &(group, _)) in closes.iter().enumerate() {
            if let Some((_, row)) = rows.iter().find(|(of, _)| *of == group) {
                queues[at].set(&mut members[at], *row);
            }
        }
        Ok(())
    }

    /// What this member tells others of a group: `None` where it is no member. Digests are those from its
    /// horizon on.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn told(&self, group: GroupId, seed: u64) -> Result<Option<OwnTold>, VolumeError> {
        let Some(membership) = self.membership(group)? else {
            return Ok(None);
        };
        let below = membership.closing.below;
        let mut digests = BTreeMap::new();
        let mut at = membership.horizon;
        while let Some(bucket) = self.core.first_bucket(group, at)?
            && bucket < below
        {
            digests.insert(bucket, self.core.digest(group, bucket, seed)?);
            at = Bucket(bucket.0 + 1);
        }
        Ok(Some(OwnTold {
            epoch: membership.epoch,
            role: membership.role,
            closing: membership.closing,
            horizon: membership.horizon,
            is_covered: membership.is_covered,
            digests,
        }))
    }

    /// Digest of all operations from a bucket on, those of open ones included: what is compared when a member
    /// comes back.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn digest_from(&self, group: GroupId, from: Bucket, seed: u64) -> Result<Digest, VolumeError> {
        let mut digest = Digest::default();
        self.core.each_record(group, from, None, |entry| {
            digest.add(seed, &entry.record());
        })?;
        Ok(digest)
    }

    /// Raises the horizon of a group, not above what is closed here, and cuts what lies well below it, some
    /// rows at a time.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn raise_horizon(&self, group: GroupId, horizon: Bucket) -> Result<(), VolumeError> {
        self.change(group, |row| match row.is_covered {
            true => MemberRow {
                // A view that was entered since may have taken back a seal in the future.
                horizon: row.horizon.max(horizon.min(row.closing.below)),
                ..row
            },
            false => row,
        })?;
        self.core.cut(group)
    }

    /// Begins to take everything over from a donor: what lies below the donor's horizon comes as files, not
    /// as operations, and what this member took there by itself counts for nothing. From now on it takes
    /// nothing from clients that the donor has closed.
    /// # Errors
    /// `Corrupt`, `NoSpace`, `Failed`.
    pub fn begin_taking(&self, group: GroupId, horizon: Bucket, closed: Closing) -> Result<(), VolumeError> {
        let is_covered = |row: Membership| row.is_covered;
        if self.membership(group)?.is_none_or(is_covered) {
            return Ok(());
        }
        self.change(group, |row| match row.is_covered {
            true => row,
            false => {
                MemberRow { horizon: row.horizon.max(horizon), closing: row.closing.joined(closed), ..row }
            }
        })?;
        self.core.void(group, horizon)
    }

    /// Up to `limit` operations of one bucket above a key.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn journal_of(
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
    pub fn claim(&self, vid: VolumeId, name: &[u8]) -> Result<Option<Claim>, VolumeError> {
        let head = self.core.head(&self.core.spaces.files, &keys::named(vid, name))?;
        Ok(head.map(|head| claim_of(&head)))
    }

    /// Names of a group that have more than one live file, up to `limit` of them, each with all its files.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn disputed(&self, group: GroupId, limit: usize) -> Result<Vec<Disputed>, VolumeError> {
        let mut disputed: Vec<Disputed> = Vec::new();
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
            disputed.push(Disputed { vid, name: Bytes::copy_from_slice(name), claims: claims.collect() });
        }
        Ok(disputed)
    }

    /// Whether nothing can come of a file any more: it stands among the deleted, or its volume is gone.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn is_over(&self, vid: VolumeId, fid: FileId) -> Result<bool, VolumeError> {
        self.core.is_over(Called { vid, name: None }, fid)
    }

    /// As [`MemberStore::is_over`], for a file whose name is known: a delete under another name does not end
    /// it.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn is_over_by_name(&self, vid: VolumeId, name: &[u8], fid: FileId) -> Result<bool, VolumeError> {
        self.core.is_over(Called::told(vid, name), fid)
    }

    /// Whether an operation of another member is missing in this one's journal, and is none that every member
    /// has.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn lacks_operation(&self, group: GroupId, entry: &JournalEntry) -> Result<bool, VolumeError> {
        let Some(membership) = self.membership(group)? else {
            return Ok(false);
        };
        if Bucket::of(entry.op) < membership.horizon && membership.is_covered {
            return Ok(false);
        }
        let key = keys::journal(group, entry.op);
        let row = self.core.own.journal.get(&key);
        Ok(row.map_err(|error| of_engine(&error))?.is_none())
    }

    /// Whether any group here has a seal that lies in the future of the cluster's clock: it is ignored from
    /// the next view on.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn has_future_seals(&self) -> Result<bool, VolumeError> {
        let Some(reference_ms) = self.core.clock.reference_ms() else {
            return Ok(false);
        };
        let mut all = self.memberships()?.into_iter();
        Ok(all.any(|own| is_seal_in_future(own.closing.below, reference_ms)))
    }

    /// Whether a seal that another member claims lies in the future of the cluster's clock.
    pub fn is_seal_in_future(&self, closing: Closing) -> bool {
        let reference_ms = self.core.clock.reference_ms();
        reference_ms.is_some_and(|reference_ms| is_seal_in_future(closing.below, reference_ms))
    }

    fn change(&self, group: GroupId, change: impl FnOnce(MemberRow) -> MemberRow) -> Result<(), VolumeError> {
        let queue = self.core.queue(group)?;
        let mut member = queue.member.lock();
        let Some(before) = *member else { return Ok(()) };
        let row = change(before);
        if row == before {
            return Ok(());
        }
        self.core.keep_rows(&[(group, Some(row))])?;
        queue.set(&mut member, Some(row));
        Ok(())
    }
}

/// A name with more than one live file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disputed {
    /// Its volume.
    pub vid: VolumeId,
    /// The name.
    pub name: Bytes,
    /// Its files.
    pub claims: Vec<Claim>,
}

fn claim_of(head: &FileHead) -> Claim {
    Claim { fid: head.fid, op: head.op }
}

impl JournalEntry {
    /// The operation as digests count it.
    pub fn record(&self) -> Record {
        Record { is_create: self.is_create, op: self.op, vid: self.vid, fid: self.fid }
    }
}

impl MemberCore {
    /// The first bucket from `from` on in which there are operations.
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

    fn digest(&self, group: GroupId, bucket: Bucket, seed: u64) -> Result<Digest, VolumeError> {
        if let Some(digest) = self.digests.lock().known(group, bucket) {
            return Ok(digest);
        }
        // No batch of the group is on its way meanwhile: what it adds would be missing in what is kept here.
        let queue = self.queue(group)?;
        let member = queue.member.lock();
        let mut digest = Digest::default();
        self.each_record(group, bucket, Some(bucket), |entry| {
            digest.add(seed, &entry.record());
        })?;
        if member.is_some_and(|row| bucket < row.closing.below) {
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

    /// Takes away what a new member took below a horizon: files that it was sent, and deletes. What of them
    /// is held the donor has; the rest, which others refused, can never hold, and such a delete would hide a
    /// file that does. A member that was whole before has nothing of the kind: below a horizon it has closed
    /// what all others have.
    fn void(&self, group: GroupId, horizon: Bucket) -> Result<(), VolumeError> {
        let queue = self.queue(group)?;
        let member = queue.member.lock();
        let Some(row) = member.filter(|row| row.role.is_joining()) else {
            return Ok(());
        };
        let mut void: Vec<JournalEntry> = Vec::new();
        let mut buried: BTreeSet<FileId> = BTreeSet::new();
        self.each_record(group, Bucket(0), None, |entry| match Bucket::of(entry.op) < horizon {
            true => void.push(entry.clone()),
            false if !entry.is_create => drop(buried.insert(entry.fid)),
            false => {}
        })?;
        let failed = |error| match error {
            NotHeld::Failed(error) => error,
            other => VolumeError::Failed {
                reason: format!("what a new member took cannot be taken away: {other:?}"),
            },
        };
        let mut batch = Batching::new(self, group, &row);
        for entry in &void {
            if batch.is_full() || batch.is_split {
                std::mem::replace(&mut batch, Batching::new(self, group, &row)).commit()?;
            }
            batch.take_away(entry, buried.contains(&entry.fid)).map_err(failed)?;
        }
        batch.commit()
    }

    /// Cuts journal and deleted ids well below the horizon.
    fn cut(&self, group: GroupId) -> Result<(), VolumeError> {
        loop {
            let queue = self.queue(group)?;
            let member = queue.member.lock();
            let Some(row) = member.filter(|row| row.is_covered) else {
                return Ok(());
            };
            let below = row.horizon.0.saturating_sub(KEPT_BUCKETS);
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
            // Done again after a cut of power: nothing reads what lies below.
            let committed = self.commit_essential(batch, Durability::Deferred);
            drop(member);
            committed?;
            if count < CUT_ROWS && !is_split {
                return Ok(());
            }
        }
    }

    /// Returns whether the next row has to be cut by another batch.
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
            false => self.delete_tomb(batch, group, Called::told(entry.vid, &entry.name), entry.fid),
        }
    }
}

#[cfg(test)]
mod tests;
