//! Expiry of abandoned uploads.
//!
//! Not here: the time limits (`uploads`).

use super::{disk_state::MemberCore, roles, upload_rows, uploads::StagedUpload};
use copal_volume::VolumeError;

/// See `MemberStore::expire_uploads`.
pub(super) fn expire_uploads(core: &MemberCore) -> Result<usize, VolumeError> {
    let now_ms = core.clock.now_ms();
    let is_full = core.is_full();
    let expired = core.uploads.lock().expired(now_ms, is_full);
    for &(vid, fid) in &expired {
        let queue = roles::queue(core, vid.birth_group())?;
        let _member = queue.member.lock();
        // A piece may have arrived since.
        let is_expired = |upload: &StagedUpload| upload.is_expired(now_ms, is_full);
        if core.uploads.lock().get(vid, fid).is_some_and(is_expired) {
            upload_rows::drop_upload(core, vid, fid)?;
            tracing::info!(volume = %vid, file = %fid, "an expired upload was freed");
        }
    }
    Ok(expired.len())
}

/// See `MemberStore::upload_totals`.
pub(super) fn upload_totals(core: &MemberCore) -> (usize, u64) {
    let uploads = core.uploads.lock();
    (uploads.len(), uploads.bytes())
}
