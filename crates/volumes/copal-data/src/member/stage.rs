//! Pieces of a body above one piece, ahead of the create that makes them visible.
//!
//! Invariant: pieces that belong to no file have an upload row, written with or before the first of them.

use super::{rows::MemberCore, store::MemberStore};
use crate::{error::of_engine, format::upload_row, keys, local::add_piece};
use bytes::Bytes;
use copal_kv::Durability;
use copal_volume::{FileId, VolumeError, VolumeId};

impl MemberStore {
    /// Keeps a piece of a file to come; a duplicate changes nothing. Durable with the create.
    /// # Errors
    /// `NoSpace`, `Failed`; `VolumeGone`.
    pub fn stage(&self, vid: VolumeId, fid: FileId, index: u32, bytes: Bytes) -> Result<(), VolumeError> {
        self.core.stage(vid, fid, index, bytes)
    }

    /// A piece of a file to come, for another member that lacks it.
    /// # Errors
    /// `NotFound`, `Failed`.
    pub fn staged_piece(&self, vid: VolumeId, fid: FileId, index: u32) -> Result<Bytes, VolumeError> {
        let piece = self.core.spaces.extents.get(&keys::piece(vid, fid, index));
        piece
            .map_err(|error| of_engine(&error))?
            .ok_or(VolumeError::NotFound)
    }
}

impl MemberCore {
    fn stage(&self, vid: VolumeId, fid: FileId, index: u32, bytes: Bytes) -> Result<(), VolumeError> {
        self.writable()?;
        if self.is_gone(vid)? {
            return Err(VolumeError::VolumeGone);
        }
        let key = keys::upload(vid, fid);
        let mut batch = self.kv.batch();
        batch.put(&self.spaces.uploads, &key, upload_row(&key, self.clock.now_ms()));
        add_piece(&self.spaces, &mut batch, vid, fid, index, bytes, false);
        batch
            .commit(Durability::Deferred)
            .map_err(|error| of_engine(&error))
    }
}
