//! Deletion of files by id.

use super::body::delete_pieces;
use super::{CommitError, LocalCore};
use crate::keys;
use crate::second_copies::{self, CopiedRows};
use bytes::Bytes;
use copal_volume::{FileId, MAX_BATCH_BYTES, VolumeError, VolumeId, check_file_name};

/// Maximum size of one batch: a longer one cannot use the reserve for deletes in a full store.
const MOST_AT_ONCE: u64 = 512 << 10;

impl LocalCore {
    pub(super) fn delete(&self, vid: VolumeId, name: &[u8], fid: FileId) -> Result<(), VolumeError> {
        check_file_name(name)?;
        self.writable()?;
        self.delete_keys(vid, &[(keys::named(vid, name), fid)])
    }

    pub(super) fn delete_batch(
        &self,
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
        self.writable()?;
        let checked: Vec<_> = files.iter().map(|(name, _)| check_file_name(name)).collect();
        let keys: Vec<_> = files
            .iter()
            .zip(&checked)
            .filter(|(_, checked)| checked.is_ok())
            .map(|((name, fid), _)| (keys::named(vid, name), *fid))
            .collect();
        self.delete_keys(vid, &keys)?;
        Ok(checked)
    }

    /// Deletes the files whose names still lead to them: in one durable batch, or in several if one has no
    /// memory for all.
    fn delete_keys(&self, vid: VolumeId, files: &[(Vec<u8>, FileId)]) -> Result<(), VolumeError> {
        let inside = self.name_locks.enter(vid, self)?;
        let _reserved = self.name_locks.reserve(files.iter().map(|(key, _)| key.clone()).collect());
        if self.has_second_copies(vid) {
            let mut spares = self.kv.batch();
            for (key, fid) in files {
                if self.head(key)?.is_some_and(|head| head.fid == *fid) {
                    second_copies::delete(&self.spaces, &mut spares, CopiedRows::Files, key);
                }
            }
            self.commit_deferred(spares)?;
        }
        let mut batch = self.kv.batch();
        let mut freed_bytes = 0;
        let mut seen = std::collections::BTreeSet::new();
        for (key, fid) in files {
            match self.head(key)? {
                Some(head) if head.fid == *fid && seen.insert(*fid) => {
                    if batch.memory_bytes() > (self.kv.batch_bytes() / 2).min(MOST_AT_ONCE) {
                        let part = std::mem::replace(&mut batch, self.kv.batch());
                        self.commit(part).map_err(CommitError::of_other)?;
                        inside.give_back(std::mem::take(&mut freed_bytes));
                    }
                    batch.delete(&self.spaces.files, key);
                    delete_pieces(&self.spaces, &mut batch, vid, *fid, head.size);
                    freed_bytes += head.size;
                }
                _ => {}
            }
        }
        if seen.is_empty() {
            return Ok(());
        }
        self.commit(batch).map_err(CommitError::of_other)?;
        inside.give_back(freed_bytes);
        Ok(())
    }
}
