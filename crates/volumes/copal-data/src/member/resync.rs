//! Resync: a donor's snapshot of a group, and the comparison with a member's own rows.
//!
//! A group is a two-phase set, so a resync is a union. A known file changes nothing, a file with a tombstone
//! stays deleted, and a delete applies to any file. Live operations run at the same time; their order does
//! not matter (VOL-10).
//!
//! Paper:  beanfs §5.2 (volume synchronization)
//! Not here: choice of the donor, end of a resync (`copal-server`; rules in `copal_volume::group`).

use super::{
    disk_state::MemberCore,
    file_ids::{self, FileAddress},
    heads,
    journal_entry::{JournalEntry, journal_entry},
};
use crate::{
    error::{corrupt, of_engine},
    format::FileHead,
    keys,
    local::read_body,
};
use bytes::Bytes;
use copal_volume::{FileId, FileInfo, OpId, VolumeError, VolumeId, group::GroupId};
use std::{ops::Range, sync::Arc};

/// One file of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// Key of the row: the next page starts after it.
    pub key: Bytes,
    /// Its volume.
    pub vid: VolumeId,
    /// Its name.
    pub name: Bytes,
    /// The file.
    pub fid: FileId,
    /// Its create.
    pub op: OpId,
}

/// Snapshot of a group.
pub struct GroupSnapshot {
    core: Arc<MemberCore>,
    group: GroupId,
    snapshot: copal_kv::Snapshot,
}

/// See `MemberStore::snapshot`.
pub(super) fn snapshot(core: &Arc<MemberCore>, group: GroupId) -> Result<GroupSnapshot, VolumeError> {
    Ok(GroupSnapshot { core: Arc::clone(core), group, snapshot: core.kv.snapshot() })
}

impl GroupSnapshot {
    /// Up to `limit` live files above `after` in the order of their keys.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn live(&self, after: Option<&[u8]>, limit: usize) -> Result<Vec<SnapshotEntry>, VolumeError> {
        let space = &self.core.spaces.files;
        let range = keys::range(&keys::group(self.group), after);
        let rows = self.snapshot.iter(space, keys::borrowed(&range));
        rows.take(limit)
            .map(|row| {
                let (key, row) = row.map_err(|error| of_engine(&error))?;
                entry(key, &row)
            })
            .collect()
    }
}

impl GroupSnapshot {
    /// Up to `limit` operations above `after`, in the order of their times: a member that was down since then
    /// may lack them.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn journal(&self, after: Option<&[u8]>, limit: usize) -> Result<Vec<JournalEntry>, VolumeError> {
        let range = keys::range(&keys::group(self.group), after);
        let rows = self.snapshot.iter(&self.core.own.journal, keys::borrowed(&range));
        rows.take(limit)
            .map(|row| {
                let (key, row) = row.map_err(|error| of_engine(&error))?;
                journal_entry(key, &row)
            })
            .collect()
    }

    /// The live file of a name.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn named(&self, vid: VolumeId, name: &[u8]) -> Result<Option<FileId>, VolumeError> {
        let key = keys::named(vid, name);
        let row = self.snapshot.get(&self.core.spaces.files, &key);
        let Some(row) = row.map_err(|error| of_engine(&error))? else {
            return Ok(None);
        };
        let head =
            FileHead::parse(&key, &row).map_err(|error| corrupt(format!("a row of a group: {error}")))?;
        Ok(Some(head.fid))
    }
}

fn entry(key: Bytes, row: &Bytes) -> Result<SnapshotEntry, VolumeError> {
    let damaged = |error: String| corrupt(format!("a row of a group: {error}"));
    let head = FileHead::parse(&key, row).map_err(|error| damaged(error.to_string()))?;
    let (vid, name) = keys::split(&key).ok_or_else(|| damaged("its key is cut".to_owned()))?;
    Ok(SnapshotEntry { vid, name: Bytes::copy_from_slice(name), fid: head.fid, op: head.op, key })
}

/// See `MemberStore::lacks_file`.
pub(super) fn lacks_file(core: &MemberCore, entry: &SnapshotEntry) -> Result<bool, VolumeError> {
    let address = FileAddress::of_request(entry.vid, &entry.name);
    if file_ids::is_deleted_or_removed(core, address, entry.fid)? {
        return Ok(false);
    }
    let live = heads::find_head(&core.spaces.files, &keys::named(entry.vid, &entry.name))?;
    if live.is_some_and(|head| head.fid == entry.fid) {
        return Ok(false);
    }
    let beside = keys::sibling(entry.vid, &entry.name, entry.fid);
    Ok(heads::find_head(&core.own.siblings, &beside)?.is_none())
}

/// See `MemberStore::fetch`.
pub(super) fn fetch(
    core: &MemberCore,
    (vid, name, fid): (VolumeId, &[u8], FileId),
    range: Range<u64>,
) -> Result<Option<(FileInfo, OpId, Bytes)>, VolumeError> {
    let Some(head) = held(core, vid, name, fid)? else {
        return Ok(None);
    };
    let end = range.end.min(head.size);
    match read_body(&core.spaces, vid, &head, range.start.min(end)..end) {
        Ok(bytes) => Ok(Some((head.info(), head.op, bytes))),
        // Deleted between the reads of head and pieces: nothing is damaged.
        Err(VolumeError::Corrupt { .. }) if held(core, vid, name, fid)?.is_none() => Ok(None),
        Err(error) => Err(error),
    }
}

fn held(core: &MemberCore, vid: VolumeId, name: &[u8], fid: FileId) -> Result<Option<FileHead>, VolumeError> {
    let live = heads::find_head(&core.spaces.files, &keys::named(vid, name))?;
    if let Some(head) = live.filter(|head| head.fid == fid) {
        return Ok(Some(head));
    }
    heads::find_head(&core.own.siblings, &keys::sibling(vid, name, fid))
}
