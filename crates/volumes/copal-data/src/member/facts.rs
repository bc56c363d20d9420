//! What a batch in the making has changed: read before the rows, which know nothing of it yet.

use crate::{format::FileHead, keys};
use bytes::Bytes;
use copal_volume::{FileId, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

/// Heads by key, live ones and those beside them; `None`: gone with this batch.
#[derive(Default)]
pub(super) struct Overlay {
    live: BTreeMap<Vec<u8>, Option<FileHead>>,
    beside: BTreeMap<Vec<u8>, Option<FileHead>>,
    buried: BTreeSet<FileId>,
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

    pub(super) fn bury(&mut self, fid: FileId) {
        self.buried.insert(fid);
    }

    pub(super) fn is_buried(&self, fid: FileId) -> bool {
        self.buried.contains(&fid)
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
