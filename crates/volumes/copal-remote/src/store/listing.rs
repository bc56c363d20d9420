//! Lists of files with their heads, which a list of an object store lacks.

use super::{RemoteState, objects::KnownObject, of_service, parallel};
use crate::{
    format::ObjectKind,
    keys,
    service::{ListedObject, ObjectService},
};
use bytes::Bytes;
use copal_volume::{FileId, FileInfo, VolumeError, VolumeId};
use std::sync::{Arc, atomic::Ordering::Relaxed};

/// Files of one page.
pub(super) const PAGE: usize = 1000;
/// Longest object that a list reads as a whole: its reader asks for the body next.
const SMALL_BYTES: u64 = 64 << 10;
/// Most bytes of whole objects that one page reads.
const WHOLE_BYTES: u64 = 4 << 20;

impl RemoteState {
    /// See [`copal_volume::VolumeStore::list`].
    pub(super) fn list(
        &self,
        vid: VolumeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, FileInfo)>, VolumeError> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let of_volume = keys::files_prefix(vid);
        let prefix = format!("{of_volume}{}", keys::hex(prefix));
        let mut after = after.map(|after| format!("{of_volume}{}", keys::hex(after)));
        let mut found = Vec::new();
        loop {
            let page = self
                .requests
                .rules
                .repeat(|| self.requests.service.list(&prefix, after.as_deref(), limit.min(PAGE)));
            let page = page.map_err(|error| of_service(&error))?;
            let Some(last) = page.last() else {
                return Ok(found);
            };
            after = Some(last.key.clone());
            for (object, known) in page.iter().zip(self.heads(&page)) {
                // A file that went meanwhile is not shown; only an empty page is the end.
                let Some(known) = known? else { continue };
                let name = object.key.strip_prefix(&of_volume).and_then(keys::unhex);
                if let (Some(name), ObjectKind::File) = (name, known.kind) {
                    found.push((Bytes::from(name), known.info.clone()));
                }
            }
            if found.len() >= limit {
                found.truncate(limit);
                return Ok(found);
            }
        }
    }

    /// Listed objects as they are known: remembered under the same tag, or read now. `None`: it is gone.
    fn heads(&self, page: &[ListedObject]) -> Vec<Result<Option<Arc<KnownObject>>, VolumeError>> {
        let small: u64 = page.iter().map(|object| object.bytes).filter(|bytes| *bytes <= SMALL_BYTES).sum();
        parallel::map(page, self.requests.connections, |object| {
            let known = match self.objects.with_tag(&object.key, &object.tag) {
                Some(known) => known,
                None => {
                    let is_whole = object.bytes <= SMALL_BYTES && small <= WHOLE_BYTES;
                    match self.objects.fetch(&object.key, if is_whole { object.bytes } else { 0 }) {
                        Err(VolumeError::NotFound) => return Ok(None),
                        known => known?,
                    }
                }
            };
            known.is_fresh.store(true, Relaxed);
            Ok(Some(known))
        })
    }

    /// Whether a volume holds a file of that id.
    pub(super) fn find(&self, vid: VolumeId, fid: FileId) -> Result<bool, VolumeError> {
        let mut after: Option<Bytes> = None;
        loop {
            let page = self.list(vid, b"", after.as_deref(), PAGE)?;
            if page.iter().any(|(_, info)| info.fid == fid) {
                return Ok(true);
            }
            match page.into_iter().last() {
                Some((name, _)) => after = Some(name),
                None => return Ok(false),
            }
        }
    }
}
