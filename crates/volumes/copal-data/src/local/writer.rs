//! Streamed file: pieces are staged as they fill, and the head makes them visible.
//!
//! Paper: beanfs §4.1 (a client that dies in the middle of an update)
//! Invariants
//! - At most one piece of the file is in memory.
//! - The upload's row is committed with or before its first piece.
//! - Staged pieces do not outlive their writer: a failed commit and a drop free them at once.

use super::LocalCore;
use super::body::{add_piece, delete_first_pieces};
use super::create;
use super::create::{NewBody, NewFile, check_size};
use crate::format::{PIECE_BYTES, upload_row};
use crate::keys;
use bytes::{Bytes, BytesMut};
use copal_codec::crc32c;
use copal_volume::{
    FileId, FileInfo, FileWriter, PutOptions, VolumeError, VolumeId, check_file_name, check_metadata,
};
use std::sync::Arc;

/// Starts a writer; the name must be free now.
pub(super) fn start(
    inner: &Arc<LocalCore>,
    vid: VolumeId,
    name: &[u8],
    options: &PutOptions,
) -> Result<Box<dyn FileWriter>, VolumeError> {
    check_file_name(name)?;
    check_metadata(&options.metadata)?;
    inner.writable()?;
    drop(inner.name_locks.enter(vid, &**inner)?);
    let key = keys::named(vid, name);
    create::check_name_free(inner, &key)?;
    Ok(Box::new(LocalWriter {
        upload: LocalUpload::start(inner, vid),
        key,
        metadata: options.metadata.clone(),
    }))
}

struct LocalWriter {
    upload: LocalUpload,
    key: Vec<u8>,
    metadata: Bytes,
}

impl FileWriter for LocalWriter {
    fn append(&mut self, data: Bytes) -> Result<(), VolumeError> {
        self.upload.append(data)
    }

    fn commit(self: Box<Self>) -> Result<FileInfo, VolumeError> {
        self.upload.commit(self.key, self.metadata)
    }
}

/// A body that is being staged.
pub(super) struct LocalUpload {
    inner: Arc<LocalCore>,
    vid: VolumeId,
    fid: FileId,
    /// Bytes appended.
    size: u64,
    crc32c: u32,
    /// Pieces staged.
    staged: u32,
    /// The incomplete piece.
    filling: BytesMut,
    /// The first failure; every later call fails in the same way.
    failed: Option<VolumeError>,
    /// The pieces belong to a file now, or may.
    done: bool,
}

impl LocalUpload {
    pub(super) fn start(inner: &Arc<LocalCore>, vid: VolumeId) -> LocalUpload {
        LocalUpload {
            inner: Arc::clone(inner),
            vid,
            fid: inner.times.file(),
            size: 0,
            crc32c: 0,
            staged: 0,
            filling: BytesMut::new(),
            failed: None,
            done: false,
        }
    }

    /// Adds bytes. Stages each full piece that is certainly not the only one, or that the caller hands over whole.
    pub(super) fn append(&mut self, data: Bytes) -> Result<(), VolumeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let appended = self.try_append(data);
        if let Err(error) = &appended {
            self.failed = Some(error.clone());
        }
        appended
    }

    fn try_append(&mut self, mut data: Bytes) -> Result<(), VolumeError> {
        let size = self.size + data.len() as u64;
        check_size(size)?;
        self.inner.name_locks.enter(self.vid, &*self.inner)?.would_fit(size)?;
        self.crc32c = crc32c(self.crc32c, &data);
        self.size = size;
        const PIECE: usize = PIECE_BYTES as usize;
        while !data.is_empty() {
            if self.filling.len() == PIECE {
                // Split, not taken: the next piece reuses this one's memory after it is written.
                let piece = self.filling.split().freeze();
                self.stage(piece)?;
            } else if self.filling.is_empty() && data.len() >= PIECE {
                // Whole pieces are slices of the caller's bytes.
                let piece = data.split_to(PIECE);
                self.stage(piece)?;
            } else {
                let take = data.len().min(PIECE - self.filling.len());
                self.filling.extend_from_slice(&data.split_to(take));
            }
        }
        Ok(())
    }

    fn stage(&mut self, piece: Bytes) -> Result<(), VolumeError> {
        let inner = &*self.inner;
        inner.writable()?;
        let _inside = inner.name_locks.enter(self.vid, inner)?;
        let mut batch = inner.kv.batch();
        if self.staged == 0 {
            let key = keys::upload(self.vid, self.fid);
            let row = upload_row(&key, self.fid.ms());
            batch.put(&inner.spaces.uploads, &key, row);
        }
        let index = self.staged;
        // Counted first: a failed batch may have left its rows.
        self.staged += 1;
        let spaces = &inner.spaces;
        add_piece(spaces, &mut batch, self.vid, self.fid, index, piece, false);
        inner.commit_deferred(batch)
    }

    /// Makes the file visible under `key`.
    pub(super) fn commit(mut self, key: Vec<u8>, metadata: Bytes) -> Result<FileInfo, VolumeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.inner.writable()?;
        let rest = std::mem::take(&mut self.filling).freeze();
        let inner = Arc::clone(&self.inner);
        let file = if self.staged == 0 {
            NewFile::small(self.fid, rest, metadata)
        } else {
            if !rest.is_empty() {
                self.stage(rest)?;
            }
            NewFile { fid: self.fid, size: self.size, crc32c: self.crc32c, metadata, body: NewBody::Staged }
        };
        let inside = inner.name_locks.enter(self.vid, &*inner)?;
        let created = create::create(&inner, &inside, self.vid, key, &file);
        // After an unknown outcome the pieces may belong to a visible file.
        self.done = match &created {
            Ok(_) => true,
            Err(error) => error.is_unknown(),
        };
        created
    }
}

impl Drop for LocalUpload {
    fn drop(&mut self) {
        if self.done || self.staged == 0 {
            return;
        }
        let inner = &*self.inner;
        // The removal of the volume has deleted the pieces too.
        let Ok(_inside) = inner.name_locks.enter(self.vid, inner) else {
            return;
        };
        let mut batch = inner.kv.batch();
        delete_first_pieces(&inner.spaces, &mut batch, self.vid, self.fid, self.staged, true);
        let key = keys::upload(self.vid, self.fid);
        batch.delete(&inner.spaces.uploads, &key);
        if let Err(error) = inner.commit_deferred(batch) {
            tracing::warn!(%error, "an abandoned upload is freed at the next open");
        }
    }
}
