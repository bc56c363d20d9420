//! API of the files of a disk's groups: reads, staging, resync, verification and damage.
//!
//! Not here: the mechanisms; each method calls the function of its module.

use super::MemberStore;
use crate::member::{
    DiskScrub, DroppedRows, FileState, GroupSnapshot, OperationError, SnapshotEntry, StagedPiece,
    VerifiedSpan, VerifySpan, damage, reads, resync, stage, upload_expiry, verify,
};
use bytes::Bytes;
use copal_volume::{FileId, FileInfo, OpId, VolumeError, VolumeId, VolumeStats, group::GroupId};
use std::ops::Range;

impl MemberStore {
    /// Counts and hashes the live files of a span, and reads their bodies if `deep`. Damage is part of the
    /// answer, no error.
    /// # Errors
    /// `Failed`.
    pub fn verify(
        &self,
        group: GroupId,
        span: VerifySpan<'_>,
        deep: bool,
    ) -> Result<VerifiedSpan, VolumeError> {
        verify::verify(&self.core, group, span, deep)
    }

    /// Frees expired uploads. Returns their number.
    /// # Errors
    /// `Corrupt`, `NoSpace`, `Failed`.
    pub fn expire_uploads(&self) -> Result<usize, VolumeError> {
        upload_expiry::expire_uploads(&self.core)
    }

    /// Number of uploads without a file, and bytes of their pieces.
    pub fn upload_totals(&self) -> (usize, u64) {
        upload_expiry::upload_totals(&self.core)
    }

    /// Stages a piece of a file that this server copies from another member. A duplicate changes nothing. It
    /// becomes durable with the create.
    /// # Errors
    /// `NoSpace`, `Failed`; `VolumeGone`; `Denied`: the file exists, was deleted, or cannot have this piece.
    pub fn stage(&self, vid: VolumeId, fid: FileId, index: u32, bytes: Bytes) -> Result<(), VolumeError> {
        stage::stage(&self.core, vid, fid, index, bytes)
    }

    /// Stages a piece of a client's file, unless `may_run` refuses it at its turn. Blocks.
    /// # Errors
    /// The reason of the refusal.
    pub fn stage_while(
        &self,
        piece: StagedPiece,
        may_run: impl FnOnce() -> Result<(), OperationError>,
    ) -> Result<(), OperationError> {
        stage::stage_while(&self.core, piece, may_run)
    }

    /// A staged piece, for another member that lacks it.
    /// # Errors
    /// `NotFound`, `Failed`.
    pub fn staged_piece(&self, vid: VolumeId, fid: FileId, index: u32) -> Result<Bytes, VolumeError> {
        stage::staged_piece(&self.core, vid, fid, index)
    }

    /// Takes a snapshot of a group.
    /// # Errors
    /// `Failed`.
    pub fn snapshot(&self, group: GroupId) -> Result<GroupSnapshot, VolumeError> {
        resync::snapshot(&self.core, group)
    }

    /// Whether a donor's live file is missing here: neither present nor deleted.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn lacks_file(&self, entry: &SnapshotEntry) -> Result<bool, VolumeError> {
        resync::lacks_file(&self.core, entry)
    }

    /// Head and bytes of a file for another member; `None`: it is not live any more, and that member learns
    /// of the delete itself.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn fetch(
        &self,
        file: (VolumeId, &[u8], FileId),
        range: Range<u64>,
    ) -> Result<Option<(FileInfo, OpId, Bytes)>, VolumeError> {
        resync::fetch(&self.core, file, range)
    }

    /// The head of the live file of a name.
    /// # Errors
    /// `NotFound`, `VolumeGone`, `Corrupt`, `Failed`.
    pub fn stat(&self, vid: VolumeId, name: &[u8], if_file: Option<FileId>) -> Result<FileInfo, VolumeError> {
        reads::stat(&self.core, vid, name, if_file)
    }

    /// The part of `range` inside the file, verified, and the file's head.
    /// # Errors
    /// As [`MemberStore::stat`].
    pub fn get(
        &self,
        vid: VolumeId,
        name: &[u8],
        range: Range<u64>,
        if_file: Option<FileId>,
    ) -> Result<(Bytes, FileInfo), VolumeError> {
        reads::get(&self.core, vid, name, range, if_file)
    }

    /// Reads many ranges of a file, sorted and joined, and its head. `None` for ranges on damage.
    /// # Errors
    /// As [`MemberStore::get`], without `Corrupt` of bytes.
    pub fn get_ranges(
        &self,
        vid: VolumeId,
        name: &[u8],
        ranges: &[Range<u64>],
        if_file: Option<FileId>,
    ) -> Result<(Vec<Option<Bytes>>, FileInfo), VolumeError> {
        reads::get_ranges(&self.core, vid, name, ranges, if_file)
    }

    /// Up to `limit` live files whose names begin with `prefix` and are above `after`.
    /// # Errors
    /// `VolumeGone`, `Corrupt`, `Failed`.
    pub fn list(
        &self,
        vid: VolumeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, FileInfo)>, VolumeError> {
        reads::list(&self.core, vid, prefix, after, limit)
    }

    /// Number of files and bytes of a volume; reads all of its heads.
    /// # Errors
    /// As [`MemberStore::list`].
    pub fn totals(&self, vid: VolumeId) -> Result<VolumeStats, VolumeError> {
        reads::totals(&self.core, vid)
    }

    /// Whether a file has a tombstone.
    /// # Errors
    /// `VolumeGone`, `Corrupt`, `Failed`.
    pub fn is_deleted(&self, vid: VolumeId, fid: FileId) -> Result<bool, VolumeError> {
        reads::is_deleted(&self.core, vid, fid)
    }

    /// State of a file id; reads the heads of its volume.
    /// # Errors
    /// As [`MemberStore::list`].
    pub fn find(&self, vid: VolumeId, fid: FileId) -> Result<FileState, VolumeError> {
        reads::find(&self.core, vid, fid)
    }

    /// Starts to read the whole disk in the background, `bytes_per_s` at most, or goes on where the last scrub was
    /// interrupted.
    /// [`MemberStore::damaged_groups`] reports the damage found. `None`: the store is being closed.
    pub fn scrub(&self, bytes_per_s: u64) -> Option<DiskScrub> {
        damage::scrub(&self.core, bytes_per_s)
    }

    /// Groups of this disk with damage that was found, by reads, scrubs or checks, and not dropped yet.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn damaged_groups(&self) -> Result<Vec<GroupId>, VolumeError> {
        damage::damaged_groups(&self.core)
    }

    /// Reads all rows of a group and drops the unreadable ones. The caller calls [`MemberStore::note_damage`]
    /// first, so the member is not in sync until its next resync. Operations wait while rows are dropped, not
    /// while rows are read. Blocks.
    /// # Errors
    /// `Corrupt`: the damage stays. `NoSpace`, `Failed`.
    pub fn drop_damaged(&self, group: GroupId) -> Result<DroppedRows, VolumeError> {
        damage::drop_damaged(&self.core, group)
    }
}
