//! State of volumes on a member: live, under removal or removed, by notice from the master.
//!
//! Invariants
//! - A removed volume stays removed: its row is permanent, since its id is never used again.
//! - An undecided removal expires, since its initiator may have died. The mark counts for a minute; the
//!   master decides sooner.

use super::{disk_state::MemberCore, roles};
use crate::{
    error::{corrupt, of_engine},
    format::{VolumeRow, VolumeState},
    keys,
};
use copal_kv::Durability;
use copal_volume::{VolumeError, VolumeId, VolumeOptions, group::GroupId};

/// An undecided removal is ignored after this time.
const REMOVING_MS: u64 = 60_000;

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

/// See `MemberStore::removed_volumes`.
pub(super) fn removed_volumes(core: &MemberCore, group: GroupId) -> Result<Vec<VolumeId>, VolumeError> {
    let mut gone = Vec::new();
    for row in core.spaces.volumes.prefix(&keys::group(group)) {
        let (key, row) = row.map_err(|error| of_engine(&error))?;
        let parsed = VolumeRow::parse(&key, &row);
        let row = parsed.map_err(|error| corrupt(format!("the row of a volume: {error}")))?;
        if let Some((vid, _)) = keys::split(&key).filter(|_| row.state == VolumeState::Removed) {
            gone.push(vid);
        }
    }
    Ok(gone)
}

/// See `MemberStore::note_volume`.
pub(super) fn note_volume(
    core: &MemberCore,
    vid: VolumeId,
    notice: VolumeNotice,
) -> Result<bool, VolumeError> {
    let queue = roles::queue(core, vid.birth_group())?;
    let _member = queue.member.lock();
    let key = keys::volume(vid);
    let first = core.spaces.files.prefix(&key).keys_only().next();
    let has_files = first.transpose().map_err(|error| of_engine(&error))?.is_some();
    if notice == VolumeNotice::Removed && !has_files && is_removed(core, vid)? {
        return Ok(false);
    }
    if let VolumeNotice::Live { quota_bytes } = notice
        && is_live_with(core, vid, quota_bytes)?
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
    let quota = quota(core, vid)?;
    match notice {
        // A live volume without a quota needs no row.
        VolumeNotice::Live { quota_bytes: None } => batch.delete(&core.spaces.volumes, &key),
        VolumeNotice::Live { quota_bytes } => {
            batch.put(&core.spaces.volumes, &key, row(VolumeState::Live, quota_bytes))
        }
        VolumeNotice::Removing => batch.put(&core.spaces.volumes, &key, row(VolumeState::Removing, quota)),
        VolumeNotice::Removed => batch.put(&core.spaces.volumes, &key, row(VolumeState::Removed, None)),
    };
    core.commit_essential(batch, Durability::Device)?;
    if notice == VolumeNotice::Removed {
        core.usage.forget(vid);
        core.uploads.lock().forget(|of| of == vid);
        for space in core.spaces.of_files().into_iter().chain([&core.own.siblings]) {
            let purged = space.purge_prefix(&key, Durability::Deferred);
            purged.map_err(|error| of_engine(&error))?;
        }
    }
    Ok(has_files)
}

/// State of a volume for an operation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VolumeFacts {
    /// It was removed.
    pub(super) is_removed: bool,
    /// Its removal is undecided: until then creates in it are refused.
    pub(super) is_removing: bool,
    pub(super) quota: Option<u64>,
}

/// The state of a volume now.
pub(super) fn facts(core: &MemberCore, vid: VolumeId) -> Result<VolumeFacts, VolumeError> {
    let Some(row) = volume_row(core, vid)? else {
        return Ok(VolumeFacts::default());
    };
    Ok(VolumeFacts {
        is_removed: row.state == VolumeState::Removed,
        is_removing: row.state == VolumeState::Removing
            && row.created_ms.abs_diff(core.clock.now_ms()) < REMOVING_MS,
        quota: row.quota_bytes,
    })
}

/// Whether the volume was removed.
pub(super) fn is_removed(core: &MemberCore, vid: VolumeId) -> Result<bool, VolumeError> {
    Ok(facts(core, vid)?.is_removed)
}

/// Whether a removal of the volume is undecided: until then creates in it are refused.
pub(super) fn is_removing(core: &MemberCore, vid: VolumeId) -> Result<bool, VolumeError> {
    Ok(facts(core, vid)?.is_removing)
}

/// Whether the stored row says that the volume exists with this quota.
pub(super) fn is_live_with(
    core: &MemberCore,
    vid: VolumeId,
    quota_bytes: Option<u64>,
) -> Result<bool, VolumeError> {
    Ok(match volume_row(core, vid)? {
        Some(row) => row.state == VolumeState::Live && row.quota_bytes == quota_bytes,
        None => quota_bytes.is_none(),
    })
}

/// The volume's quota.
pub(super) fn quota(core: &MemberCore, vid: VolumeId) -> Result<Option<u64>, VolumeError> {
    Ok(facts(core, vid)?.quota)
}

/// Most volumes have no row on a member.
pub(super) fn volume_row(core: &MemberCore, vid: VolumeId) -> Result<Option<VolumeRow>, VolumeError> {
    let key = keys::volume(vid);
    let row = core.spaces.volumes.get(&key).map_err(|error| of_engine(&error))?;
    row.map(|row| {
        let row = VolumeRow::parse(&key, &row);
        row.map_err(|error| corrupt(format!("the row of volume {vid}: {error}")))
    })
    .transpose()
}

pub(super) fn check_exists(core: &MemberCore, vid: VolumeId) -> Result<(), VolumeError> {
    match is_removed(core, vid)? {
        true => Err(VolumeError::VolumeGone),
        false => Ok(()),
    }
}
