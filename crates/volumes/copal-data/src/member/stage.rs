//! Staging of pieces: the body of a larger file, before the create that makes it visible.
//!
//! A piece is checked and written while no operation of the group is under way. So it never gets the id of an
//! existing, deleted or foreign file.
//!
//! Design: docs/design/cluster.md#rules VOL-72, VOL-73
//! Invariant: pieces without a file have an upload row, written with or before the first of them.
//!
//! Not here: expiry of uploads (`uploads`).

use super::{
    disk_state::MemberCore,
    file_ids::{self, FileAddress},
    heads,
    operation::OperationError,
    roles, upload_rows,
    uploads::{StagedUpload, UploadOrigin},
    volumes,
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
    group::{MemberAnswer, check_file_id},
};

/// A piece of a future file.
#[derive(Clone, Debug)]
pub struct StagedPiece {
    /// The file's volume.
    pub vid: VolumeId,
    /// The file.
    pub fid: FileId,
    /// Index of the piece, from 0.
    pub index: u32,
    /// Its bytes: 4 MiB, or fewer in the last piece.
    pub bytes: Bytes,
    /// Sender of the piece.
    pub origin: UploadOrigin,
    /// Whether the sender is a client with all rights.
    pub has_all_rights: bool,
}

/// See `MemberStore::stage`.
pub(super) fn stage(
    core: &MemberCore,
    vid: VolumeId,
    fid: FileId,
    index: u32,
    bytes: Bytes,
) -> Result<(), VolumeError> {
    let piece = StagedPiece { vid, fid, index, bytes, origin: UploadOrigin::default(), has_all_rights: true };
    stage_while(core, piece, || Ok(())).map_err(|refused| match refused {
        OperationError::Failed(error) => error,
        OperationError::Refused(MemberAnswer::VolumeGone) => VolumeError::VolumeGone,
        OperationError::Refused(MemberAnswer::NoSpace) => VolumeError::NoSpace,
        OperationError::Denied { reason } => VolumeError::Denied { reason },
        other => VolumeError::Denied { reason: format!("the piece was refused: {other:?}") },
    })
}

/// See `MemberStore::stage_while`.
pub(super) fn stage_while(
    core: &MemberCore,
    piece: StagedPiece,
    may_run: impl FnOnce() -> Result<(), OperationError>,
) -> Result<(), OperationError> {
    let queue = roles::queue(core, piece.vid.birth_group()).map_err(OperationError::Failed)?;
    let member = queue.member.lock();
    let Some(row) = *member else {
        return Err(OperationError::NotMember);
    };
    may_run()?;
    stage_locked(core, &row, piece)
}

/// See `MemberStore::staged_piece`.
pub(super) fn staged_piece(
    core: &MemberCore,
    vid: VolumeId,
    fid: FileId,
    index: u32,
) -> Result<Bytes, VolumeError> {
    let piece = core.spaces.extents.get(&keys::piece(vid, fid, index));
    piece.map_err(|error| of_engine(&error))?.ok_or(VolumeError::NotFound)
}

fn denied(reason: &str) -> OperationError {
    OperationError::Denied { reason: reason.to_owned() }
}

fn stage_locked(core: &MemberCore, row: &MemberRow, piece: StagedPiece) -> Result<(), OperationError> {
    let StagedPiece { vid, fid, index, .. } = piece;
    let now_ms = core.clock.now_ms();
    core.fence.check().map_err(OperationError::Failed)?;
    check_piece(core, &piece, now_ms)?;
    let known = core.uploads.lock().get(vid, fid).cloned();
    let upload = match known {
        Some(upload) if upload.origin == piece.origin && !upload.is_legacy => upload,
        Some(upload) if upload.yields_to(&piece.origin, piece.has_all_rights, now_ms) => {
            upload_rows::drop_upload(core, vid, fid).map_err(OperationError::Failed)?;
            StagedUpload::begin(&piece)
        }
        // This server is copying the file, or the upload belongs to a process that stopped a moment ago:
        // a later attempt may succeed.
        Some(upload)
            if upload.origin.is_own()
                || piece.has_all_rights
                || upload.origin.client == piece.origin.client =>
        {
            return Err(OperationError::Refused(MemberAnswer::Busy));
        }
        Some(_) => return Err(denied("another client's upload has this file's id")),
        None if is_stored(core, &piece, now_ms)? => return Ok(()),
        None if !piece.origin.is_own() && !upload_rows::may_begin_upload(core) => {
            return Err(OperationError::Refused(MemberAnswer::Busy));
        }
        None => StagedUpload::begin(&piece),
    };
    let key = keys::piece(vid, fid, index);
    let before =
        core.spaces.uploads.get(&key).map_err(failed)?.and_then(|row| StagedPieceRow::parse(&key, &row).ok());
    let len = piece.bytes.len() as u64;
    let added = len.saturating_sub(before.map_or(0, |before| before.len.into()));
    if row.has_everything() && !piece.origin.is_own() {
        check_quota(core, vid, added)?;
    }
    let upload = StagedUpload { touched_ms: now_ms, bytes: upload.bytes + added, ..upload };
    let staged = StagedPieceRow { len: len as u32, crc32c: crc32c(0, &piece.bytes) };
    let mut batch = core.kv.batch();
    let of_upload = keys::upload(vid, fid);
    batch.put(&core.spaces.uploads, &of_upload, upload.row().row(&of_upload));
    batch.put(&core.spaces.uploads, &key, staged.row(&key));
    add_piece(&core.spaces, &mut batch, vid, fid, index, piece.bytes, false);
    batch.commit(Durability::Deferred).map_err(failed)?;
    core.uploads.lock().insert(vid, fid, upload);
    Ok(())
}

/// Refuses a piece that no file can have.
fn check_piece(core: &MemberCore, piece: &StagedPiece, now_ms: u64) -> Result<(), OperationError> {
    let StagedPiece { vid, fid, .. } = *piece;
    if volumes::is_removed(core, vid).map_err(OperationError::Failed)? {
        return Err(OperationError::Refused(MemberAnswer::VolumeGone));
    }
    let len = piece.bytes.len() as u64;
    if piece.index >= pieces_of(MAX_FILE_BYTES) || !(1..=PIECE_BYTES).contains(&len) {
        return Err(denied("a piece has 1 byte to 4 MiB, and a file at most 64 GiB"));
    }
    if piece.origin.is_own() {
        return Ok(());
    }
    check_file_id(now_ms, fid).map_err(OperationError::Refused)?;
    if volumes::is_removing(core, vid).map_err(OperationError::Failed)? {
        return Err(OperationError::Refused(MemberAnswer::Busy));
    }
    if !core.has_room_for(len) {
        return Err(OperationError::Refused(MemberAnswer::NoSpace));
    }
    let address = FileAddress { vid, name: None };
    match file_ids::has_tombstone(core, vid.birth_group(), address, fid).map_err(OperationError::Failed)? {
        true => Err(OperationError::Refused(MemberAnswer::Deleted)),
        false => Ok(()),
    }
}

/// Whether the client's file exists already with exactly this piece. Refuses the id of any other file.
fn is_stored(core: &MemberCore, piece: &StagedPiece, now_ms: u64) -> Result<bool, OperationError> {
    let StagedPiece { vid, fid, index, .. } = *piece;
    if piece.origin.is_own() {
        return Ok(false);
    }
    if file_ids::has_pieces(core, vid, fid).map_err(OperationError::Failed)? {
        let key = keys::piece(vid, fid, index);
        let sums = core.spaces.sums.get(&key).map_err(failed)?;
        return match sums.is_some_and(|sums| sums == sums_row(&key, &piece.bytes)) {
            true => Ok(true),
            false => Err(denied("the file exists already, and files never change")),
        };
    }
    // No address matches: any owner of the id is another file.
    let nothing = FileAddress { vid: VolumeId::ROOT, name: None };
    let group = vid.birth_group();
    match file_ids::belongs_to_another(core, group, nothing, fid, now_ms).map_err(OperationError::Failed)? {
        true => Err(denied("another file has this id")),
        false => Ok(false),
    }
}

/// Refuses bytes beyond the volume's quota, files and uploads together.
fn check_quota(core: &MemberCore, vid: VolumeId, wanted: u64) -> Result<(), OperationError> {
    let Some(quota) = volumes::quota(core, vid).map_err(OperationError::Failed)? else {
        return Ok(());
    };
    let used = used_bytes(core, vid)
        .map_err(OperationError::Failed)?
        .saturating_add(core.uploads.lock().bytes_of(vid));
    match used.saturating_add(wanted) > quota {
        true => Err(OperationError::Refused(MemberAnswer::QuotaExceeded { quota, used, wanted })),
        false => Ok(()),
    }
}

/// Bytes of a volume's live files: counted once, then updated. The caller holds the lock of the group.
fn used_bytes(core: &MemberCore, vid: VolumeId) -> Result<u64, VolumeError> {
    if let Some(used) = core.usage.get(vid) {
        return Ok(used);
    }
    let used = heads::live_bytes(core, vid)?;
    core.usage.set(vid, used);
    Ok(used)
}

impl StagedUpload {
    fn begin(piece: &StagedPiece) -> StagedUpload {
        StagedUpload { origin: piece.origin.clone(), touched_ms: 0, bytes: 0, is_legacy: false }
    }
}

fn failed(error: copal_kv::Error) -> OperationError {
    OperationError::Failed(of_engine(&error))
}
