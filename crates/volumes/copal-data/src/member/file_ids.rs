//! Ownership of file ids: an id belongs to one name of one volume (VOL-14). The file is created and deleted
//! under that name only.
//!
//! The id of a file is a key of its pieces and of its tombstone. A create under another file's id would share
//! its pieces; a delete under another name would hide it. Both are refused if the owner is known. It is known
//! from the journal while the id is fresh, from its pieces, and from the heads of a small group. If it is
//! unknown, the rows are written under the other volume and name, and do not affect the owner.
//!
//! Design: docs/design/cluster.md#rules VOL-72
//! Not here: freshness of ids (`recent_files`).

use super::{
    disk_state::MemberCore,
    journal_entry,
    recent_files::{bucket_of_ms, is_fresh},
    volumes,
};
use crate::{
    error::{corrupt, of_engine},
    format::{FileHead, TombstoneRow},
    keys,
};
use bytes::Bytes;
use copal_kv::Batch;
use copal_volume::{FileId, UNKNOWN_FILE_NAME, VolumeError, VolumeId, group::GroupId};

/// Maximum size of a group's heads that are searched for the owner of an id that is not fresh, bytes.
const SEARCHED_BYTES: u64 = 16 << 20;

/// Volume and name of a file in a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileAddress<'a> {
    pub(super) vid: VolumeId,
    /// `None`: any name.
    pub(super) name: Option<&'a [u8]>,
}

impl<'a> FileAddress<'a> {
    /// The address in a request. A client that settles a create may not know the name (VOL-60).
    pub(super) fn of_request(vid: VolumeId, name: &'a [u8]) -> FileAddress<'a> {
        FileAddress { vid, name: (name != UNKNOWN_FILE_NAME).then_some(name) }
    }

    /// Whether both addresses are, or may be, those of one file.
    pub(super) fn may_equal(&self, other: FileAddress<'_>) -> bool {
        self.vid == other.vid
            && match (self.name, other.name) {
                (Some(name), Some(other)) => name == other,
                _ => true,
            }
    }
}

/// Whether an id is known to belong to a file with another address. The caller holds the lock of the
/// group.
pub(super) fn belongs_to_another(
    core: &MemberCore,
    group: GroupId,
    address: FileAddress<'_>,
    fid: FileId,
    now_ms: u64,
) -> Result<bool, VolumeError> {
    if !is_fresh(fid, now_ms) {
        return search_heads(core, group, address, fid);
    }
    load_recent(core, group, now_ms)?;
    if !core.recent.lock().may_have(group, fid) {
        return Ok(false);
    }
    let mut is_foreign = false;
    journal_entry::each_record(core, group, bucket_of_ms(fid.ms()), None, |entry| {
        is_foreign |= entry.is_create
            && entry.fid == fid
            && !address.may_equal(FileAddress::of_request(entry.vid, &entry.name));
    })?;
    Ok(is_foreign)
}

/// Whether pieces exist under an id, of an upload or of a file.
pub(super) fn has_pieces(core: &MemberCore, vid: VolumeId, fid: FileId) -> Result<bool, VolumeError> {
    let first = core.spaces.extents.contains(&keys::piece(vid, fid, 0));
    first.map_err(|error| of_engine(&error))
}

fn load_recent(core: &MemberCore, group: GroupId, now_ms: u64) -> Result<(), VolumeError> {
    if core.recent.lock().is_loaded(group) {
        return Ok(());
    }
    let mut fids = Vec::new();
    let from = bucket_of_ms(now_ms.saturating_sub(copal_volume::group::MAX_OP_AGE_MS));
    journal_entry::each_record(core, group, from, None, |entry| {
        if entry.is_create && is_fresh(entry.fid, now_ms) {
            fids.push(entry.fid);
        }
    })?;
    core.recent.lock().load(group, fids, now_ms);
    Ok(())
}

/// Searches the heads of a group for the owner of an id, unless they are too large.
fn search_heads(
    core: &MemberCore,
    group: GroupId,
    address: FileAddress<'_>,
    fid: FileId,
) -> Result<bool, VolumeError> {
    let range = keys::range(&keys::group(group), None);
    if core.spaces.files.approximate_bytes(keys::borrowed(&range)) > SEARCHED_BYTES {
        return Ok(false);
    }
    for (space, behind) in [(&core.spaces.files, 0), (&core.own.siblings, 16)] {
        for row in space.prefix(&keys::group(group)) {
            let (key, row) = row.map_err(|error| of_engine(&error))?;
            // Reads of the file report an unreadable head.
            let Ok(head) = FileHead::parse(&key, &row) else {
                continue;
            };
            let Some((vid, rest)) = keys::split(&key).filter(|_| head.fid == fid) else {
                continue;
            };
            let name = &rest[..rest.len().saturating_sub(behind)];
            let owner = FileAddress { vid, name: Some(name) };
            if !address.may_equal(owner) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Tombstones with this file id and their keys: nearly always one at most.
pub(super) fn tombstones_of(
    core: &MemberCore,
    group: GroupId,
    fid: FileId,
) -> Result<Vec<(Bytes, TombstoneRow)>, VolumeError> {
    let key = keys::tombstone(group, fid);
    // Other tombstones exist only behind the first one.
    let first = core.own.tombstones.get(&key).map_err(|error| of_engine(&error))?;
    if first.is_none() {
        return Ok(Vec::new());
    }
    let rows = core.own.tombstones.prefix(&key);
    rows.map(|row| {
        let (key, row) = row.map_err(|error| of_engine(&error))?;
        let tombstone = TombstoneRow::parse(&key, &row)
            .map_err(|error| corrupt(format!("the row of a deleted file: {error}")))?;
        Ok((key, tombstone))
    })
    .collect()
}

/// Deletes the tombstone of a file. Returns whether its id has other ones: then the next row of this id
/// must be in another batch.
pub(super) fn delete_tombstone(
    core: &MemberCore,
    batch: &mut Batch,
    group: GroupId,
    address: FileAddress<'_>,
    fid: FileId,
) -> Result<bool, VolumeError> {
    let mut tombstones = tombstones_of(core, group, fid)?;
    let Some(at) = tombstones.iter().position(|(_, tombstone)| address.may_equal(tombstone.address())) else {
        return Ok(false);
    };
    let (key, _) = tombstones.remove(at);
    batch.delete(&core.own.tombstones, &key);
    // One of the others takes the first place, because all others follow it.
    if at == 0
        && let Some((other, tombstone)) = tombstones.first()
    {
        batch.delete(&core.own.tombstones, other);
        batch.put(&core.own.tombstones, &key, tombstone.row(&key));
    }
    Ok(!tombstones.is_empty())
}

/// Whether a file can never be live again: it has a tombstone, or its volume was removed.
pub(super) fn is_deleted_or_removed(
    core: &MemberCore,
    address: FileAddress<'_>,
    fid: FileId,
) -> Result<bool, VolumeError> {
    Ok(has_tombstone(core, address.vid.birth_group(), address, fid)?
        || volumes::is_removed(core, address.vid)?)
}

/// Whether a file has a tombstone.
pub(super) fn has_tombstone(
    core: &MemberCore,
    group: GroupId,
    address: FileAddress<'_>,
    fid: FileId,
) -> Result<bool, VolumeError> {
    let tombstones = tombstones_of(core, group, fid)?;
    Ok(tombstones.iter().any(|(_, tombstone)| address.may_equal(tombstone.address())))
}

impl TombstoneRow {
    /// The address of the deleted file.
    pub(super) fn address(&self) -> FileAddress<'_> {
        FileAddress::of_request(self.vid, &self.name)
    }
}

#[cfg(test)]
mod tests;
