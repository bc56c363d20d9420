//! Deletion of the rows of uploads: abandoned, expired, or replaced by a complete file.
//!
//! Invariant: the row of an upload is deleted with its pieces or after them.
//!
//! Not here: the table of uploads in memory (`uploads`).

use super::{disk_state::MemberCore, heads, uploads::MOST_UPLOADS};
use crate::{
    error::{corrupt, of_engine},
    format::StagedPieceRow,
    keys,
};
use copal_kv::{Batch, Durability, Keyspace};
use copal_volume::{FileId, VolumeError, VolumeId, group::GroupId};
use std::collections::BTreeMap;

/// More pieces than this are deleted as a range. A range stays in memory until merges drop it.
const MANY_PIECES: usize = 256;

/// Adds the deletion of the rows of some pieces, given in ascending order: one by one, or as one range.
pub(super) fn delete_piece_rows(
    batch: &mut Batch,
    spaces: &[&Keyspace],
    (vid, fid): (VolumeId, FileId),
    indices: &[u32],
) {
    let (Some(&first), Some(&last)) = (indices.first(), indices.last()) else {
        return;
    };
    for space in spaces {
        if indices.len() > MANY_PIECES {
            let (first, behind) = (keys::piece(vid, fid, first), keys::piece(vid, fid, last + 1));
            batch.delete_range(space, &first, &behind);
            continue;
        }
        for &index in indices {
            batch.delete(space, &keys::piece(vid, fid, index));
        }
    }
}

/// Frees an upload with its pieces, if there is one. The caller holds the lock of its group.
pub(super) fn drop_upload(core: &MemberCore, vid: VolumeId, fid: FileId) -> Result<(), VolumeError> {
    let Some(upload) = core.uploads.lock().get(vid, fid).cloned() else {
        return Ok(());
    };
    let mut batch = core.kv.batch();
    // An earlier release could begin an upload under an existing file: its pieces stay.
    let is_of_file = upload.is_legacy && heads::find_by_id(core, vid, fid)?.is_some();
    let pieces = staged_pieces(core, vid, fid)?;
    let mut spaces = vec![&core.spaces.uploads];
    if !is_of_file {
        spaces.extend([&core.spaces.extents, &core.spaces.sums]);
    }
    if upload.is_legacy {
        // Its pieces have no rows of their own.
        let (first, last) = (keys::piece(vid, fid, 0), keys::piece(vid, fid, u32::MAX));
        for space in spaces {
            batch.delete_range(space, &first, &last);
        }
    } else {
        let indices: Vec<u32> = pieces.keys().copied().collect();
        delete_piece_rows(&mut batch, &spaces, (vid, fid), &indices);
    }
    batch.delete(&core.spaces.uploads, &keys::upload(vid, fid));
    // It may free space on a full disk.
    core.commit_essential(batch, Durability::Deferred)?;
    core.uploads.lock().remove(vid, fid);
    Ok(())
}

/// Rows of the pieces of an upload, by index.
pub(super) fn staged_pieces(
    core: &MemberCore,
    vid: VolumeId,
    fid: FileId,
) -> Result<BTreeMap<u32, StagedPieceRow>, VolumeError> {
    let mut pieces = BTreeMap::new();
    for row in core.spaces.uploads.prefix(&keys::upload(vid, fid)) {
        let (key, row) = row.map_err(|error| of_engine(&error))?;
        let piece = keys::split(&key).and_then(|(_, rest)| keys::split_piece(rest));
        let Some((_, index)) = piece else {
            continue;
        };
        let row = StagedPieceRow::parse(&key, &row)
            .map_err(|error| corrupt(format!("the row of a piece of file {fid}: {error}")))?;
        pieces.insert(index, row);
    }
    Ok(pieces)
}

/// Whether a client may begin another upload.
pub(super) fn may_begin_upload(core: &MemberCore) -> bool {
    core.uploads.lock().len() < MOST_UPLOADS
}

/// Drops all cached state of a group after its rows were deleted.
pub(super) fn forget_group(core: &MemberCore, group: GroupId) {
    core.digests.lock().forget_group(group);
    core.usage.forget_group(group);
    core.uploads.lock().forget(|vid| vid.birth_group() == group);
    core.recent.lock().forget(group);
}
