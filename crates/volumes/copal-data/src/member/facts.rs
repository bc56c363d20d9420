//! What a batch in the making has changed: read before the rows, which know nothing of it yet.

use super::file_ids::Called;
use crate::{
    format::{FileHead, TombRow},
    keys,
};
use bytes::Bytes;
use copal_volume::{FileId, VolumeId};
use std::collections::BTreeMap;

/// Heads by key, live ones and those beside them; `None`: gone with this batch.
#[derive(Default)]
pub(super) struct Overlay {
    live: BTreeMap<Vec<u8>, Option<FileHead>>,
    beside: BTreeMap<Vec<u8>, Option<FileHead>>,
    /// Deletes of a file, each with its key.
    buried: BTreeMap<FileId, Vec<(Bytes, TombRow)>>,
}

impl Overlay {
    pub(super) fn set(&mut self, is_beside: bool, key: Vec<u8>, head: Option<FileHead>) {
        let heads = match is_beside {
            true => &mut self.beside,
            false => &mut self.live,
        };
        heads.insert(key, head);
    }

    /// `None`: this batch says nothing about the key.
    pub(super) fn get(&self, is_beside: bool, key: &[u8]) -> Option<&Option<FileHead>> {
        match is_beside {
            true => self.beside.get(key),
            false => self.live.get(key),
        }
    }

    pub(super) fn bury(&mut self, fid: FileId, key: Bytes, tomb: TombRow) {
        self.buried.entry(fid).or_default().push((key, tomb));
    }

    /// Deletes of a file that this batch adds.
    pub(super) fn tombs_of(&self, fid: FileId) -> &[(Bytes, TombRow)] {
        self.buried.get(&fid).map_or(&[], Vec::as_slice)
    }

    /// Whether this batch adds a file with this id under another name, or to another volume.
    pub(super) fn has_another(&self, called: Called<'_>, fid: FileId) -> bool {
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
            !called.may_be(Called { vid, name: Some(name) })
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

    /// Files beside the live one of `named`, given those that are `stored`.
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
