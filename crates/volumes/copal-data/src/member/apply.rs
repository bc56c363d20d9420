//! Operations of one group as one atomic batch: facts, decision, rows, journal.

use super::{
    facts::Overlay,
    file_ids::Called,
    journal_entry::JournalEntry,
    operation::{Body, NewHead, NotHeld, Operation},
    recent_files::is_fresh,
    rows::MemberCore,
    upload_rows::delete_piece_rows,
    uploads::{Upload, UploadOrigin},
};
use crate::{
    error::of_engine,
    format::{
        Did, FileHead, INLINE_BYTES, JournalRow, MemberRow, StagedPieceRow, TombRow, parse_sums, piece_len,
        pieces_of,
    },
    keys,
    local::{add_piece, delete_pieces, is_alone},
};
use bytes::Bytes;
use copal_codec::crc32c_joined;
use copal_kv::{Batch, Durability};
use copal_volume::{
    FileId, OpId, UNKNOWN_FILE_NAME, VolumeError, VolumeId,
    group::{
        Accept, Answer, Bucket, Closing, CreateFacts, DeleteFacts, GroupId, MAX_OP_AHEAD_MS, check_file_id,
        decide_confirm, decide_create, decide_delete, decide_union,
    },
};
use std::collections::{BTreeMap, BTreeSet};

/// A batch that only brings a full disk forward takes no more than this of what is kept back.
const ESSENTIAL_BYTES: u64 = 512 << 10;

/// A batch in the making.
pub(super) struct Batching<'a> {
    core: &'a MemberCore,
    group: GroupId,
    /// Whether the member has everything of the group, and so no file beside another of its name.
    has_everything: bool,
    closing: Closing,
    /// Closed buckets to which the batch adds: their digests are others from then on.
    late: BTreeSet<Bucket>,
    now_ms: u64,
    batch: Batch,
    overlay: Overlay,
    /// What the batch adds to the bytes of volumes that have a quota.
    added: Vec<(VolumeId, i64)>,
    /// What follows has to come in another batch.
    pub(super) is_split: bool,
    /// Uploads that become files with the batch.
    finished: Vec<(VolumeId, FileId)>,
    /// Bytes of files that are new.
    new_bytes: u64,
    /// Whether it holds a file: without one it is essential, for it brings a full disk forward.
    has_files: bool,
}

impl<'a> Batching<'a> {
    pub(super) fn new(core: &'a MemberCore, group: GroupId, member: &MemberRow) -> Batching<'a> {
        Batching {
            core,
            group,
            has_everything: member.has_everything(),
            closing: member.closing,
            late: BTreeSet::new(),
            now_ms: core.clock.now_ms(),
            batch: core.kv.batch(),
            overlay: Overlay::default(),
            added: Vec::new(),
            is_split: false,
            finished: Vec::new(),
            new_bytes: 0,
            has_files: false,
        }
    }

    /// Whether another operation may have no room beside those that are in it.
    pub(super) fn is_full(&self) -> bool {
        let bytes = self.batch.memory_bytes();
        bytes > self.core.kv.batch_bytes() / 2 || !self.has_files && bytes > ESSENTIAL_BYTES
    }

    /// Decides an operation, and adds its rows.
    pub(super) fn add(&mut self, operation: &Operation) -> Result<(), NotHeld> {
        match operation {
            Operation::Create { vid, name, head, body } => {
                self.may_create(*vid)?;
                self.check_id(head.fid)?;
                let accept =
                    decide_create(&self.create_facts(*vid, name, head)?).map_err(NotHeld::Refused)?;
                if accept != Accept::Again {
                    self.must_be_unused(*vid, name, head)?;
                }
                // What it has already it confirms: refused is only what it certainly lacks.
                if accept != Accept::Again {
                    if !self.core.has_room_for(self.new_bytes.saturating_add(head.size)) {
                        return Err(NotHeld::Refused(Answer::NoSpace));
                    }
                    self.new_bytes = self.new_bytes.saturating_add(head.size);
                }
                if accept != Accept::Again && self.has_everything {
                    self.check_quota(*vid, head.size)?;
                }
                self.create(accept, *vid, name, head, body)
            }
            Operation::Confirm { vid, name, head } => {
                self.may_create(*vid)?;
                self.check_id(head.fid)?;
                decide_confirm(&self.create_facts(*vid, name, head)?).map_err(NotHeld::Refused)?;
                self.journal(Did::Create, *vid, name, head.fid, head.op);
                Ok(())
            }
            Operation::Delete { vid, name, fid, op } => {
                let created_ms = self.created_ms(*vid, name, *fid, *op)?;
                // A file that was created while clocks were ahead has an id from the future.
                if created_ms == 0 {
                    self.check_id(*fid)?;
                }
                let facts = DeleteFacts {
                    now_ms: self.now_ms,
                    op: *op,
                    is_volume_gone: self.is_gone(*vid)?,
                    is_buried: self.is_buried(*vid, name, *fid)?,
                    is_closed: self.closing.is_closed(*op),
                    created_ms,
                };
                match decide_delete(&facts).map_err(NotHeld::Refused)? {
                    Accept::Done => Ok(()),
                    Accept::Again => {
                        self.journal(Did::Delete, *vid, name, *fid, *op);
                        Ok(())
                    }
                    Accept::Apply | Accept::ApplyBeside => {
                        self.must_be_its_own(*vid, name, *fid)?;
                        self.delete(*vid, name, *fid, *op)
                    }
                }
            }
            Operation::TakeOver { vid, name, head, body, is_journalled } => {
                match decide_union(&self.create_facts(*vid, name, head)?).map_err(NotHeld::Refused)? {
                    Accept::Again | Accept::Done => {}
                    accept => self.take(accept, *vid, name, head, body)?,
                }
                // Also of a file that is gone again: every member has every operation.
                if *is_journalled {
                    self.journal(Did::Create, *vid, name, head.fid, head.op);
                }
                Ok(())
            }
            Operation::TakeOverDelete { vid, name, fid, op } => match self.is_buried(*vid, name, *fid)? {
                true => {
                    self.journal(Did::Delete, *vid, name, *fid, *op);
                    Ok(())
                }
                false => self.delete(*vid, name, *fid, *op),
            },
            Operation::Record { vid, name, fid, op } => {
                // Who has the create and neither file nor delete would count as having everything.
                if !self.is_buried(*vid, name, *fid)? && !self.is_gone(*vid)? {
                    return Err(NotHeld::Refused(Answer::Missing));
                }
                self.journal(Did::Create, *vid, name, *fid, *op);
                Ok(())
            }
        }
    }

    /// Takes an operation away that can never hold: the file that it created, or what it buried.
    /// `stays_buried`: another delete of the file stays.
    pub(super) fn take_away(&mut self, entry: &JournalEntry, stays_buried: bool) -> Result<(), NotHeld> {
        if entry.is_create && !self.is_buried(entry.vid, &entry.name, entry.fid)? {
            // Its name is free for a file beside it.
            self.delete(entry.vid, &entry.name, entry.fid, entry.op)?;
        }
        self.batch.delete(&self.core.own.journal, &entry.key);
        if !stays_buried {
            self.unbury(entry)?;
        }
        self.late.insert(Bucket::of(entry.op));
        Ok(())
    }

    /// Takes the tombstones of a file away again, those that this batch has written as well.
    fn unbury(&mut self, entry: &JournalEntry) -> Result<(), NotHeld> {
        let called = Called::told(entry.vid, &entry.name);
        let deleted = self.core.delete_tomb(&mut self.batch, self.group, called, entry.fid);
        self.is_split |= deleted.map_err(NotHeld::Failed)?;
        for (key, tomb) in self.overlay.tombs_of(entry.fid) {
            if called.may_be(tomb.called()) {
                self.batch.delete(&self.core.own.tombs, key);
            }
        }
        Ok(())
    }

    fn check_id(&self, fid: FileId) -> Result<(), NotHeld> {
        check_file_id(self.now_ms, fid).map_err(NotHeld::Refused)
    }

    /// Refuses a new file whose id another file has (VOL-72), or which was drawn behind its create's.
    fn must_be_unused(&self, vid: VolumeId, name: &[u8], head: &NewHead) -> Result<(), NotHeld> {
        let called = Called { vid, name: Some(name) };
        let fid = head.fid;
        let has_upload = self.core.uploads.lock().get(vid, fid).is_some();
        // A small file of an id that is fresh shares nothing, and the journal knows the other.
        let may_share = head.size > INLINE_BYTES || !is_fresh(fid, self.now_ms);
        let is_anothers = head.fid.ms() > head.op.ms()
            || self.overlay.has_another(called, fid)
            // Of an upload it was looked at when that began.
            || (!has_upload
                && ((may_share && self.core.has_pieces(vid, fid).map_err(NotHeld::Failed)?)
                    || self.belongs_to_another(called, fid)?));
        match is_anothers {
            true => Err(NotHeld::Refused(Answer::OtherFile)),
            false => Ok(()),
        }
    }

    /// Refuses to delete a file that another volume or name has. One that is unknown may yet come.
    fn must_be_its_own(&self, vid: VolumeId, told: &Bytes, fid: FileId) -> Result<(), NotHeld> {
        let name = self.name_of(vid, told, fid)?;
        let is_live = self.live(vid, &name)?.is_some_and(|live| live.fid == fid);
        if is_live || self.sibling(vid, &name, fid)?.is_some() {
            return Ok(());
        }
        let called = Called::told(vid, &name);
        // Of an id that is not fresh no create comes any more, but of an upload that began here.
        let is_over = self.has_everything && !is_fresh(fid, self.now_ms) && !self.is_staged(vid, fid);
        match self.overlay.has_another(called, fid)
            || self.belongs_to_another(called, fid)?
            || (is_over && self.is_deleted(fid)?)
        {
            true => Err(NotHeld::Refused(Answer::OtherFile)),
            false => Ok(()),
        }
    }

    /// Whether any volume and name has deleted a file of this id.
    fn is_deleted(&self, fid: FileId) -> Result<bool, NotHeld> {
        let stored = self.core.tombs_of(self.group, fid).map_err(NotHeld::Failed)?;
        Ok(!stored.is_empty() || !self.overlay.tombs_of(fid).is_empty())
    }

    fn belongs_to_another(&self, called: Called<'_>, fid: FileId) -> Result<bool, NotHeld> {
        let found = self.core.belongs_to_another(self.group, called, fid, self.now_ms);
        found.map_err(NotHeld::Failed)
    }

    /// A create that meets a removal waits for it to be decided.
    fn may_create(&self, vid: VolumeId) -> Result<(), NotHeld> {
        match self.core.is_removing(vid).map_err(NotHeld::Failed)? {
            true => Err(NotHeld::Refused(Answer::Busy)),
            false => Ok(()),
        }
    }

    /// When a file was created that a delete from ahead of the clock names; 0: it is not live here. Others
    /// are not looked up.
    fn created_ms(&self, vid: VolumeId, name: &[u8], fid: FileId, delete: OpId) -> Result<u64, NotHeld> {
        if delete.ms() <= self.now_ms.saturating_add(MAX_OP_AHEAD_MS) {
            return Ok(0);
        }
        let live = self.live(vid, name)?.filter(|live| live.fid == fid);
        let held = match live {
            Some(live) => Some(live),
            None => self.sibling(vid, name, fid)?,
        };
        Ok(held.map_or(0, |held| held.op.ms()))
    }

    fn create_facts(&self, vid: VolumeId, name: &[u8], head: &NewHead) -> Result<CreateFacts, NotHeld> {
        let live = self.live(vid, name)?;
        let is_beside = self.sibling(vid, name, head.fid)?.is_some();
        Ok(CreateFacts {
            has_everything: self.has_everything,
            now_ms: self.now_ms,
            op: head.op,
            fid: head.fid,
            is_volume_gone: self.is_gone(vid)?,
            is_buried: self.is_buried(vid, name, head.fid)?,
            is_closed: self.closing.is_closed(head.op),
            is_held: is_beside || live.as_ref().is_some_and(|live| live.fid == head.fid),
            other: live.map(|live| live.fid).filter(|&fid| fid != head.fid),
        })
    }
}

impl Batching<'_> {
    fn create(
        &mut self,
        accept: Accept,
        vid: VolumeId,
        name: &Bytes,
        new: &NewHead,
        body: &Body,
    ) -> Result<(), NotHeld> {
        match accept {
            Accept::Done => return Ok(()),
            Accept::Again => {}
            Accept::Apply | Accept::ApplyBeside => self.take(accept, vid, name, new, body)?,
        }
        self.journal(Did::Create, vid, name, new.fid, new.op);
        Ok(())
    }

    /// Writes the rows of a new file, all but its journal.
    fn take(
        &mut self,
        accept: Accept,
        vid: VolumeId,
        name: &Bytes,
        new: &NewHead,
        body: &Body,
    ) -> Result<(), NotHeld> {
        self.has_files = true;
        // What was staged under the id is of this file, or of nobody's any more.
        let is_here = matches!(body, Body::Here(_));
        if is_here {
            self.core.drop_upload(vid, new.fid).map_err(NotHeld::Failed)?;
        }
        let is_beside = accept == Accept::ApplyBeside;
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

    /// Refuses what would go beyond the volume's quota, by the files that this member has.
    fn check_quota(&mut self, vid: VolumeId, size: u64) -> Result<(), NotHeld> {
        let Some(quota) = self.core.quota(vid).map_err(NotHeld::Failed)? else {
            return Ok(());
        };
        let known = self.core.used.lock().get(&vid).copied();
        let used = match known {
            Some(used) => used,
            None => {
                let mut used = self.core.live_bytes(vid).map_err(NotHeld::Failed)?;
                // What the batch has added so far is in no row yet.
                let added = self.added.iter().filter(|(of, _)| *of == vid).map(|(_, bytes)| bytes);
                used = used.saturating_add_signed(added.sum());
                self.core.used.lock().insert(vid, used);
                used
            }
        };
        match used.saturating_add(size) > quota {
            true => Err(NotHeld::Refused(Answer::QuotaExceeded { quota, used, wanted: size })),
            false => Ok(()),
        }
    }

    fn count(&mut self, vid: VolumeId, bytes: i64) {
        self.added.push((vid, bytes));
        self.core.count(vid, bytes);
    }

    /// Adds the rows of a body; the bytes that go into the head.
    fn body(&mut self, vid: VolumeId, new: &NewHead, body: &Body) -> Result<Option<Bytes>, NotHeld> {
        match body {
            Body::Here(bytes) if new.size <= INLINE_BYTES => return Ok(Some(bytes.clone())),
            Body::Here(bytes) => {
                let alone = is_alone(new.size);
                add_piece(&self.core.spaces, &mut self.batch, vid, new.fid, 0, bytes.clone(), alone);
            }
            Body::Staged => self.finish_upload(vid, new, &UploadOrigin::default())?,
            Body::StagedBy(origin) => self.finish_upload(vid, new, origin)?,
        }
        Ok(None)
    }

    /// Makes the pieces of an upload those of its file: all that the file has, and no more.
    fn finish_upload(&mut self, vid: VolumeId, new: &NewHead, origin: &UploadOrigin) -> Result<(), NotHeld> {
        let missing = NotHeld::Refused(Answer::Missing);
        let is_its_own = |upload: &Upload| upload.origin == *origin && !upload.is_legacy;
        if !self.core.uploads.lock().get(vid, new.fid).is_some_and(is_its_own) {
            return Err(missing);
        }
        let pieces = self.core.staged_pieces(vid, new.fid).map_err(NotHeld::Failed)?;
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

    fn delete(&mut self, vid: VolumeId, told: &Bytes, fid: FileId, op: OpId) -> Result<(), NotHeld> {
        let name = &self.name_of(vid, told, fid)?;
        let key = keys::named(vid, name);
        let live = self.live(vid, name)?.filter(|live| live.fid == fid);
        // Looked up before the first row: an operation that fails half way must leave nothing in the batch.
        let mut heir = None;
        for sibling in self.siblings(vid, name)? {
            // Nothing that is deleted takes a name.
            if sibling.fid != fid && !self.is_buried(vid, name, sibling.fid)? {
                heir = Some(sibling);
                break;
            }
        }
        let beside = self.sibling(vid, name, fid)?;
        // Those of an upload that becomes a file with this batch go as the file's.
        if self.is_staged(vid, fid) && !self.finished.contains(&(vid, fid)) {
            self.core.drop_upload(vid, fid).map_err(NotHeld::Failed)?;
        }
        let tomb = self.tomb_key(vid, name, fid)?;
        if let Some(head) = live.as_ref().or(beside.as_ref()) {
            self.count(vid, -(head.size as i64));
        }
        if let Some(head) = &live {
            self.batch.delete(&self.core.spaces.files, &key);
            delete_pieces(&self.core.spaces, &mut self.batch, vid, fid, head.size);
            self.overlay.set(false, key.clone(), None);
            if let Some(heir) = heir {
                self.promote(vid, name, key, heir);
            }
        } else if let Some(head) = beside {
            let beside = keys::sibling(vid, name, fid);
            self.batch.delete(&self.core.own.siblings, &beside);
            delete_pieces(&self.core.spaces, &mut self.batch, vid, fid, head.size);
            self.overlay.set(true, beside, None);
        }
        let row = TombRow { vid, op: op.0, name: name.clone() };
        self.batch.put(&self.core.own.tombs, &tomb, row.row(&tomb));
        self.overlay.bury(fid, tomb, row);
        // As it was told: the journals of all members are to be equal.
        self.journal(Did::Delete, vid, told, fid, op);
        Ok(())
    }

    /// The name of a file that is deleted by its id alone. Buried under another than its own it would hide
    /// where it lies, and be there again once the burial is forgotten (VOL-60). Reads all heads of the
    /// volume; who settles a create asks seldom.
    fn name_of(&self, vid: VolumeId, told: &Bytes, fid: FileId) -> Result<Bytes, NotHeld> {
        if told != UNKNOWN_FILE_NAME {
            return Ok(told.clone());
        }
        if let Some(name) = self.overlay.name_of(vid, fid) {
            return Ok(name);
        }
        let found = self.core.named(vid, fid).map_err(NotHeld::Failed)?;
        Ok(found.map_or_else(|| told.clone(), |(name, _)| name))
    }

    /// The name is free again: the lowest of the files beside it takes it.
    fn promote(&mut self, vid: VolumeId, name: &[u8], key: Vec<u8>, heir: FileHead) {
        let beside = keys::sibling(vid, name, heir.fid);
        self.batch.delete(&self.core.own.siblings, &beside);
        self.batch.put(&self.core.spaces.files, &key, heir.row(&key));
        self.overlay.set(true, beside, None);
        self.overlay.set(false, key, Some(heir));
    }

    /// Whether every piece of a staged body is here, and they are the body that the head tells of: a cut of
    /// power takes the last of them and leaves the first. A piece and its rows are one batch, and its sums
    /// are of as many blocks as it has.
    fn has_all_pieces(
        &self,
        vid: VolumeId,
        new: &NewHead,
        pieces: &BTreeMap<u32, StagedPieceRow>,
    ) -> Result<bool, NotHeld> {
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

    fn is_staged(&self, vid: VolumeId, fid: FileId) -> bool {
        self.core.uploads.lock().get(vid, fid).is_some()
    }

    /// The key under which a delete of a file stands. Where another volume or name has deleted a file of this
    /// id, it stands behind that one: neither takes the other's place.
    fn tomb_key(&self, vid: VolumeId, name: &Bytes, fid: FileId) -> Result<Bytes, NotHeld> {
        let first = keys::tomb(self.group, fid);
        let stored = self.core.tombs_of(self.group, fid).map_err(NotHeld::Failed)?;
        let mut all = stored.iter().chain(self.overlay.tombs_of(fid));
        let called = Called::told(vid, name);
        let mut is_taken = false;
        let own = all.find(|(key, tomb)| {
            is_taken |= key[..] == first[..];
            called.may_be(tomb.called())
        });
        Ok(match own {
            Some((key, _)) => key.clone(),
            None if is_taken => keys::tomb_of_other(self.group, fid, vid, name).into(),
            None => Bytes::copy_from_slice(&first),
        })
    }

    fn journal(&mut self, did: Did, vid: VolumeId, name: &Bytes, fid: FileId, op: OpId) {
        let key = keys::journal(self.group, op);
        let row = JournalRow { did, vid, fid, name: name.clone() };
        self.batch.put(&self.core.own.journal, &key, row.row(&key));
        if self.closing.is_closed(op) {
            self.late.insert(Bucket::of(op));
        }
    }

    /// Makes all of it durable.
    pub(super) fn commit(self) -> Result<(), VolumeError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let (core, group, late, added) = (self.core, self.group, self.late, self.added);
        let finished = self.finished;
        let committed = match self.has_files {
            false => core.commit_essential(self.batch, Durability::Device),
            true => core.writable().and_then(|()| core.outcome(self.batch.commit(Durability::Device))),
        };
        if committed.is_err() {
            // Refused, or the disk takes nothing more and its counts are no longer asked for.
            added.iter().for_each(|&(vid, bytes)| core.count(vid, -bytes));
            return committed;
        }
        let mut digests = core.digests.lock();
        late.iter().for_each(|&bucket| digests.forget(group, bucket));
        drop(digests);
        let mut uploads = core.uploads.lock();
        finished.iter().for_each(|&(vid, fid)| uploads.remove(vid, fid));
        Ok(())
    }

    // ---- what the rows say, this batch included

    /// The live file of a name.
    fn live(&self, vid: VolumeId, name: &[u8]) -> Result<Option<FileHead>, NotHeld> {
        let key = keys::named(vid, name);
        match self.overlay.get(false, &key) {
            Some(known) => Ok(known.clone()),
            None => self.core.head(&self.core.spaces.files, &key).map_err(NotHeld::Failed),
        }
    }

    /// A file beside the live one of its name.
    fn sibling(&self, vid: VolumeId, name: &[u8], fid: FileId) -> Result<Option<FileHead>, NotHeld> {
        if self.has_everything {
            return Ok(None);
        }
        let key = keys::sibling(vid, name, fid);
        match self.overlay.get(true, &key) {
            Some(known) => Ok(known.clone()),
            None => self.core.head(&self.core.own.siblings, &key).map_err(NotHeld::Failed),
        }
    }

    /// All files beside the live one of a name, the lowest first.
    fn siblings(&self, vid: VolumeId, name: &[u8]) -> Result<Vec<FileHead>, NotHeld> {
        if self.has_everything {
            return Ok(Vec::new());
        }
        let stored = self.core.siblings(vid, name).map_err(NotHeld::Failed)?;
        Ok(self.overlay.siblings(&keys::named(vid, name), stored))
    }

    fn is_buried(&self, vid: VolumeId, name: &[u8], fid: FileId) -> Result<bool, NotHeld> {
        let called = Called::told(vid, name);
        let mut tombs = self.overlay.tombs_of(fid).iter();
        if tombs.any(|(_, tomb)| called.may_be(tomb.called())) {
            return Ok(true);
        }
        self.core.is_buried(self.group, called, fid).map_err(NotHeld::Failed)
    }

    fn is_gone(&self, vid: VolumeId) -> Result<bool, NotHeld> {
        self.core.is_gone(vid).map_err(NotHeld::Failed)
    }
}

fn failed(error: copal_kv::Error) -> NotHeld {
    NotHeld::Failed(of_engine(&error))
}
