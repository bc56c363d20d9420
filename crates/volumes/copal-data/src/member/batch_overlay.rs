//! Changes of a batch under construction. They are read before the stored rows, which do not have them yet.

use super::file_ids::FileAddress;
use crate::{
    format::{FileHead, TombstoneRow},
    keys,
};
use bytes::Bytes;
use copal_volume::{FileId, VolumeId};
use std::collections::BTreeMap;

/// Changed heads by key, live ones and those beside them; `None`: deleted by this batch.
#[derive(Default)]
pub(super) struct BatchOverlay {
    live: BTreeMap<Vec<u8>, Option<FileHead>>,
    beside: BTreeMap<Vec<u8>, Option<FileHead>>,
    /// Added tombstones of a file, each with its key.
    deleted: BTreeMap<FileId, Vec<(Bytes, TombstoneRow)>>,
}

impl BatchOverlay {
    pub(super) fn set(&mut self, is_beside: bool, key: Vec<u8>, head: Option<FileHead>) {
        let heads = match is_beside {
            true => &mut self.beside,
            false => &mut self.live,
        };
        heads.insert(key, head);
    }

    /// `None`: this batch does not change the key.
    pub(super) fn get(&self, is_beside: bool, key: &[u8]) -> Option<&Option<FileHead>> {
        match is_beside {
            true => self.beside.get(key),
            false => self.live.get(key),
        }
    }

    pub(super) fn add_tombstone(&mut self, fid: FileId, key: Bytes, tombstone: TombstoneRow) {
        self.deleted.entry(fid).or_default().push((key, tombstone));
    }

    /// Tombstones of a file that this batch adds.
    pub(super) fn tombstones_of(&self, fid: FileId) -> &[(Bytes, TombstoneRow)] {
        self.deleted.get(&fid).map_or(&[], Vec::as_slice)
    }

    /// Whether this batch adds a file with this id under another name, or to another volume.
    pub(super) fn has_another(&self, address: FileAddress<'_>, fid: FileId) -> bool {
        let all = [(&self.live, 0), (&self.beside, 16)];
        let mut all = all
            .into_iter()
            .flat_map(|(heads, behind)| heads.iter().map(move |(key, head)| (key, head, behind)));
        all.any(|(key, head, behind)| {
            let Some((vid, rest)) =
                keys::split(key).filter(|_| head.as_ref().is_some_and(|head| head.fid == fid))
            else {
                return false;
            };
            let name = &rest[..rest.len().saturating_sub(behind)];
            !address.may_equal(FileAddress { vid, name: Some(name) })
        })
    }

    /// The name of a file that this batch adds.
    pub(super) fn name_of(&self, vid: VolumeId, fid: FileId) -> Option<Bytes> {
        let all = [(&self.live, 0), (&self.beside, 16)];
        let mut all = all
            .into_iter()
            .flat_map(|(heads, behind)| heads.iter().map(move |(key, head)| (key, head, behind)));
        all.find_map(|(key, head, behind)| {
            head.as_ref().filter(|head| head.fid == fid)?;
            let (volume, name) = keys::split(key)?;
            let end = name.len().checked_sub(behind)?;
            (volume == vid).then(|| Bytes::copy_from_slice(&name[..end]))
        })
    }

    /// Files beside the live one of `named`; `stored` are those before the batch.
    pub(super) fn siblings(&self, named: &[u8], stored: Vec<FileHead>) -> Vec<FileHead> {
        let mut found: BTreeMap<FileId, FileHead> = stored.into_iter().map(|head| (head.fid, head)).collect();
        for (key, head) in &self.beside {
            let Some((_, rest)) = keys::split(key) else {
                continue;
            };
            let Some((_, fid)) = keys::split_sibling(rest) else {
                continue;
            };
            if key.len() != named.len() + 16 || !key.starts_with(named) {
                continue;
            }
            match head {
                Some(head) => found.insert(fid, head.clone()),
                None => found.remove(&fid),
            };
        }
        found.into_values().collect()
    }
}
