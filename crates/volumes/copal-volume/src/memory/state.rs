//! The maps of a [`MemoryStore`](super::MemoryStore), and the effect of each operation on them.
//!
//! Invariant: every volume has exactly one entry in `names`, and `names` has no entry without
//! its volume.

use crate::error::VolumeError;
use crate::ids::{FileId, FileIds, VolumeId};
use crate::store::{FileInfo, ReadOptions, RemoveMode, VolumeOptions, VolumeStats};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;

pub(super) struct MemoryFile {
    pub(super) info: FileInfo,
    pub(super) body: Bytes,
}

#[derive(Default)]
pub(super) struct MemoryVolume {
    pub(super) files: BTreeMap<Vec<u8>, MemoryFile>,
    quota_bytes: Option<u64>,
}

impl MemoryVolume {
    pub(super) fn stats(&self) -> VolumeStats {
        VolumeStats {
            files: self.files.len() as u64,
            bytes: self.files.values().map(|file| file.info.size).sum(),
        }
    }
}

pub(super) struct MemoryState {
    pub(super) ids: FileIds,
    pub(super) capacity_bytes: u64,
    next_vid: u64,
    names: BTreeMap<(VolumeId, String), VolumeId>,
    volumes: BTreeMap<VolumeId, MemoryVolume>,
}

impl MemoryState {
    pub(super) fn new(incarnation: u64) -> MemoryState {
        MemoryState {
            ids: FileIds::new(incarnation, 0),
            capacity_bytes: u64::MAX,
            next_vid: 1,
            names: BTreeMap::new(),
            volumes: BTreeMap::new(),
        }
    }

    pub(super) fn volume(&self, vid: VolumeId) -> Result<&MemoryVolume, VolumeError> {
        self.volumes.get(&vid).ok_or(VolumeError::VolumeGone)
    }

    fn resolve(&self, path: &[&str]) -> Result<VolumeId, VolumeError> {
        path.iter().try_fold(VolumeId::ROOT, |parent, name| {
            let key = (parent, (*name).to_owned());
            self.names.get(&key).copied().ok_or(VolumeError::NotFound)
        })
    }

    pub(super) fn resolve_child(&self, parent: &[&str], name: &str) -> Result<VolumeId, VolumeError> {
        let key = (self.resolve(parent)?, name.to_owned());
        self.names.get(&key).copied().ok_or(VolumeError::NotFound)
    }

    pub(super) fn create_volume(
        &mut self,
        parent: &[&str],
        name: &str,
        options: &VolumeOptions,
    ) -> Result<VolumeId, VolumeError> {
        let key = (self.resolve(parent)?, name.to_owned());
        if let Some(&vid) = self.names.get(&key) {
            return Err(VolumeError::VolumeExists { vid });
        }
        let vid = VolumeId(self.next_vid);
        self.next_vid += 1;
        self.names.insert(key, vid);
        let volume = MemoryVolume { files: BTreeMap::new(), quota_bytes: options.quota_bytes };
        self.volumes.insert(vid, volume);
        Ok(vid)
    }

    pub(super) fn rename_volume(
        &mut self,
        from: (&[&str], &str),
        to: (&[&str], &str),
    ) -> Result<(), VolumeError> {
        let vid = self.resolve_child(from.0, from.1)?;
        let old = (self.resolve(from.0)?, from.1.to_owned());
        let new = (self.resolve(to.0)?, to.1.to_owned());
        if (1..=to.0.len()).any(|depth| self.resolve(&to.0[..depth]) == Ok(vid)) {
            return Err(VolumeError::InvalidName { reason: "a volume cannot move below itself".to_owned() });
        }
        match self.names.get(&new) {
            Some(&taken) if taken == vid => return Ok(()),
            Some(&taken) => return Err(VolumeError::VolumeExists { vid: taken }),
            None => {}
        }
        self.names.remove(&old);
        self.names.insert(new, vid);
        Ok(())
    }

    pub(super) fn list_volumes(
        &self,
        parent: &[&str],
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, VolumeId)>, VolumeError> {
        let parent = self.resolve(parent)?;
        let start = match after {
            Some(after) => Bound::Excluded((parent, after.to_owned())),
            None => Bound::Included((parent, String::new())),
        };
        Ok(self
            .names
            .range((start, Bound::Unbounded))
            .take_while(|((of, _), _)| *of == parent)
            .take(limit)
            .map(|((_, name), vid)| (name.clone(), *vid))
            .collect())
    }

    pub(super) fn remove_volume(&mut self, vid: VolumeId, how: RemoveMode) -> Result<(), VolumeError> {
        let volume = self.volume(vid)?;
        let has_children = self.names.keys().any(|(parent, _)| *parent == vid);
        if has_children || (how == RemoveMode::IfEmpty && !volume.files.is_empty()) {
            return Err(VolumeError::NotEmpty);
        }
        self.volumes.remove(&vid);
        self.names.retain(|_, named| *named != vid);
        Ok(())
    }

    pub(super) fn file(
        &self,
        vid: VolumeId,
        name: &[u8],
        options: &ReadOptions,
    ) -> Result<&MemoryFile, VolumeError> {
        let file = self.volume(vid)?.files.get(name).ok_or(VolumeError::NotFound)?;
        match options.if_file {
            Some(wanted) if wanted != file.info.fid => Err(VolumeError::NotFound),
            _ => Ok(file),
        }
    }

    /// Refuses `bytes` more in this volume if its quota or the store's capacity forbids them.
    pub(super) fn room_for(&self, vid: VolumeId, bytes: u64) -> Result<(), VolumeError> {
        let volume = self.volume(vid)?;
        if let Some(quota) = volume.quota_bytes {
            let used = volume.stats().bytes;
            if used.saturating_add(bytes) > quota {
                return Err(VolumeError::QuotaExceeded { quota, used, wanted: bytes });
            }
        }
        let stored: u64 = self.volumes.values().map(|v| v.stats().bytes).sum();
        if stored.saturating_add(bytes) > self.capacity_bytes {
            return Err(VolumeError::NoSpace);
        }
        Ok(())
    }

    pub(super) fn create(
        &mut self,
        now_ms: u64,
        vid: VolumeId,
        name: &[u8],
        fid: FileId,
        body: Bytes,
        metadata: &Bytes,
    ) -> Result<FileInfo, VolumeError> {
        if let Some(winner) = self.volume(vid)?.files.get(name) {
            return Err(VolumeError::Exists { fid: winner.info.fid });
        }
        self.room_for(vid, body.len() as u64)?;
        let info = FileInfo {
            fid,
            size: body.len() as u64,
            crc32c: copal_codec::crc32c(0, &body),
            created_ms: self.ids.draw_op(now_ms).ms(),
            metadata: metadata.clone(),
        };
        let file = MemoryFile { info: info.clone(), body };
        let volume = self.volumes.get_mut(&vid).ok_or(VolumeError::VolumeGone)?;
        volume.files.insert(name.to_vec(), file);
        Ok(info)
    }

    pub(super) fn delete(&mut self, vid: VolumeId, name: &[u8], fid: FileId) -> Result<(), VolumeError> {
        let volume = self.volumes.get_mut(&vid).ok_or(VolumeError::VolumeGone)?;
        if volume.files.get(name).is_some_and(|f| f.info.fid == fid) {
            volume.files.remove(name);
        }
        Ok(())
    }

    pub(super) fn list(
        &self,
        vid: VolumeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, FileInfo)>, VolumeError> {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        Ok(self
            .volume(vid)?
            .files
            .range::<[u8], _>((start, Bound::Unbounded))
            .take_while(|(name, _)| name.starts_with(prefix))
            .take(limit)
            .map(|(name, file)| (Bytes::copy_from_slice(name), file.info.clone()))
            .collect())
    }
}
