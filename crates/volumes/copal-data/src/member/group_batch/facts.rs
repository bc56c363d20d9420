//! Facts of a batch's operations, from the stored rows overlaid with the batch.

use super::GroupBatch;
use crate::member::{
    file_ids::{self, FileAddress},
    heads,
    operation::{NewHead, OperationError},
    volumes::{self, VolumeFacts},
};
use crate::{format::FileHead, keys};
use bytes::Bytes;
use copal_volume::{
    FileId, OpId, UNKNOWN_FILE_NAME, VolumeId,
    group::{CreateFacts, MAX_OP_AHEAD_MS},
};

impl GroupBatch<'_> {
    /// Whether a file with this id was deleted under any volume and name.
    pub(super) fn is_deleted(&self, fid: FileId) -> Result<bool, OperationError> {
        let stored = file_ids::tombstones_of(self.core, self.group, fid).map_err(OperationError::Failed)?;
        Ok(!stored.is_empty() || !self.overlay.tombstones_of(fid).is_empty())
    }

    pub(super) fn belongs_to_another(
        &self,
        address: FileAddress<'_>,
        fid: FileId,
    ) -> Result<bool, OperationError> {
        let found = file_ids::belongs_to_another(self.core, self.group, address, fid, self.now_ms);
        found.map_err(OperationError::Failed)
    }

    /// Creation time of the file of a delete that is ahead of the clock; 0: it is not live here. Other files
    /// are not looked up.
    pub(super) fn created_ms(
        &self,
        vid: VolumeId,
        name: &[u8],
        fid: FileId,
        delete: OpId,
    ) -> Result<u64, OperationError> {
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

    pub(super) fn create_facts(
        &self,
        vid: VolumeId,
        name: &[u8],
        head: &NewHead,
    ) -> Result<CreateFacts, OperationError> {
        let live = self.live(vid, name)?;
        let is_beside = self.sibling(vid, name, head.fid)?.is_some();
        Ok(CreateFacts {
            has_everything: self.has_everything,
            now_ms: self.now_ms,
            op: head.op,
            fid: head.fid,
            is_volume_gone: self.is_removed(vid)?,
            has_tombstone: self.has_tombstone(vid, name, head.fid)?,
            is_sealed: self.seal.is_sealed(head.op),
            is_live: is_beside || live.as_ref().is_some_and(|live| live.fid == head.fid),
            other: live.map(|live| live.fid).filter(|&fid| fid != head.fid),
        })
    }

    /// The name of a file that is deleted by id alone. A tombstone under another name would not apply to the
    /// file, which would stay after the tombstone is cut (VOL-60). Reads all heads of the volume; settling is
    /// rare.
    pub(super) fn name_of(
        &self,
        vid: VolumeId,
        requested: &Bytes,
        fid: FileId,
    ) -> Result<Bytes, OperationError> {
        if requested != UNKNOWN_FILE_NAME {
            return Ok(requested.clone());
        }
        if let Some(name) = self.overlay.name_of(vid, fid) {
            return Ok(name);
        }
        let found = heads::find_by_id(self.core, vid, fid).map_err(OperationError::Failed)?;
        Ok(found.map_or_else(|| requested.clone(), |(name, _)| name))
    }

    pub(super) fn is_staged(&self, vid: VolumeId, fid: FileId) -> bool {
        self.core.uploads.lock().get(vid, fid).is_some()
    }

    /// The key for the tombstone of a file. If another volume or name has deleted a file with this id, it
    /// follows that tombstone: neither replaces the other.
    pub(super) fn tombstone_key(
        &self,
        vid: VolumeId,
        name: &Bytes,
        fid: FileId,
    ) -> Result<Bytes, OperationError> {
        let first = keys::tombstone(self.group, fid);
        let stored = file_ids::tombstones_of(self.core, self.group, fid).map_err(OperationError::Failed)?;
        let mut all = stored.iter().chain(self.overlay.tombstones_of(fid));
        let address = FileAddress::of_request(vid, name);
        let mut is_taken = false;
        let own = all.find(|(key, tombstone)| {
            is_taken |= key[..] == first[..];
            address.may_equal(tombstone.address())
        });
        Ok(match own {
            Some((key, _)) => key.clone(),
            None if is_taken => keys::second_tombstone(self.group, fid, vid, name).into(),
            None => Bytes::copy_from_slice(&first),
        })
    }

    /// The live file of a name.
    pub(super) fn live(&self, vid: VolumeId, name: &[u8]) -> Result<Option<FileHead>, OperationError> {
        let key = keys::named(vid, name);
        match self.overlay.get(false, &key) {
            Some(known) => Ok(known.clone()),
            None => heads::find_head(&self.core.spaces.files, &key).map_err(OperationError::Failed),
        }
    }

    /// The file beside the live one of a name.
    pub(super) fn sibling(
        &self,
        vid: VolumeId,
        name: &[u8],
        fid: FileId,
    ) -> Result<Option<FileHead>, OperationError> {
        if self.has_everything {
            return Ok(None);
        }
        let key = keys::sibling(vid, name, fid);
        match self.overlay.get(true, &key) {
            Some(known) => Ok(known.clone()),
            None => heads::find_head(&self.core.own.siblings, &key).map_err(OperationError::Failed),
        }
    }

    /// All files beside the live one of a name, the lowest first.
    pub(super) fn siblings(&self, vid: VolumeId, name: &[u8]) -> Result<Vec<FileHead>, OperationError> {
        if self.has_everything {
            return Ok(Vec::new());
        }
        let stored = heads::find_siblings(self.core, vid, name).map_err(OperationError::Failed)?;
        Ok(self.overlay.siblings(&keys::named(vid, name), stored))
    }

    pub(super) fn has_tombstone(
        &self,
        vid: VolumeId,
        name: &[u8],
        fid: FileId,
    ) -> Result<bool, OperationError> {
        let address = FileAddress::of_request(vid, name);
        let mut tombstones = self.overlay.tombstones_of(fid).iter();
        if tombstones.any(|(_, tombstone)| address.may_equal(tombstone.address())) {
            return Ok(true);
        }
        file_ids::has_tombstone(self.core, self.group, address, fid).map_err(OperationError::Failed)
    }

    pub(super) fn is_removed(&self, vid: VolumeId) -> Result<bool, OperationError> {
        Ok(self.volume(vid)?.is_removed)
    }

    /// The state of a volume; read once for all operations of it that follow each other.
    pub(super) fn volume(&self, vid: VolumeId) -> Result<VolumeFacts, OperationError> {
        if let Some((known, facts)) = self.volume.get()
            && known == vid
        {
            return Ok(facts);
        }
        let facts = volumes::facts(self.core, vid).map_err(OperationError::Failed)?;
        self.volume.set(Some((vid, facts)));
        Ok(facts)
    }
}
