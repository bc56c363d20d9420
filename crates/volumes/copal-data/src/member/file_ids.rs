//! Whose an id of a file is: one name of one volume (VOL-14), under which alone it is created and deleted.
//!
//! The id of a file is a key of its pieces and of its tombstone. A create under an id that another file has
//! would share its pieces; a delete under another name would hide it. Both are refused where the owner is
//! known: by the journal while the id is fresh, by its pieces, and by the heads of a small group. Where it is
//! not known, what is written stands under the other volume and name, and does nothing to the owner.
//!
//! Design: docs/design/cluster.md#rules VOL-72
//! Not here: what is fresh (`recent_files`).

use super::{
    recent_files::{bucket_of_ms, is_fresh},
    rows::MemberCore,
};
use crate::{
    error::{corrupt, of_engine},
    format::{FileHead, TombRow},
    keys,
};
use bytes::Bytes;
use copal_kv::Batch;
use copal_volume::{FileId, UNKNOWN_FILE_NAME, VolumeError, VolumeId, group::GroupId};

/// Bytes of a group's heads that are read to find the owner of an id that is not fresh.
const SEARCHED_BYTES: u64 = 16 << 20;

/// A file as it is called: its volume and its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Called<'a> {
    pub(super) vid: VolumeId,
    /// `None`: whatever its name is.
    pub(super) name: Option<&'a [u8]>,
}

impl<'a> Called<'a> {
    /// A name that is told; who settles a create may know none (VOL-60).
    pub(super) fn told(vid: VolumeId, name: &'a [u8]) -> Called<'a> {
        Called { vid, name: (name != UNKNOWN_FILE_NAME).then_some(name) }
    }

    /// Whether another volume and name are, or may be, the same.
    pub(super) fn may_be(&self, other: Called<'_>) -> bool {
        self.vid == other.vid
            && match (self.name, other.name) {
                (Some(name), Some(other)) => name == other,
                _ => true,
            }
    }
}

impl MemberCore {
    /// Whether an id belongs to another file than the one that is called so, as far as that is known here.
    /// The caller has the lock of the group.
    pub(super) fn belongs_to_another(
        &self,
        group: GroupId,
        called: Called<'_>,
        fid: FileId,
        now_ms: u64,
    ) -> Result<bool, VolumeError> {
        if !is_fresh(fid, now_ms) {
            return self.search_heads(group, called, fid);
        }
        self.load_recent(group, now_ms)?;
        if !self.recent.lock().may_have(group, fid) {
            return Ok(false);
        }
        let mut is_another = false;
        self.each_record(group, bucket_of_ms(fid.ms()), None, |entry| {
            is_another |=
                entry.is_create && entry.fid == fid && !called.may_be(Called::told(entry.vid, &entry.name));
        })?;
        Ok(is_another)
    }

    /// Whether pieces of a file lie under an id: those of an upload, or of a file.
    pub(super) fn has_pieces(&self, vid: VolumeId, fid: FileId) -> Result<bool, VolumeError> {
        let first = self.spaces.extents.contains(&keys::piece(vid, fid, 0));
        first.map_err(|error| of_engine(&error))
    }

    fn load_recent(&self, group: GroupId, now_ms: u64) -> Result<(), VolumeError> {
        if self.recent.lock().is_loaded(group) {
            return Ok(());
        }
        let mut fids = Vec::new();
        let from = bucket_of_ms(now_ms.saturating_sub(copal_volume::group::MAX_OP_AGE_MS));
        self.each_record(group, from, None, |entry| {
            if entry.is_create && is_fresh(entry.fid, now_ms) {
                fids.push(entry.fid);
            }
        })?;
        self.recent.lock().load(group, fids, now_ms);
        Ok(())
    }

    /// Looks through the heads of a group, unless they are too many for that.
    fn search_heads(&self, group: GroupId, called: Called<'_>, fid: FileId) -> Result<bool, VolumeError> {
        let range = keys::range(&keys::group(group), None);
        if self.spaces.files.approximate_bytes(keys::borrowed(&range)) > SEARCHED_BYTES {
            return Ok(false);
        }
        for (space, behind) in [(&self.spaces.files, 0), (&self.own.siblings, 16)] {
            for row in space.prefix(&keys::group(group)) {
                let (key, row) = row.map_err(|error| of_engine(&error))?;
                // A head that cannot be read is found by who reads it.
                let Ok(head) = FileHead::parse(&key, &row) else {
                    continue;
                };
                let Some((vid, rest)) = keys::split(&key).filter(|_| head.fid == fid) else {
                    continue;
                };
                let name = &rest[..rest.len().saturating_sub(behind)];
                let owner = Called { vid, name: Some(name) };
                if !called.may_be(owner) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Deletes of files with this id, each with its key: nearly always one at most.
    pub(super) fn tombs_of(&self, group: GroupId, fid: FileId) -> Result<Vec<(Bytes, TombRow)>, VolumeError> {
        let key = keys::tomb(group, fid);
        // Others stand behind the first only.
        let first = self.own.tombs.get(&key).map_err(|error| of_engine(&error))?;
        if first.is_none() {
            return Ok(Vec::new());
        }
        let rows = self.own.tombs.prefix(&key);
        rows.map(|row| {
            let (key, row) = row.map_err(|error| of_engine(&error))?;
            let tomb = TombRow::parse(&key, &row)
                .map_err(|error| corrupt(format!("the row of a deleted file: {error}")))?;
            Ok((key, tomb))
        })
        .collect()
    }

    /// Forgets that a file was deleted. Returns whether there are other tombstones of its id: what follows
    /// for it has to come in another batch.
    pub(super) fn delete_tomb(
        &self,
        batch: &mut Batch,
        group: GroupId,
        called: Called<'_>,
        fid: FileId,
    ) -> Result<bool, VolumeError> {
        let mut tombs = self.tombs_of(group, fid)?;
        let Some(at) = tombs.iter().position(|(_, tomb)| called.may_be(tomb.called())) else {
            return Ok(false);
        };
        let (key, _) = tombs.remove(at);
        batch.delete(&self.own.tombs, &key);
        // One of the others takes the first place, behind which they stand.
        if at == 0
            && let Some((other, tomb)) = tombs.first()
        {
            batch.delete(&self.own.tombs, other);
            batch.put(&self.own.tombs, &key, tomb.row(&key));
        }
        Ok(!tombs.is_empty())
    }

    /// Whether nothing can come of a file any more: it stands among the deleted, or its volume is gone.
    pub(super) fn is_over(&self, called: Called<'_>, fid: FileId) -> Result<bool, VolumeError> {
        Ok(self.is_buried(called.vid.birth_group(), called, fid)? || self.is_gone(called.vid)?)
    }

    /// Whether a file stands among the deleted.
    pub(super) fn is_buried(
        &self,
        group: GroupId,
        called: Called<'_>,
        fid: FileId,
    ) -> Result<bool, VolumeError> {
        let tombs = self.tombs_of(group, fid)?;
        Ok(tombs.iter().any(|(_, tomb)| called.may_be(tomb.called())))
    }
}

impl TombRow {
    /// The file that was deleted, as it was called.
    pub(super) fn called(&self) -> Called<'_> {
        Called::told(self.vid, &self.name)
    }
}

#[cfg(test)]
mod tests;
