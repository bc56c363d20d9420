//! A disk of a snapshot as the source of a backup.

use crate::request::SnapshotId;
use crate::request::error::{Error, Result};
use crate::request::progress::CancelFlag;
use crate::restore::serve::ServedDisk;
use copal_chunk::SEGMENT_BYTES;
use copal_disk::source::{
    ChangeKind, ChangedExtent, ChangedExtents, Extent, ExtentKind, MAX_EXTENTS, Source, SourceError,
};
use parking_lot::Mutex;
use std::sync::Arc;

/// Extents of a list of changes before small gaps between them are added to them.
const FINE_EXTENTS: usize = 100_000;

/// The first error of the source repository during a backup, which takes errors of disks only.
#[derive(Clone, Default)]
pub(super) struct SourceErrors(Arc<Mutex<Option<Error>>>);

impl SourceErrors {
    /// The first error.
    pub(super) fn take(&self) -> Option<Error> {
        self.0.lock().take()
    }

    fn note(&self, error: Error) -> SourceError {
        let reason = error.to_string();
        self.0.lock().get_or_insert(error);
        SourceError::Unusable { reason }
    }
}

/// Reads a disk of a snapshot. Its bytes are compared with their ids (BAK-11), and never change.
pub(super) struct SnapshotSource {
    disk: Arc<ServedDisk>,
    errors: SourceErrors,
}

impl SnapshotSource {
    pub(super) fn new(disk: Arc<ServedDisk>, errors: &SourceErrors) -> SnapshotSource {
        SnapshotSource { disk, errors: errors.clone() }
    }
}

impl Source for SnapshotSource {
    fn size_bytes(&self) -> Option<u64> {
        Some(self.disk.size_bytes())
    }

    fn extent_at(&self, offset: u64) -> std::result::Result<Extent, SourceError> {
        let run = self.disk.extent_at(offset).map_err(|error| self.errors.note(error))?;
        let kind = if run.is_so { ExtentKind::Zero } else { ExtentKind::Data };
        Ok(Extent { offset, length: run.length, kind })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::result::Result<usize, SourceError> {
        let rest = self.disk.size_bytes().saturating_sub(offset);
        let length = rest.min(buf.len() as u64) as usize;
        self.disk.read_at(offset, &mut buf[..length]).map_err(|error| self.errors.note(error))?;
        Ok(length)
    }
}

/// The extents in which `disk` may differ from `older`, as a list that begins at `base`, the copy of `older` (BAK-3).
/// `None`: the sizes differ, or the list would be too long.
/// # Errors
/// Errors of the source repository that are not damage; cancellation.
pub(super) fn changed_extents(
    disk: &ServedDisk,
    older: &ServedDisk,
    base: SnapshotId,
    cancel: &CancelFlag,
) -> Result<Option<ChangedExtents>> {
    let size_bytes = disk.size_bytes();
    if older.size_bytes() != size_bytes {
        return Ok(None);
    }
    let mut extents: Vec<ChangedExtent> = Vec::new();
    let mut offset = 0;
    while offset < size_bytes {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled { kept_bytes: Some(0) });
        }
        let run = disk.difference_at(older, offset)?;
        if run.is_so {
            let gap = if extents.len() < FINE_EXTENTS { 0 } else { SEGMENT_BYTES as u64 };
            match extents.last_mut() {
                Some(last) if offset - (last.offset + last.length) <= gap => {
                    last.length = offset + run.length - last.offset;
                }
                _ => {
                    extents.push(ChangedExtent { offset, length: run.length, kind: ChangeKind::Dirty });
                }
            }
        }
        offset += run.length;
    }
    let list = ChangedExtents { size_bytes, base: Some(base.to_string()), bitmap: None, extents };
    Ok(Some(list).filter(|list| list.extents.len() <= MAX_EXTENTS))
}
