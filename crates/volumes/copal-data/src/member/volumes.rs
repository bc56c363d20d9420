//! State of volumes on a member: live, under removal or removed, by notice from the master.
//!
//! Invariants
//! - A removed volume stays removed: its row is permanent, since its id is never used again.
//! - An undecided removal expires, since its initiator may have died. The mark counts for a minute; the
//!   master decides sooner.

use super::store::MemberStore;
use crate::{
    error::{corrupt, of_engine},
    format::{VolumeRow, VolumeState},
    keys,
};
use copal_kv::Durability;
use copal_volume::{VolumeError, VolumeId, VolumeOptions, group::GroupId};

/// Notice of the master about a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeNotice {
    /// The volume exists with this quota, and is not being removed.
    Live {
        /// Maximum bytes of live files.
        quota_bytes: Option<u64>,
    },
    /// It accepts no creates for a minute; no file is deleted yet.
    Removing,
    /// It was removed; its files are deleted.
    Removed,
}

impl MemberStore {
    /// Removed volumes of a group, for a new member.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn removed_volumes(&self, group: GroupId) -> Result<Vec<VolumeId>, VolumeError> {
        let mut gone = Vec::new();
        for row in self.core.spaces.volumes.prefix(&keys::group(group)) {
            let (key, row) = row.map_err(|error| of_engine(&error))?;
            let parsed = VolumeRow::parse(&key, &row);
            let row = parsed.map_err(|error| corrupt(format!("the row of a volume: {error}")))?;
            if let Some((vid, _)) = keys::split(&key).filter(|_| row.state == VolumeState::Removed) {
                gone.push(vid);
            }
        }
        Ok(gone)
    }

    /// Applies a notice durably. Returns whether the volume has files here. Blocks until no operation of its
    /// group is under way.
    /// # Errors
    /// `Corrupt`, `NoSpace`, `Failed`.
    pub fn note_volume(&self, vid: VolumeId, notice: VolumeNotice) -> Result<bool, VolumeError> {
        let core = &self.core;
        let queue = core.queue(vid.birth_group())?;
        let _member = queue.member.lock();
        let key = keys::volume(vid);
        let first = core.spaces.files.prefix(&key).keys_only().next();
        let has_files = first.transpose().map_err(|error| of_engine(&error))?.is_some();
        if notice == VolumeNotice::Removed && !has_files && core.is_removed(vid)? {
            return Ok(false);
        }
        if let VolumeNotice::Live { quota_bytes } = notice
            && core.is_live_with(vid, quota_bytes)?
        {
            // A repeated notice: nothing to write.
            return Ok(has_files);
        }
        let mut batch = core.kv.batch();
        let now_ms = core.clock.now_ms();
        let row = |state, quota_bytes| {
            let options = VolumeOptions { quota_bytes, ..VolumeOptions::default() };
            let row = VolumeRow { state, ..VolumeRow::new(VolumeId::ROOT, "", now_ms, &options) };
            row.row(&key)
        };
        // The quota survives a removal that is not carried out.
        let quota = core.quota(vid)?;
        match notice {
            // A live volume without a quota needs no row.
            VolumeNotice::Live { quota_bytes: None } => batch.delete(&core.spaces.volumes, &key),
            VolumeNotice::Live { quota_bytes } => {
                batch.put(&core.spaces.volumes, &key, row(VolumeState::Live, quota_bytes))
            }
            VolumeNotice::Removing => {
                batch.put(&core.spaces.volumes, &key, row(VolumeState::Removing, quota))
            }
            VolumeNotice::Removed => batch.put(&core.spaces.volumes, &key, row(VolumeState::Removed, None)),
        };
        core.commit_essential(batch, Durability::Device)?;
        if notice == VolumeNotice::Removed {
            core.used.lock().remove(&vid);
            core.uploads.lock().forget(|of| of == vid);
            for space in core.spaces.of_files().into_iter().chain([&core.own.siblings]) {
                let purged = space.purge_prefix(&key, Durability::Deferred);
                purged.map_err(|error| of_engine(&error))?;
            }
        }
        Ok(has_files)
    }
}
