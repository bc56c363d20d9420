//! Expiry of abandoned uploads.
//!
//! Not here: the time limits (`uploads`).

use super::{store::MemberStore, uploads::StagedUpload};
use copal_volume::VolumeError;

impl MemberStore {
    /// Frees expired uploads. Returns their number.
    /// # Errors
    /// `Corrupt`, `NoSpace`, `Failed`.
    pub fn expire_uploads(&self) -> Result<usize, VolumeError> {
        let core = &self.core;
        let now_ms = core.clock.now_ms();
        let is_full = self.is_full();
        let expired = core.uploads.lock().expired(now_ms, is_full);
        for &(vid, fid) in &expired {
            let queue = core.queue(vid.birth_group())?;
            let _member = queue.member.lock();
            // A piece may have arrived since.
            let is_expired = |upload: &StagedUpload| upload.is_expired(now_ms, is_full);
            if core.uploads.lock().get(vid, fid).is_some_and(is_expired) {
                core.drop_upload(vid, fid)?;
                tracing::info!(volume = %vid, file = %fid, "an expired upload was freed");
            }
        }
        Ok(expired.len())
    }

    /// Number of uploads without a file, and bytes of their pieces.
    pub fn upload_totals(&self) -> (usize, u64) {
        let uploads = self.core.uploads.lock();
        (uploads.len(), uploads.bytes())
    }
}
