//! Several operations of one group as one atomic batch: decisions, rows and journal.

mod facts;

use super::{
    batch_overlay::BatchOverlay,
    disk_state::MemberCore,
    file_ids::{self, FileAddress},
    heads,
    journal_entry::JournalEntry,
    operation::{BodySource, GroupOperation, NewHead, OperationError},
    recent_files::is_fresh,
    upload_rows::{self, delete_piece_rows},
    uploads::{StagedUpload, UploadOrigin},
    volumes::VolumeFacts,
};
use crate::{
    error::of_engine,
    format::{
        FileHead, INLINE_BYTES, JournalAction, JournalRow, MemberRow, StagedPieceRow, TombstoneRow,
        parse_sums, piece_len, pieces_of,
    },
    keys,
    local::{add_piece, delete_pieces, is_single_block},
};
use bytes::Bytes;
use copal_codec::crc32c_joined;
use copal_kv::{Batch, Durability};
use copal_volume::{
    FileId, OpId, VolumeError, VolumeId,
    group::{
        AcceptKind, Bucket, BucketSeal, DeleteFacts, GroupId, MemberAnswer, check_file_id, decide_confirm,
        decide_copy, decide_create, decide_delete,
    },
};
use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};

/// Maximum size of a batch without files, bytes: it may use the reserve of a full disk.
const ESSENTIAL_BYTES: u64 = 512 << 10;

/// A batch under construction.
pub(super) struct GroupBatch<'a> {
    core: &'a MemberCore,
    group: GroupId,
    /// Whether the member has everything of the group, and so no two files of a name.
    has_everything: bool,
    seal: BucketSeal,
    /// Sealed buckets that get operations from this batch: their cached digests become invalid.
    changed_buckets: BTreeSet<Bucket>,
    now_ms: u64,
    batch: Batch,
    overlay: BatchOverlay,
    /// Changes of the bytes of volumes with a quota.
    added: Vec<(VolumeId, i64)>,
    /// State of the volume of the last operation. It does not change during a batch.
    volume: Cell<Option<(VolumeId, VolumeFacts)>>,
    /// Whether the next operation has to be in another batch.
    pub(super) is_split: bool,
    /// Uploads that become files.
    finished: Vec<(VolumeId, FileId)>,
    /// Bytes of new files.
    new_bytes: u64,
    /// Whether it contains a file. A batch without one is essential: it may free space on a full disk.
    has_files: bool,
}

impl<'a> GroupBatch<'a> {
    pub(super) fn new(core: &'a MemberCore, group: GroupId, member: &MemberRow) -> GroupBatch<'a> {
        GroupBatch {
            core,
            group,
            has_everything: member.has_everything(),
            seal: member.seal,
            changed_buckets: BTreeSet::new(),
            now_ms: core.clock.now_ms(),
            batch: core.kv.batch(),
            overlay: BatchOverlay::default(),
            added: Vec::new(),
            volume: Cell::new(None),
            is_split: false,
            finished: Vec::new(),
            new_bytes: 0,
            has_files: false,
        }
    }

    /// Whether another operation may not fit.
    pub(super) fn is_full(&self) -> bool {
        let bytes = self.batch.memory_bytes();
        bytes > self.core.kv.batch_bytes() / 2 || !self.has_files && bytes > ESSENTIAL_BYTES
    }

    /// Decides an operation and adds its rows.
    pub(super) fn add(&mut self, operation: &GroupOperation) -> Result<(), OperationError> {
        match operation {
            GroupOperation::Create { vid, name, head, body } => {
                self.check_no_removal(*vid)?;
                self.check_id(head.fid)?;
                let accept =
                    decide_create(&self.create_facts(*vid, name, head)?).map_err(OperationError::Refused)?;
                if accept != AcceptKind::Again {
                    self.check_unused(*vid, name, head)?;
                }
                // An operation that is present is confirmed. Only an operation that is certainly missing is
                // refused.
                if accept != AcceptKind::Again {
                    if !self.core.has_room_for(self.new_bytes.saturating_add(head.size)) {
                        return Err(OperationError::Refused(MemberAnswer::NoSpace));
                    }
                    self.new_bytes = self.new_bytes.saturating_add(head.size);
                }
                if accept != AcceptKind::Again && self.has_everything {
                    self.check_quota(*vid, head.size)?;
                }
                self.create(accept, *vid, name, head, body)
            }
            GroupOperation::Confirm { vid, name, head } => {
                self.check_no_removal(*vid)?;
                self.check_id(head.fid)?;
                decide_confirm(&self.create_facts(*vid, name, head)?).map_err(OperationError::Refused)?;
                self.journal(JournalAction::Create, *vid, name, head.fid, head.op);
                Ok(())
            }
            GroupOperation::Delete { vid, name, fid, op } => {
                let created_ms = self.created_ms(*vid, name, *fid, *op)?;
                // A file that was created while clocks were ahead has an id in the future.
                if created_ms == 0 {
                    self.check_id(*fid)?;
                }
                let facts = DeleteFacts {
                    now_ms: self.now_ms,
                    op: *op,
                    is_volume_gone: self.is_removed(*vid)?,
                    has_tombstone: self.has_tombstone(*vid, name, *fid)?,
                    is_sealed: self.seal.is_sealed(*op),
                    created_ms,
                };
                match decide_delete(&facts).map_err(OperationError::Refused)? {
                    AcceptKind::Done => Ok(()),
                    AcceptKind::Again => {
                        self.journal(JournalAction::Delete, *vid, name, *fid, *op);
                        Ok(())
                    }
                    AcceptKind::Apply | AcceptKind::ApplyBeside => {
                        self.check_owner(*vid, name, *fid)?;
                        self.delete(*vid, name, *fid, *op)
                    }
                }
            }
            GroupOperation::CopyCreate { vid, name, head, body, is_journalled } => {
                match decide_copy(&self.create_facts(*vid, name, head)?).map_err(OperationError::Refused)? {
                    AcceptKind::Again | AcceptKind::Done => {}
                    accept => self.take(accept, *vid, name, head, body)?,
                }
                // Also for a deleted file: every member has every operation.
                if *is_journalled {
                    self.journal(JournalAction::Create, *vid, name, head.fid, head.op);
                }
                Ok(())
            }
            GroupOperation::CopyDelete { vid, name, fid, op } => {
                match self.has_tombstone(*vid, name, *fid)? {
                    true => {
                        self.journal(JournalAction::Delete, *vid, name, *fid, *op);
                        Ok(())
                    }
                    false => self.delete(*vid, name, *fid, *op),
                }
            }
            GroupOperation::RecordCreate { vid, name, fid, op } => {
                // A member with the create, but neither file nor tombstone, would count as having everything.
                if !self.has_tombstone(*vid, name, *fid)? && !self.is_removed(*vid)? {
                    return Err(OperationError::Refused(MemberAnswer::Missing));
                }
                self.journal(JournalAction::Create, *vid, name, *fid, *op);
                Ok(())
            }
        }
    }

    /// Removes an operation that can never complete: the file of a create, or the tombstone of a delete.
    /// `stays_deleted`: the file has another delete, which stays.
    pub(super) fn undo(&mut self, entry: &JournalEntry, stays_deleted: bool) -> Result<(), OperationError> {
        if entry.is_create && !self.has_tombstone(entry.vid, &entry.name, entry.fid)? {
            // Its name is free for a file beside it.
            self.delete(entry.vid, &entry.name, entry.fid, entry.op)?;
        }
        self.batch.delete(&self.core.own.journal, &entry.key);
        if !stays_deleted {
            self.delete_tombstones(entry)?;
        }
        self.changed_buckets.insert(Bucket::of(entry.op));
        Ok(())
    }

    /// Deletes the tombstones of a file, including those of this batch.
    fn delete_tombstones(&mut self, entry: &JournalEntry) -> Result<(), OperationError> {
        let address = FileAddress::of_request(entry.vid, &entry.name);
        let deleted = file_ids::delete_tombstone(self.core, &mut self.batch, self.group, address, entry.fid);
        self.is_split |= deleted.map_err(OperationError::Failed)?;
        for (key, tombstone) in self.overlay.tombstones_of(entry.fid) {
            if address.may_equal(tombstone.address()) {
                self.batch.delete(&self.core.own.tombstones, key);
            }
        }
        Ok(())
    }

    fn check_id(&self, fid: FileId) -> Result<(), OperationError> {
        check_file_id(self.now_ms, fid).map_err(OperationError::Refused)
    }

    /// Refuses a new file whose id another file has (VOL-72), or whose id is later than its create's.
    fn check_unused(&self, vid: VolumeId, name: &[u8], head: &NewHead) -> Result<(), OperationError> {
        let address = FileAddress { vid, name: Some(name) };
        let fid = head.fid;
        let has_upload = self.core.uploads.lock().get(vid, fid).is_some();
        // A small file with a fresh id has no pieces to share, and the journal knows the other file.
        let may_share = head.size > INLINE_BYTES || !is_fresh(fid, self.now_ms);
        let is_foreign = head.fid.ms() > head.op.ms()
            || self.overlay.has_another(address, fid)
            // For an upload, this was checked at its start.
            || (!has_upload
                && ((may_share && file_ids::has_pieces(self.core, vid, fid).map_err(OperationError::Failed)?)
                    || self.belongs_to_another(address, fid)?));
        match is_foreign {
            true => Err(OperationError::Refused(MemberAnswer::OtherFile)),
            false => Ok(()),
        }
    }

    /// Refuses to delete a file that another volume or name has. An unknown file may arrive later.
    fn check_owner(&self, vid: VolumeId, requested: &Bytes, fid: FileId) -> Result<(), OperationError> {
        let name = self.name_of(vid, requested, fid)?;
        let is_live = self.live(vid, &name)?.is_some_and(|live| live.fid == fid);
        if is_live || self.sibling(vid, &name, fid)?.is_some() {
            return Ok(());
        }
        let address = FileAddress::of_request(vid, &name);
        // No create with such an id arrives any more, except for an upload that began here.
        let is_final = self.has_everything && !is_fresh(fid, self.now_ms) && !self.is_staged(vid, fid);
        match self.overlay.has_another(address, fid)
            || self.belongs_to_another(address, fid)?
            || (is_final && self.is_deleted(fid)?)
        {
            true => Err(OperationError::Refused(MemberAnswer::OtherFile)),
            false => Ok(()),
        }
    }

    /// Refuses a create, to be repeated, while the removal of its volume is undecided.
    fn check_no_removal(&self, vid: VolumeId) -> Result<(), OperationError> {
        match self.volume(vid)?.is_removing {
            true => Err(OperationError::Refused(MemberAnswer::Busy)),
            false => Ok(()),
        }
    }
}

impl GroupBatch<'_> {
    fn create(
        &mut self,
        accept: AcceptKind,
        vid: VolumeId,
        name: &Bytes,
        new: &NewHead,
        body: &BodySource,
    ) -> Result<(), OperationError> {
        match accept {
            AcceptKind::Done => return Ok(()),
            AcceptKind::Again => {}
            AcceptKind::Apply | AcceptKind::ApplyBeside => self.take(accept, vid, name, new, body)?,
        }
        self.journal(JournalAction::Create, vid, name, new.fid, new.op);
        Ok(())
    }

    /// Writes the rows of a new file, except its journal row.
    fn take(
        &mut self,
        accept: AcceptKind,
        vid: VolumeId,
        name: &Bytes,
        new: &NewHead,
        body: &BodySource,
    ) -> Result<(), OperationError> {
        self.has_files = true;
        // Staged pieces under the id belong to this file or to none.
        let is_attached = matches!(body, BodySource::Attached(_));
        if is_attached {
            upload_rows::drop_upload(self.core, vid, new.fid).map_err(OperationError::Failed)?;
        }
        let is_beside = accept == AcceptKind::ApplyBeside;
        let key = match is_beside {
            false => keys::named(vid, name),
            true => keys::sibling(vid, name, new.fid),
        };
        let head = FileHead {
            fid: new.fid,
            op: new.op,
            size: new.size,
            crc32c: new.crc32c,
            metadata: new.metadata.clone(),
            inline: self.body(vid, new, body)?,
        };
        let space = match is_beside {
            true => &self.core.own.siblings,
            false => &self.core.spaces.files,
        };
        self.batch.put(space, &key, head.row(&key));
        self.count(vid, new.size as i64);
        self.overlay.set(is_beside, key, Some(head));
        self.core.recent.lock().note(self.group, new.fid, self.now_ms);
        Ok(())
    }

    /// Refuses a create beyond the volume's quota, by the files on this member.
    fn check_quota(&mut self, vid: VolumeId, size: u64) -> Result<(), OperationError> {
        let Some(quota) = self.volume(vid)?.quota else {
            return Ok(());
        };
        let known = self.core.usage.get(vid);
        let used = match known {
            Some(used) => used,
            None => {
                let mut used = heads::live_bytes(self.core, vid).map_err(OperationError::Failed)?;
                // Rows of this batch are not stored yet.
                let added = self.added.iter().filter(|(of, _)| *of == vid).map(|(_, bytes)| bytes);
                used = used.saturating_add_signed(added.sum());
                self.core.usage.set(vid, used);
                used
            }
        };
        match used.saturating_add(size) > quota {
            true => Err(OperationError::Refused(MemberAnswer::QuotaExceeded { quota, used, wanted: size })),
            false => Ok(()),
        }
    }

    fn count(&mut self, vid: VolumeId, bytes: i64) {
        self.added.push((vid, bytes));
        self.core.usage.add(vid, bytes);
    }

    /// Adds the rows of a body. Returns the bytes for the head.
    fn body(
        &mut self,
        vid: VolumeId,
        new: &NewHead,
        body: &BodySource,
    ) -> Result<Option<Bytes>, OperationError> {
        match body {
            BodySource::Attached(bytes) if new.size <= INLINE_BYTES => return Ok(Some(bytes.clone())),
            BodySource::Attached(bytes) => {
                let single_block = is_single_block(new.size);
                add_piece(&self.core.spaces, &mut self.batch, vid, new.fid, 0, bytes.clone(), single_block);
            }
            BodySource::Staged => self.finish_upload(vid, new, &UploadOrigin::default())?,
            BodySource::StagedBy(origin) => self.finish_upload(vid, new, origin)?,
        }
        Ok(None)
    }

    /// Turns the pieces of an upload into the pieces of its file: exactly those of the file.
    fn finish_upload(
        &mut self,
        vid: VolumeId,
        new: &NewHead,
        origin: &UploadOrigin,
    ) -> Result<(), OperationError> {
        let missing = OperationError::Refused(MemberAnswer::Missing);
        let is_its_own = |upload: &StagedUpload| upload.origin == *origin && !upload.is_legacy;
        if !self.core.uploads.lock().get(vid, new.fid).is_some_and(is_its_own) {
            return Err(missing);
        }
        let pieces = upload_rows::staged_pieces(self.core, vid, new.fid).map_err(OperationError::Failed)?;
        if new.size <= INLINE_BYTES || !self.has_all_pieces(vid, new, &pieces)? {
            return Err(missing);
        }
        let (spaces, count) = (&self.core.spaces, pieces_of(new.size));
        let indices: Vec<u32> = pieces.keys().copied().collect();
        let behind: Vec<u32> = pieces.range(count..).map(|(index, _)| *index).collect();
        delete_piece_rows(&mut self.batch, &[&spaces.uploads], (vid, new.fid), &indices);
        delete_piece_rows(&mut self.batch, &[&spaces.extents, &spaces.sums], (vid, new.fid), &behind);
        self.batch.delete(&spaces.uploads, &keys::upload(vid, new.fid));
        self.finished.push((vid, new.fid));
        Ok(())
    }

    fn delete(
        &mut self,
        vid: VolumeId,
        requested: &Bytes,
        fid: FileId,
        op: OpId,
    ) -> Result<(), OperationError> {
        let name = &self.name_of(vid, requested, fid)?;
        let key = keys::named(vid, name);
        let live = self.live(vid, name)?.filter(|live| live.fid == fid);
        // Looked up before the first row: an operation that fails must leave nothing in the batch.
        let mut next = None;
        for sibling in self.siblings(vid, name)? {
            // A deleted file takes no name.
            if sibling.fid != fid && !self.has_tombstone(vid, name, sibling.fid)? {
                next = Some(sibling);
                break;
            }
        }
        let beside = self.sibling(vid, name, fid)?;
        // Pieces of an upload that becomes a file with this batch are deleted as the file's.
        if self.is_staged(vid, fid) && !self.finished.contains(&(vid, fid)) {
            upload_rows::drop_upload(self.core, vid, fid).map_err(OperationError::Failed)?;
        }
        let tombstone = self.tombstone_key(vid, name, fid)?;
        if let Some(head) = live.as_ref().or(beside.as_ref()) {
            self.count(vid, -(head.size as i64));
        }
        if let Some(head) = &live {
            self.batch.delete(&self.core.spaces.files, &key);
            delete_pieces(&self.core.spaces, &mut self.batch, vid, fid, head.size);
            self.overlay.set(false, key.clone(), None);
            if let Some(next) = next {
                self.promote(vid, name, key, next);
            }
        } else if let Some(head) = beside {
            let beside = keys::sibling(vid, name, fid);
            self.batch.delete(&self.core.own.siblings, &beside);
            delete_pieces(&self.core.spaces, &mut self.batch, vid, fid, head.size);
            self.overlay.set(true, beside, None);
        }
        let row = TombstoneRow { vid, op: op.0, name: name.clone() };
        self.batch.put(&self.core.own.tombstones, &tombstone, row.row(&tombstone));
        self.overlay.add_tombstone(fid, tombstone, row);
        // With the name of the request: the journals of all members must be equal.
        self.journal(JournalAction::Delete, vid, requested, fid, op);
        Ok(())
    }

    /// Gives a free name to the lowest of the files beside it.
    fn promote(&mut self, vid: VolumeId, name: &[u8], key: Vec<u8>, next: FileHead) {
        let beside = keys::sibling(vid, name, next.fid);
        self.batch.delete(&self.core.own.siblings, &beside);
        self.batch.put(&self.core.spaces.files, &key, next.row(&key));
        self.overlay.set(true, beside, None);
        self.overlay.set(false, key, Some(next));
    }

    /// Whether all pieces of a staged body are present and match the head. A power loss can keep the first
    /// pieces and lose the last. A piece and its rows are one batch, and it has one checksum per block.
    fn has_all_pieces(
        &self,
        vid: VolumeId,
        new: &NewHead,
        pieces: &BTreeMap<u32, StagedPieceRow>,
    ) -> Result<bool, OperationError> {
        let mut sum = 0;
        for index in 0..pieces_of(new.size) {
            let key = keys::piece(vid, new.fid, index);
            let len = piece_len(new.size, index);
            let sums = self.core.spaces.sums.get(&key).map_err(failed)?;
            let is_whole = sums.is_some_and(|sums| parse_sums(&key, &sums, len).is_ok());
            let Some(piece) = pieces.get(&index).filter(|piece| is_whole && u64::from(piece.len) == len)
            else {
                return Ok(false);
            };
            sum = crc32c_joined(sum, piece.crc32c, piece.len as usize);
        }
        Ok(sum == new.crc32c)
    }

    fn journal(&mut self, did: JournalAction, vid: VolumeId, name: &Bytes, fid: FileId, op: OpId) {
        let key = keys::journal(self.group, op);
        let row = JournalRow { did, vid, fid, name: name.clone() };
        self.batch.put(&self.core.own.journal, &key, row.row(&key));
        if self.seal.is_sealed(op) {
            self.changed_buckets.insert(Bucket::of(op));
        }
    }

    /// Commits the batch durably.
    pub(super) fn commit(self) -> Result<(), VolumeError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let (core, group, changed_buckets, added) = (self.core, self.group, self.changed_buckets, self.added);
        let finished = self.finished;
        let committed = match self.has_files {
            false => core.commit_essential(self.batch, Durability::Device),
            true => core.fence.check().and_then(|()| core.outcome(self.batch.commit(Durability::Device))),
        };
        if committed.is_err() {
            // It was refused, or the disk accepts no more writes and the counts do not matter.
            added.iter().for_each(|&(vid, bytes)| core.usage.add(vid, -bytes));
            return committed;
        }
        let mut digests = core.digests.lock();
        changed_buckets.iter().for_each(|&bucket| digests.forget(group, bucket));
        drop(digests);
        let mut uploads = core.uploads.lock();
        finished.iter().for_each(|&(vid, fid)| uploads.remove(vid, fid));
        Ok(())
    }
}

fn failed(error: copal_kv::Error) -> OperationError {
    OperationError::Failed(of_engine(&error))
}
