//! Deletion of files by id.

use super::body::delete_pieces;
use super::create;
use super::{CommitError, LocalCore};
use crate::keys;
use crate::second_copies::{self, CopiedRows};
use bytes::Bytes;
use copal_volume::{FileId, MAX_BATCH_BYTES, VolumeError, VolumeId, check_file_name};

/// Maximum size of one batch: a longer one cannot use the reserve for deletes in a full store.
const MOST_AT_ONCE: u64 = 512 << 10;

pub(super) fn delete(core: &LocalCore, vid: VolumeId, name: &[u8], fid: FileId) -> Result<(), VolumeError> {
    check_file_name(name)?;
    core.writable()?;
    delete_keys(core, vid, &[(keys::named(vid, name), fid)])
}

pub(super) fn delete_batch(
    core: &LocalCore,
    vid: VolumeId,
    files: &[(Bytes, FileId)],
) -> Result<Vec<Result<(), VolumeError>>, VolumeError> {
    let bytes: usize = files.iter().map(|(name, _)| name.len()).sum();
    if bytes > MAX_BATCH_BYTES {
        return Err(VolumeError::TooLarge {
            what: "the batch",
            bytes: bytes as u64,
            limit: MAX_BATCH_BYTES as u64,
        });
    }
    core.writable()?;
    let checked: Vec<_> = files.iter().map(|(name, _)| check_file_name(name)).collect();
    let keys: Vec<_> = files
        .iter()
        .zip(&checked)
        .filter(|(_, checked)| checked.is_ok())
        .map(|((name, fid), _)| (keys::named(vid, name), *fid))
        .collect();
    delete_keys(core, vid, &keys)?;
    Ok(checked)
}

/// Deletes the files whose names still lead to them: in one durable batch, or in several if one has no
/// memory for all.
fn delete_keys(core: &LocalCore, vid: VolumeId, files: &[(Vec<u8>, FileId)]) -> Result<(), VolumeError> {
    let inside = core.name_locks.enter(vid, core)?;
    let _reserved = core.name_locks.reserve(files.iter().map(|(key, _)| key.clone()).collect());
    if core.has_second_copies(vid) {
        let mut spares = core.kv.batch();
        for (key, fid) in files {
            if create::find_head(core, key)?.is_some_and(|head| head.fid == *fid) {
                second_copies::delete(&core.spaces, &mut spares, CopiedRows::Files, key);
            }
        }
        core.commit_deferred(spares)?;
    }
    let mut batch = core.kv.batch();
    let mut freed_bytes = 0;
    let mut seen = std::collections::BTreeSet::new();
    for (key, fid) in files {
        match create::find_head(core, key)? {
            Some(head) if head.fid == *fid && seen.insert(*fid) => {
                if batch.memory_bytes() > (core.kv.batch_bytes() / 2).min(MOST_AT_ONCE) {
                    let part = std::mem::replace(&mut batch, core.kv.batch());
                    core.commit(part).map_err(CommitError::of_other)?;
                    inside.give_back(std::mem::take(&mut freed_bytes));
                }
                batch.delete(&core.spaces.files, key);
                delete_pieces(&core.spaces, &mut batch, vid, *fid, head.size);
                freed_bytes += head.size;
            }
            _ => {}
        }
    }
    if seen.is_empty() {
        return Ok(());
    }
    core.commit(batch).map_err(CommitError::of_other)?;
    inside.give_back(freed_bytes);
    Ok(())
}
