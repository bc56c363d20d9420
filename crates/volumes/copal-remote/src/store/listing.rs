//! Lists of files with their heads, which a list of an object store lacks.

use super::{RemoteState, objects::KnownObject, parallel};
use crate::{
    format::ObjectKind,
    keys,
    service::{ListedObject, ListedPage},
};
use bytes::Bytes;
use copal_volume::{FileId, FilePage, VolumeError, VolumeId};
use std::sync::{Arc, atomic::Ordering::Relaxed};

/// Files of one page.
pub(super) const PAGE: usize = 1000;
/// Longest object that a list reads as a whole: its reader asks for the body next.
const SMALL_BYTES: u64 = 64 << 10;
/// Most bytes of whole objects that one page reads.
const WHOLE_BYTES: u64 = 4 << 20;

impl RemoteState {
    /// See [`copal_volume::VolumeStore::list_page`].
    pub(super) fn list(
        &self,
        vid: VolumeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<FilePage, VolumeError> {
        if limit == 0 {
            return Ok(FilePage::default());
        }
        let of_volume = keys::files_prefix(vid);
        let prefix = format!("{of_volume}{}", keys::name_key(prefix));
        let mut after = after.map(|after| format!("{of_volume}{}", keys::name_key(after)));
        let mut found = Vec::new();
        loop {
            let ListedPage { objects, is_last } =
                self.requests.page(&prefix, after.as_deref(), limit.min(PAGE))?;
            let Some(last) = objects.last() else {
                return Ok(FilePage { files: found, is_last: true });
            };
            after = Some(last.key.clone());
            for (object, known) in objects.iter().zip(self.heads(&objects)) {
                // A file that went meanwhile is not shown; only an empty page is the end.
                let Some(known) = known? else { continue };
                let name = object.key.strip_prefix(&of_volume).and_then(keys::name_of);
                if let (Some(name), ObjectKind::File) = (name, known.kind) {
                    found.push((Bytes::from(name), known.info.clone()));
                }
            }
            if is_last || found.len() >= limit {
                let is_last = is_last && found.len() <= limit;
                found.truncate(limit);
                return Ok(FilePage { files: found, is_last });
            }
        }
    }

    /// See [`copal_volume::VolumeStore::hold_list`].
    pub(super) fn hold_list(&self, vid: VolumeId, most: usize) -> Result<(), VolumeError> {
        let prefix = match vid {
            VolumeId::ROOT => keys::VOLUMES.to_owned(),
            vid => keys::files_prefix(vid),
        };
        if self.requests.held.has(&prefix) {
            return Ok(());
        }
        let begun = self.requests.held.begin();
        let mut objects: Vec<ListedObject> = Vec::new();
        loop {
            let page = self.requests.page(&prefix, objects.last().map(|object| object.key.as_str()), PAGE)?;
            let is_end = page.is_last || page.objects.is_empty();
            objects.extend(page.objects);
            match objects.len() {
                held if held > most => return Ok(()),
                _ if is_end => break,
                _ => {}
            }
        }
        self.requests.held.hold(prefix, objects, begun);
        Ok(())
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
            if page.files.iter().any(|(_, info)| info.fid == fid) {
                return Ok(true);
            }
            match page.files.into_iter().last() {
                Some((name, _)) if !page.is_last => after = Some(name),
                _ => return Ok(false),
            }
        }
    }
}
