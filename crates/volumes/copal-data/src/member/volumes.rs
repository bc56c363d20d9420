//! Volumes that are being removed, or are gone, as the master tells their members.
//!
//! Invariants
//! - A volume that is gone stays gone here: its row says so for ever, since its id is never used again.
//! - A removal that nobody decides ends by itself, since whoever began it may have died: the mark counts for
//!   a minute, and the master decides in less.

use super::store::MemberStore;
use crate::{
    error::{corrupt, of_engine},
    format::{VolumeRow, VolumeState},
    keys,
};
use copal_kv::Durability;
use copal_volume::{VolumeError, VolumeId, VolumeOptions, group::GroupId};

/// What the master tells the members of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is there, with this quota, and not removed after all.
    Live {
        /// Most bytes of live files.
        quota_bytes: Option<u64>,
    },
    /// It takes no creates for a minute; nothing of it is lost yet.
    Removing,
    /// Its files go.
    Gone,
}

impl MemberStore {
    /// Volumes of a group that are gone, as this member was told: who becomes a member is told in turn.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn gone_volumes(&self, group: GroupId) -> Result<Vec<VolumeId>, VolumeError> {
        let mut gone = Vec::new();
        for row in self.core.spaces.volumes.prefix(&keys::group(group)) {
            let (key, row) = row.map_err(|error| of_engine(&error))?;
            let parsed = VolumeRow::parse(&key, &row);
            let row = parsed.map_err(|error| corrupt(format!("the row of a volume: {error}")))?;
            if let Some((vid, _)) = keys::split(&key).filter(|_| row.state == VolumeState::Gone) {
                gone.push(vid);
            }
        }
        Ok(gone)
    }

    /// Goes by what the master tells of a volume, durably; whether the volume has files here. Blocks until no
    /// operation of its group is under way.
    /// # Errors
    /// `Corrupt`, `NoSpace`, `Failed`.
    pub fn tell_volume(&self, vid: VolumeId, told: Told) -> Result<bool, VolumeError> {
        let core = &self.core;
        let queue = core.queue(vid.birth_group())?;
        let _member = queue.member.lock();
        let key = keys::volume(vid);
        let first = core.spaces.files.prefix(&key).keys_only().next();
        let has_files = first.transpose().map_err(|error| of_engine(&error))?.is_some();
        if told == Told::Gone && !has_files && core.is_gone(vid)? {
            return Ok(false);
        }
        if let Told::Live { quota_bytes } = told
            && core.is_live_with(vid, quota_bytes)?
        {
            // Told again: nothing to write.
            return Ok(has_files);
        }
        let mut batch = core.kv.batch();
        let now_ms = core.clock.now_ms();
        let row = |state, quota_bytes| {
            let options = VolumeOptions { quota_bytes, ..VolumeOptions::default() };
            let row = VolumeRow { state, ..VolumeRow::new(VolumeId::ROOT, "", now_ms, &options) };
            row.row(&key)
        };
        // Should the removal be forgotten, the quota is not.
        let quota = core.quota(vid)?;
        match told {
            // Nothing has to be known of it.
            Told::Live { quota_bytes: None } => batch.delete(&core.spaces.volumes, &key),
            Told::Live { quota_bytes } => {
                batch.put(&core.spaces.volumes, &key, row(VolumeState::Live, quota_bytes))
            }
            Told::Removing => batch.put(&core.spaces.volumes, &key, row(VolumeState::Removing, quota)),
            Told::Gone => batch.put(&core.spaces.volumes, &key, row(VolumeState::Gone, None)),
        };
        core.commit_essential(batch, Durability::Device)?;
        if told == Told::Gone {
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
