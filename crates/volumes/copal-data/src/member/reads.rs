//! Reads of a member: its own rows, whatever its role. The caller evaluates the answer by that role.

use super::{core::MemberCore, file_ids::FileAddress, store::MemberStore};
use crate::{
    error::{corrupt, of_engine},
    format::{FileHead, VolumeRow, VolumeState},
    keys,
    local::read_body,
};
use bytes::Bytes;
use copal_kv::Keyspace;
use copal_volume::{FileId, FileInfo, OpId, VolumeError, VolumeId, VolumeStats};
use std::ops::Range;

/// An undecided removal is ignored after this time.
const REMOVING_MS: u64 = 60_000;

/// State of a file id on a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileState {
    /// It is live under this name.
    Live {
        /// Its name.
        name: Bytes,
        /// Its head.
        info: FileInfo,
        /// Its create.
        op: OpId,
    },
    /// It has a tombstone.
    Deleted,
    /// It is unknown.
    Unknown,
}

impl MemberStore {
    /// The head of the live file of a name.
    /// # Errors
    /// `NotFound`, `VolumeGone`, `Corrupt`, `Failed`.
    pub fn stat(&self, vid: VolumeId, name: &[u8], if_file: Option<FileId>) -> Result<FileInfo, VolumeError> {
        Ok(self.core.wanted(vid, name, if_file)?.info())
    }

    /// The part of `range` inside the file, verified, and the file's head.
    /// # Errors
    /// As [`MemberStore::stat`].
    pub fn get(
        &self,
        vid: VolumeId,
        name: &[u8],
        range: Range<u64>,
        if_file: Option<FileId>,
    ) -> Result<(Bytes, FileInfo), VolumeError> {
        let mut head = self.core.wanted(vid, name, if_file)?;
        loop {
            let end = range.end.min(head.size);
            let start = range.start.min(end);
            let read = read_body(&self.core.spaces, vid, &head, start..end);
            let Err(VolumeError::Corrupt { what }) = read else {
                return Ok((read?, head.info()));
            };
            // Deleted between the reads of head and pieces: nothing is damaged.
            let now = self.core.wanted(vid, name, if_file)?;
            if now.fid == head.fid {
                return Err(VolumeError::Corrupt { what });
            }
            head = now;
        }
    }

    /// Up to `limit` live files whose names begin with `prefix` and are above `after`.
    /// # Errors
    /// `VolumeGone`, `Corrupt`, `Failed`.
    pub fn list(
        &self,
        vid: VolumeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, FileInfo)>, VolumeError> {
        let after = after.map(|after| keys::named(vid, after));
        let range = keys::range(&keys::named(vid, prefix), after.as_deref());
        let mut files = Vec::new();
        for row in self.core.spaces.files.iter(keys::borrowed(&range)).take(limit) {
            let (key, row) = row.map_err(|error| of_engine(&error))?;
            let head = parse(&key, &row)?;
            let name = keys::split(&key).map_or(&[][..], |(_, name)| name);
            files.push((Bytes::copy_from_slice(name), head.info()));
        }
        self.core.alive(vid)?;
        Ok(files)
    }

    /// Number of files and bytes of a volume; reads all of its heads.
    /// # Errors
    /// As [`MemberStore::list`].
    pub fn totals(&self, vid: VolumeId) -> Result<VolumeStats, VolumeError> {
        let mut totals = VolumeStats::default();
        for row in self.core.spaces.files.prefix(&keys::volume(vid)) {
            let (key, row) = row.map_err(|error| of_engine(&error))?;
            totals.files += 1;
            totals.bytes += parse(&key, &row)?.size;
        }
        self.core.alive(vid)?;
        Ok(totals)
    }

    /// Whether a file has a tombstone.
    /// # Errors
    /// `VolumeGone`, `Corrupt`, `Failed`.
    pub fn is_deleted(&self, vid: VolumeId, fid: FileId) -> Result<bool, VolumeError> {
        let called = FileAddress { vid, name: None };
        let is_buried = self.core.has_tombstone(vid.birth_group(), called, fid)?;
        self.core.alive(vid)?;
        Ok(is_buried)
    }

    /// State of a file id; reads the heads of its volume.
    /// # Errors
    /// As [`MemberStore::list`].
    pub fn find(&self, vid: VolumeId, fid: FileId) -> Result<FileState, VolumeError> {
        if self.is_deleted(vid, fid)? {
            return Ok(FileState::Deleted);
        }
        if let Some((name, head)) = self.core.named(vid, fid)? {
            return Ok(FileState::Live { name, info: head.info(), op: head.op });
        }
        self.core.alive(vid)?;
        Ok(FileState::Unknown)
    }
}

impl MemberCore {
    pub(super) fn head(&self, space: &Keyspace, key: &[u8]) -> Result<Option<FileHead>, VolumeError> {
        let row = space.get(key).map_err(|error| of_engine(&error))?;
        row.map(|row| parse(key, &row)).transpose()
    }

    /// Name and head of a file, live or beside another; reads the heads of its volume.
    pub(super) fn named(&self, vid: VolumeId, fid: FileId) -> Result<Option<(Bytes, FileHead)>, VolumeError> {
        for (space, behind) in [(&self.spaces.files, 0), (&self.own.siblings, 16)] {
            for row in space.prefix(&keys::volume(vid)) {
                let (key, row) = row.map_err(|error| of_engine(&error))?;
                let head = parse(&key, &row)?;
                if head.fid == fid {
                    let name = keys::split(&key).map_or(&[][..], |(_, name)| name);
                    let end = name.len().saturating_sub(behind);
                    return Ok(Some((Bytes::copy_from_slice(&name[..end]), head)));
                }
            }
        }
        Ok(None)
    }

    fn wanted(&self, vid: VolumeId, name: &[u8], if_file: Option<FileId>) -> Result<FileHead, VolumeError> {
        let head = self.head(&self.spaces.files, &keys::named(vid, name))?;
        self.alive(vid)?;
        let head = head.ok_or(VolumeError::NotFound)?;
        match if_file {
            Some(wanted) if wanted != head.fid => Err(VolumeError::NotFound),
            _ => Ok(head),
        }
    }

    /// Files beside the live one of a name.
    pub(super) fn siblings(&self, vid: VolumeId, name: &[u8]) -> Result<Vec<FileHead>, VolumeError> {
        let prefix = keys::named(vid, name);
        let mut found = Vec::new();
        for row in self.own.siblings.prefix(&prefix) {
            let (key, row) = row.map_err(|error| of_engine(&error))?;
            // A longer name with the same beginning is another name.
            if key.len() == prefix.len() + 16 {
                found.push(parse(&key, &row)?);
            }
        }
        Ok(found)
    }

    /// Bytes of a volume's live files; reads all of its heads.
    pub(super) fn live_bytes(&self, vid: VolumeId) -> Result<u64, VolumeError> {
        let mut bytes = 0;
        for row in self.spaces.files.prefix(&keys::volume(vid)) {
            let (key, row) = row.map_err(|error| of_engine(&error))?;
            bytes += parse(&key, &row)?.size;
        }
        Ok(bytes)
    }

    /// Adds `bytes` to the count of a volume, if it is counted.
    pub(super) fn count(&self, vid: VolumeId, bytes: i64) {
        if let Some(used) = self.used.lock().get_mut(&vid) {
            *used = used.saturating_add_signed(bytes);
        }
    }

    /// Whether the volume was removed.
    pub(super) fn is_removed(&self, vid: VolumeId) -> Result<bool, VolumeError> {
        let row = self.volume_row(vid)?;
        Ok(row.is_some_and(|row| row.state == VolumeState::Removed))
    }

    /// Whether a removal of the volume is undecided: until then creates in it are refused.
    pub(super) fn is_removing(&self, vid: VolumeId) -> Result<bool, VolumeError> {
        let now_ms = self.clock.now_ms();
        let is_marked = |row: VolumeRow| {
            row.state == VolumeState::Removing && row.created_ms.abs_diff(now_ms) < REMOVING_MS
        };
        Ok(self.volume_row(vid)?.is_some_and(is_marked))
    }

    /// Whether the stored row says that the volume exists with this quota.
    pub(super) fn is_live_with(&self, vid: VolumeId, quota_bytes: Option<u64>) -> Result<bool, VolumeError> {
        Ok(match self.volume_row(vid)? {
            Some(row) => row.state == VolumeState::Live && row.quota_bytes == quota_bytes,
            None => quota_bytes.is_none(),
        })
    }

    /// The volume's quota.
    pub(super) fn quota(&self, vid: VolumeId) -> Result<Option<u64>, VolumeError> {
        Ok(self.volume_row(vid)?.and_then(|row| row.quota_bytes))
    }

    /// Most volumes have no row on a member.
    fn volume_row(&self, vid: VolumeId) -> Result<Option<VolumeRow>, VolumeError> {
        let key = keys::volume(vid);
        let row = self.spaces.volumes.get(&key).map_err(|error| of_engine(&error))?;
        row.map(|row| {
            let row = VolumeRow::parse(&key, &row);
            row.map_err(|error| corrupt(format!("the row of volume {vid}: {error}")))
        })
        .transpose()
    }

    fn alive(&self, vid: VolumeId) -> Result<(), VolumeError> {
        match self.is_removed(vid)? {
            true => Err(VolumeError::VolumeGone),
            false => Ok(()),
        }
    }
}

fn parse(key: &[u8], row: &Bytes) -> Result<FileHead, VolumeError> {
    FileHead::parse(key, row).map_err(|error| {
        let name = keys::split(key).map_or(&[][..], |(_, name)| name);
        corrupt(format!("the head of file \"{}\": {error}", name.escape_ascii()))
    })
}
