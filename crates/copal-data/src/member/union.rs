//! Becoming whole: what a donor shows of a group at one moment, and what a member takes over from it.
//!
//! A group is a two-phase set, so taking over is union: a file that is known changes nothing, one that is buried here stays
//! buried, a delete buries whatever it names. Live operations are applied meanwhile; no order of the two matters (VOL-10).
//!
//! Paper:  beanfs §5.2 (volume synchronization)
//! Not here: who asks whom, and when the member counts as whole (`copal-server`, rules in `copal_volume::group`).

use super::{rows::MemberCore, store::MemberStore};
use crate::{
    error::{corrupt, of_engine},
    format::{Did, FileHead, JournalRow, TombRow},
    keys,
    local::read_body,
};
use bytes::Bytes;
use copal_volume::{FileId, FileInfo, OpId, VolumeError, VolumeId, group::GroupId};
use std::{ops::Range, sync::Arc};

/// One file or one deleted file of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// What to go on behind.
    pub key: Bytes,
    /// Its volume.
    pub vid: VolumeId,
    /// Its name.
    pub name: Bytes,
    /// The file.
    pub fid: FileId,
    /// The create; of a deleted file the delete.
    pub op: OpId,
}

/// A group as it was when the snapshot was taken.
pub struct GroupSnapshot {
    core: Arc<MemberCore>,
    group: GroupId,
    snapshot: copal_kv::Snapshot,
}

impl MemberStore {
    /// Takes a snapshot of a group.
    /// # Errors
    /// `Failed`.
    pub fn snapshot(&self, group: GroupId) -> Result<GroupSnapshot, VolumeError> {
        Ok(GroupSnapshot {
            core: Arc::clone(&self.core),
            group,
            snapshot: self.core.kv.snapshot(),
        })
    }
}

impl GroupSnapshot {
    /// Up to `limit` entries above `after` in the order of their keys: live files and those beside them, or deleted ones.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn entries(
        &self,
        part: Part,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<SnapshotEntry>, VolumeError> {
        let space = match part {
            Part::Live => &self.core.spaces.files,
            Part::Beside => &self.core.own.siblings,
            Part::Buried => &self.core.own.tombs,
        };
        let range = keys::range(&keys::group(self.group), after);
        let rows = self.snapshot.iter(space, keys::borrowed(&range));
        rows.take(limit)
            .map(|row| {
                let (key, row) = row.map_err(|error| of_engine(&error))?;
                entry(part, key, &row)
            })
            .collect()
    }
}

/// One operation that a member has accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// What to go on behind.
    pub key: Bytes,
    /// The operation.
    pub op: OpId,
    /// A create; else a delete.
    pub is_create: bool,
    /// Volume, name and file.
    pub vid: VolumeId,
    /// The file's name.
    pub name: Bytes,
    /// The file.
    pub fid: FileId,
}

impl GroupSnapshot {
    /// Up to `limit` operations above `after`, by their time: what a member that was away since then may have missed.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn journal(&self, after: Option<&[u8]>, limit: usize) -> Result<Vec<JournalEntry>, VolumeError> {
        let range = keys::range(&keys::group(self.group), after);
        let rows = self.snapshot.iter(&self.core.own.journal, keys::borrowed(&range));
        rows.take(limit)
            .map(|row| {
                let (key, row) = row.map_err(|error| of_engine(&error))?;
                let damaged = |error: String| corrupt(format!("a row of the journal: {error}"));
                let parsed = JournalRow::parse(&key, &row).map_err(|error| damaged(error.to_string()))?;
                let op = keys::split_journal(&key).ok_or_else(|| damaged("its key is cut".to_owned()))?;
                Ok(JournalEntry {
                    op,
                    is_create: parsed.did == Did::Create,
                    vid: parsed.vid,
                    name: parsed.name,
                    fid: parsed.fid,
                    key,
                })
            })
            .collect()
    }
}

/// Which entries of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Live files.
    Live,
    /// Live files beside others of their name.
    Beside,
    /// Deleted files.
    Buried,
}

fn entry(part: Part, key: Bytes, row: &Bytes) -> Result<SnapshotEntry, VolumeError> {
    let damaged = |error: String| corrupt(format!("a row of a group: {error}"));
    if part == Part::Buried {
        let tomb = TombRow::parse(&key, row).map_err(|error| damaged(error.to_string()))?;
        let fid = keys::split_tomb(&key).ok_or_else(|| damaged("its key is cut".to_owned()))?;
        return Ok(SnapshotEntry {
            vid: tomb.vid,
            name: tomb.name,
            fid,
            op: OpId(tomb.op),
            key,
        });
    }
    let head = FileHead::parse(&key, row).map_err(|error| damaged(error.to_string()))?;
    let (vid, rest) = keys::split(&key).ok_or_else(|| damaged("its key is cut".to_owned()))?;
    let name_len = match part {
        Part::Beside => rest.len().saturating_sub(16),
        _ => rest.len(),
    };
    let name = Bytes::copy_from_slice(&rest[..name_len]);
    Ok(SnapshotEntry {
        vid,
        name,
        fid: head.fid,
        op: head.op,
        key,
    })
}

impl MemberStore {
    /// Whether a live file of a donor is missing here: neither held nor buried.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn lacks_file(&self, entry: &SnapshotEntry) -> Result<bool, VolumeError> {
        if self.is_buried(entry)? {
            return Ok(false);
        }
        let core = &self.core;
        let live = core.head(&core.spaces.files, &keys::named(entry.vid, &entry.name))?;
        if live.is_some_and(|head| head.fid == entry.fid) {
            return Ok(false);
        }
        let beside = keys::sibling(entry.vid, &entry.name, entry.fid);
        Ok(core.head(&core.own.siblings, &beside)?.is_none())
    }

    /// Whether a file that a donor has buried is not buried here.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn lacks_burial(&self, entry: &SnapshotEntry) -> Result<bool, VolumeError> {
        Ok(!self.is_buried(entry)?)
    }

    fn is_buried(&self, entry: &SnapshotEntry) -> Result<bool, VolumeError> {
        let key = keys::tomb(entry.vid.birth_group(), entry.fid);
        let tomb = self.core.own.tombs.get(&key).map_err(|error| of_engine(&error))?;
        Ok(tomb.is_some())
    }

    /// Head and bytes of a file for a member that lacks it; `None`: it is not live any more, and the member learns that
    /// delete itself.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn fetch(
        &self,
        entry: &SnapshotEntry,
        range: Range<u64>,
    ) -> Result<Option<(FileInfo, OpId, Bytes)>, VolumeError> {
        let Some(head) = self.held(entry.vid, &entry.name, entry.fid)? else {
            return Ok(None);
        };
        let end = range.end.min(head.size);
        match read_body(&self.core.spaces, entry.vid, &head, range.start.min(end)..end) {
            Ok(bytes) => Ok(Some((head.info(), head.op, bytes))),
            // Deleted between head and pieces: nothing is damaged.
            Err(VolumeError::Corrupt { .. }) if self.held(entry.vid, &entry.name, entry.fid)?.is_none() => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn held(&self, vid: VolumeId, name: &[u8], fid: FileId) -> Result<Option<FileHead>, VolumeError> {
        let core = &self.core;
        let live = core.head(&core.spaces.files, &keys::named(vid, name))?;
        if let Some(head) = live.filter(|head| head.fid == fid) {
            return Ok(Some(head));
        }
        core.head(&core.own.siblings, &keys::sibling(vid, name, fid))
    }
}
