//! Uploads that nobody goes on with are freed.
//!
//! Not here: after how long (`uploads`).

use super::{store::MemberStore, uploads::Upload};
use copal_volume::VolumeError;

impl MemberStore {
    /// Frees what belongs to uploads that nobody goes on with. Returns how many went.
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
            // Something may have been added since.
            let is_expired = |upload: &Upload| upload.is_expired(now_ms, is_full);
            if core.uploads.lock().get(vid, fid).is_some_and(is_expired) {
                core.drop_upload(vid, fid)?;
                tracing::info!(volume = %vid, file = %fid, "an upload that nobody went on with was freed");
            }
        }
        Ok(expired.len())
    }

    /// Uploads whose file is not there yet, and bytes of their pieces.
    pub fn upload_totals(&self) -> (usize, u64) {
        let uploads = self.core.uploads.lock();
        (uploads.len(), uploads.bytes())
    }
}
