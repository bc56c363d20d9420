//! Create of a file: the rows that make it visible under a free name.

use super::LocalCore;
use super::body::{add_piece, is_single_block};
use crate::error::{corrupt, of_engine};
use crate::format::{FileHead, INLINE_BYTES};
use crate::keys;
use crate::name_locks::VolumeAccess;
use crate::second_copies::{self, CopiedRows};
use bytes::Bytes;
use copal_codec::crc32c;
use copal_volume::{FileId, FileInfo, MAX_FILE_BYTES, OpId, VolumeError, VolumeId};

/// A new file without its operation id.
pub(super) struct NewFile {
    pub(super) fid: FileId,
    pub(super) size: u64,
    pub(super) crc32c: u32,
    pub(super) metadata: Bytes,
    pub(super) body: NewBody,
}

/// Place of a new file's body.
pub(super) enum NewBody {
    /// Up to one piece, in memory.
    Here(Bytes),
    /// Staged completely, under an upload row.
    Staged,
}

impl NewFile {
    /// A file of at most one piece.
    pub(super) fn small(fid: FileId, body: Bytes, metadata: Bytes) -> NewFile {
        NewFile {
            fid,
            size: body.len() as u64,
            crc32c: crc32c(0, &body),
            metadata,
            body: NewBody::Here(body),
        }
    }

    /// Adds the rows that make the file visible to a batch. Returns the head.
    pub(super) fn put(
        &self,
        inner: &LocalCore,
        batch: &mut copal_kv::Batch,
        vid: VolumeId,
        key: &[u8],
        op: OpId,
    ) -> FileHead {
        let spaces = &inner.spaces;
        let mut head = FileHead {
            fid: self.fid,
            op,
            size: self.size,
            crc32c: self.crc32c,
            metadata: self.metadata.clone(),
            inline: None,
        };
        match &self.body {
            NewBody::Here(body) if self.size <= INLINE_BYTES => head.inline = Some(body.clone()),
            NewBody::Here(body) => {
                let single_block = is_single_block(self.size);
                add_piece(spaces, batch, vid, self.fid, 0, body.clone(), single_block);
            }
            NewBody::Staged => {
                batch.delete(&spaces.uploads, &keys::upload(vid, self.fid));
            }
        }
        batch.put(&spaces.files, key, head.row(key));
        head
    }
}

/// Makes one file visible, or reports the file that has its name. Takes the file's size from the volume's
/// quota.
pub(super) fn create(
    core: &LocalCore,
    inside: &VolumeAccess<'_>,
    vid: VolumeId,
    key: Vec<u8>,
    file: &NewFile,
) -> Result<FileInfo, VolumeError> {
    let reserved = core.name_locks.reserve(vec![key.clone()]);
    check_name_free(core, &key)?;
    inside.take(file.size)?;
    let stamp = core.times.stamp();
    let mut batch = core.kv.batch();
    let head = file.put(core, &mut batch, vid, &key, stamp.op);
    stamp.put(&core.spaces, &mut batch);
    let committed = core.commit(batch);
    drop(reserved);
    match committed {
        Ok(()) => {
            core.times.confirm(&stamp);
            copy_files(core, vid, [(&key[..], &head)]);
            Ok(head.info())
        }
        Err(error) => {
            inside.give_back(file.size);
            Err(error.of_create(file.fid))
        }
    }
}

/// Writes second copies of files that were just committed, if their volume has them.
pub(super) fn copy_files<'a>(
    core: &LocalCore,
    vid: VolumeId,
    files: impl IntoIterator<Item = (&'a [u8], &'a FileHead)>,
) {
    if !core.has_second_copies(vid) {
        return;
    }
    let mut spares = core.kv.batch();
    for (key, head) in files {
        if head.inline.is_some() {
            second_copies::put(&core.spaces, &mut spares, CopiedRows::Files, key, head.row(key));
        }
    }
    core.commit_second_copies(spares);
}

/// Refuses with `Exists` if the name under `key` has a live file.
pub(super) fn check_name_free(core: &LocalCore, key: &[u8]) -> Result<(), VolumeError> {
    match find_head(core, key)? {
        None => Ok(()),
        Some(head) => Err(VolumeError::Exists { fid: head.fid }),
    }
}

/// The head under `key`, if any.
pub(super) fn find_head(core: &LocalCore, key: &[u8]) -> Result<Option<FileHead>, VolumeError> {
    let row = core.spaces.files.get(key).map_err(|e| of_engine(&e))?;
    row.map(|row| {
        FileHead::parse(key, &row).map_err(|error| {
            let name = keys::split(key).map_or(&[][..], |(_, name)| name);
            corrupt(format!("the head of file \"{}\": {error}", name.escape_ascii()))
        })
    })
    .transpose()
}

/// Refuses a file above the limit.
pub(super) fn check_size(bytes: u64) -> Result<(), VolumeError> {
    if bytes > MAX_FILE_BYTES {
        return Err(VolumeError::TooLarge { what: "the file", bytes, limit: MAX_FILE_BYTES });
    }
    Ok(())
}
