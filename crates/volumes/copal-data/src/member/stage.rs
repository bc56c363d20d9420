//! Pieces of a body above one piece, ahead of the create that makes them visible.
//!
//! Decided and written while no operation of the group is under way: a piece never comes to stand under the
//! id of a file that is there, was deleted, or is somebody else's.
//!
//! Design: docs/design/cluster.md#rules VOL-72, VOL-73
//! Invariant: pieces that belong to no file have an upload row, written with or before the first of them.
//!
//! Not here: how long an upload stays (`uploads`).

use super::{
    file_ids::Called,
    operation::NotHeld,
    rows::MemberCore,
    store::MemberStore,
    uploads::{Upload, UploadOrigin},
};
use crate::{
    error::of_engine,
    format::{MemberRow, PIECE_BYTES, StagedPieceRow, pieces_of, sums_row},
    keys,
    local::add_piece,
};
use bytes::Bytes;
use copal_codec::crc32c;
use copal_kv::Durability;
use copal_volume::{
    FileId, MAX_FILE_BYTES, VolumeError, VolumeId,
    group::{Answer, check_file_id},
};

/// A piece of a file to come.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The file's volume.
    pub vid: VolumeId,
    /// The file.
    pub fid: FileId,
    /// Which piece, from 0.
    pub index: u32,
    /// Its bytes: 4 MiB, the last one less.
    pub bytes: Bytes,
    /// Who sends it.
    pub origin: UploadOrigin,
    /// Whether that is a client that may do everything.
    pub may_do_everything: bool,
}

impl MemberStore {
    /// Keeps a piece of a file that this server takes over from another member; a duplicate changes nothing.
    /// Durable with the create.
    /// # Errors
    /// `NoSpace`, `Failed`; `VolumeGone`; `Denied`: the file is there, was deleted, or the piece lies beyond
    /// any file.
    pub fn stage(&self, vid: VolumeId, fid: FileId, index: u32, bytes: Bytes) -> Result<(), VolumeError> {
        let piece =
            Piece { vid, fid, index, bytes, origin: UploadOrigin::default(), may_do_everything: true };
        self.stage_while(piece, || Ok(())).map_err(|refused| match refused {
            NotHeld::Failed(error) => error,
            NotHeld::Refused(Answer::VolumeGone) => VolumeError::VolumeGone,
            NotHeld::Refused(Answer::NoSpace) => VolumeError::NoSpace,
            NotHeld::Denied { reason } => VolumeError::Denied { reason },
            other => VolumeError::Denied { reason: format!("the piece is not taken: {other:?}") },
        })
    }

    /// Keeps a piece of a client's file to come, unless `may_run` refuses it when its turn has come. Blocks.
    /// # Errors
    /// Why it is not kept.
    pub fn stage_while(
        &self,
        piece: Piece,
        may_run: impl FnOnce() -> Result<(), NotHeld>,
    ) -> Result<(), NotHeld> {
        let queue = self.core.queue(piece.vid.birth_group()).map_err(NotHeld::Failed)?;
        let member = queue.member.lock();
        let Some(row) = *member else {
            return Err(NotHeld::NoMember);
        };
        may_run()?;
        self.core.stage(&row, piece)
    }

    /// A piece of a file to come, for another member that lacks it.
    /// # Errors
    /// `NotFound`, `Failed`.
    pub fn staged_piece(&self, vid: VolumeId, fid: FileId, index: u32) -> Result<Bytes, VolumeError> {
        let piece = self.core.spaces.extents.get(&keys::piece(vid, fid, index));
        piece.map_err(|error| of_engine(&error))?.ok_or(VolumeError::NotFound)
    }
}

fn denied(reason: &str) -> NotHeld {
    NotHeld::Denied { reason: reason.to_owned() }
}

impl MemberCore {
    fn stage(&self, row: &MemberRow, piece: Piece) -> Result<(), NotHeld> {
        let Piece { vid, fid, index, .. } = piece;
        let now_ms = self.clock.now_ms();
        self.writable().map_err(NotHeld::Failed)?;
        self.check_piece(&piece, now_ms)?;
        let known = self.uploads.lock().get(vid, fid).cloned();
        let upload = match known {
            Some(upload) if upload.origin == piece.origin && !upload.is_legacy => upload,
            Some(upload) if upload.yields_to(&piece.origin, piece.may_do_everything, now_ms) => {
                self.drop_upload(vid, fid).map_err(NotHeld::Failed)?;
                Upload::begin(&piece)
            }
            // This server takes the file over, or a process that has only just stopped began it: later it
            // looks different.
            Some(upload)
                if upload.origin.is_own()
                    || piece.may_do_everything
                    || upload.origin.client == piece.origin.client =>
            {
                return Err(NotHeld::Refused(Answer::Busy));
            }
            Some(_) => return Err(denied("another client's upload has this file's id")),
            None if self.is_there(&piece, now_ms)? => return Ok(()),
            None if !piece.origin.is_own() && !self.has_room_for_upload() => {
                return Err(NotHeld::Refused(Answer::Busy));
            }
            None => Upload::begin(&piece),
        };
        let key = keys::piece(vid, fid, index);
        let before = self
            .spaces
            .uploads
            .get(&key)
            .map_err(failed)?
            .and_then(|row| StagedPieceRow::parse(&key, &row).ok());
        let len = piece.bytes.len() as u64;
        let added = len.saturating_sub(before.map_or(0, |before| before.len.into()));
        if row.has_everything() && !piece.origin.is_own() {
            self.check_room(vid, added)?;
        }
        let upload = Upload { touched_ms: now_ms, bytes: upload.bytes + added, ..upload };
        let staged = StagedPieceRow { len: len as u32, crc32c: crc32c(0, &piece.bytes) };
        let mut batch = self.kv.batch();
        let of_upload = keys::upload(vid, fid);
        batch.put(&self.spaces.uploads, &of_upload, upload.row().row(&of_upload));
        batch.put(&self.spaces.uploads, &key, staged.row(&key));
        add_piece(&self.spaces, &mut batch, vid, fid, index, piece.bytes, false);
        batch.commit(Durability::Deferred).map_err(failed)?;
        self.uploads.lock().insert(vid, fid, upload);
        Ok(())
    }

    /// Refuses a piece that no file here can have.
    fn check_piece(&self, piece: &Piece, now_ms: u64) -> Result<(), NotHeld> {
        let Piece { vid, fid, .. } = *piece;
        if self.is_gone(vid).map_err(NotHeld::Failed)? {
            return Err(NotHeld::Refused(Answer::VolumeGone));
        }
        let len = piece.bytes.len() as u64;
        if piece.index >= pieces_of(MAX_FILE_BYTES) || !(1..=PIECE_BYTES).contains(&len) {
            return Err(denied("a piece has 1 byte to 4 MiB, and a file at most 64 GiB"));
        }
        if piece.origin.is_own() {
            return Ok(());
        }
        check_file_id(now_ms, fid).map_err(NotHeld::Refused)?;
        if self.is_removing(vid).map_err(NotHeld::Failed)? {
            return Err(NotHeld::Refused(Answer::Busy));
        }
        if !self.has_room_for(len) {
            return Err(NotHeld::Refused(Answer::NoSpace));
        }
        let called = Called { vid, name: None };
        match self.is_buried(vid.birth_group(), called, fid).map_err(NotHeld::Failed)? {
            true => Err(NotHeld::Refused(Answer::Buried)),
            false => Ok(()),
        }
    }

    /// Whether the file of a client's piece is there already, with just this piece; refuses the id of any
    /// other file.
    fn is_there(&self, piece: &Piece, now_ms: u64) -> Result<bool, NotHeld> {
        let Piece { vid, fid, index, .. } = *piece;
        if piece.origin.is_own() {
            return Ok(false);
        }
        if self.has_pieces(vid, fid).map_err(NotHeld::Failed)? {
            let key = keys::piece(vid, fid, index);
            let sums = self.spaces.sums.get(&key).map_err(failed)?;
            return match sums.is_some_and(|sums| sums == sums_row(&key, &piece.bytes)) {
                true => Ok(true),
                false => Err(denied("the file is there, and files never change")),
            };
        }
        // No file is meant: whatever has the id is another.
        let nothing = Called { vid: VolumeId::ROOT, name: None };
        let group = vid.birth_group();
        match self.belongs_to_another(group, nothing, fid, now_ms).map_err(NotHeld::Failed)? {
            true => Err(denied("another file has this id")),
            false => Ok(false),
        }
    }

    /// Refuses bytes that the volume has no room for, files and uploads together.
    fn check_room(&self, vid: VolumeId, wanted: u64) -> Result<(), NotHeld> {
        let Some(quota) = self.quota(vid).map_err(NotHeld::Failed)? else {
            return Ok(());
        };
        let used =
            self.used_bytes(vid).map_err(NotHeld::Failed)?.saturating_add(self.uploads.lock().bytes_of(vid));
        match used.saturating_add(wanted) > quota {
            true => Err(NotHeld::Refused(Answer::QuotaExceeded { quota, used, wanted })),
            false => Ok(()),
        }
    }

    /// Bytes of a volume's live files, counted once and carried on from then. The caller has the lock of the
    /// group.
    fn used_bytes(&self, vid: VolumeId) -> Result<u64, VolumeError> {
        if let Some(used) = self.used.lock().get(&vid) {
            return Ok(*used);
        }
        let used = self.live_bytes(vid)?;
        self.used.lock().insert(vid, used);
        Ok(used)
    }
}

impl Upload {
    fn begin(piece: &Piece) -> Upload {
        Upload { origin: piece.origin.clone(), touched_ms: 0, bytes: 0, is_legacy: false }
    }
}

fn failed(error: copal_kv::Error) -> NotHeld {
    NotHeld::Failed(of_engine(&error))
}
