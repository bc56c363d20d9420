//! Uploads whose file is not there yet: who began each, how much of it lies here, and when it goes.
//!
//! All of them are known in memory, from rows that are read at the start: there are few, and each is of more
//! than 4 MiB.
//!
//! Invariants
//! - An upload has one origin; nobody else adds to it, and nobody else's create makes a file of it.
//! - No upload stands under the id of a file that is there: what goes with it is never a piece of a file.
//! - One to which nothing was added for a day goes, with its pieces; on a full disk for ten minutes.
//!
//! Format: docs/formats/data-rows.md v1
//! Design: docs/design/cluster.md#rules VOL-73
//! Not here: when pieces are taken (`stage`), when they become a file (`apply`), and how their rows go
//! (`upload_rows`).

use crate::{format::UploadRow, keys, spaces::Spaces};
use bytes::Bytes;
use copal_volume::{FileId, VolumeId};
use std::collections::BTreeMap;

/// An upload to which nothing was added for so long goes.
const EXPIRY_MS: u64 = 24 * 3600 * 1000;
/// The same on a full disk: those that were refused for lack of room hold what others could have.
const EXPIRY_WHEN_FULL_MS: u64 = 600_000;
/// One of a process that has probably died may be begun anew by another of the same name after so long.
const IDLE_MS: u64 = 60_000;
/// Uploads of one disk.
pub(super) const MOST_UPLOADS: usize = 16_384;

/// Who began an upload. It stays the same over connections, and over members that pass pieces on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadOrigin {
    /// Name in the client's certificate; empty: this server, which takes a file over.
    pub client: Bytes,
    /// The incarnation of that client.
    pub incarnation: u64,
}

impl UploadOrigin {
    /// Whether it is this server itself.
    pub fn is_own(&self) -> bool {
        self.client.is_empty()
    }
}

/// What is known of an upload.
#[derive(Clone, Debug)]
pub(super) struct Upload {
    pub(super) origin: UploadOrigin,
    pub(super) touched_ms: u64,
    pub(super) bytes: u64,
    /// Written by an earlier release, which knew no origins and no checksums of pieces, and could begin one
    /// under a file that is there.
    pub(super) is_legacy: bool,
}

/// All uploads of a disk.
#[derive(Default)]
pub(super) struct Uploads(BTreeMap<(VolumeId, FileId), Upload>);

impl Uploads {
    /// Reads the rows of a disk. What cannot be read takes room until its volume goes.
    pub(super) fn load(spaces: &Spaces) -> Uploads {
        let mut uploads = BTreeMap::new();
        for row in spaces.uploads.prefix(&[]) {
            let (key, row) = match row {
                Ok(row) => row,
                Err(error) => {
                    tracing::warn!(%error, "uploads behind this cannot be read, and stay");
                    break;
                }
            };
            let Some((vid, rest)) = keys::split(&key) else {
                continue;
            };
            // Rows of pieces have longer keys.
            let Some(fid) = keys::split_upload(rest) else {
                continue;
            };
            match UploadRow::parse(&key, &row) {
                Ok(upload) => drop(uploads.insert((vid, fid), Upload::of(upload))),
                Err(error) => {
                    tracing::warn!(volume = %vid, file = %fid, %error, "the row of an upload is damaged")
                }
            }
        }
        Uploads(uploads)
    }

    pub(super) fn get(&self, vid: VolumeId, fid: FileId) -> Option<&Upload> {
        self.0.get(&(vid, fid))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn insert(&mut self, vid: VolumeId, fid: FileId, upload: Upload) {
        self.0.insert((vid, fid), upload);
    }

    pub(super) fn remove(&mut self, vid: VolumeId, fid: FileId) {
        self.0.remove(&(vid, fid));
    }

    /// Bytes of all uploads.
    pub(super) fn bytes(&self) -> u64 {
        self.0.values().map(|upload| upload.bytes).sum()
    }

    /// Bytes of all uploads into a volume.
    pub(super) fn bytes_of(&self, vid: VolumeId) -> u64 {
        let of_volume = self.0.range((vid, FileId(0))..=(vid, FileId(u128::MAX)));
        of_volume.map(|(_, upload)| upload.bytes).sum()
    }

    /// A group or a volume is gone from this disk, with all its rows.
    pub(super) fn forget(&mut self, is_gone: impl Fn(VolumeId) -> bool) {
        self.0.retain(|(vid, _), _| !is_gone(*vid));
    }

    /// Those to which nothing was added for so long.
    pub(super) fn expired(&self, now_ms: u64, is_disk_full: bool) -> Vec<(VolumeId, FileId)> {
        let is_expired = |upload: &Upload| upload.is_expired(now_ms, is_disk_full);
        let expired = self.0.iter().filter(|(_, upload)| is_expired(upload));
        expired.map(|(key, _)| *key).collect()
    }
}

impl Upload {
    fn of(row: Option<UploadRow>) -> Upload {
        let is_legacy = row.is_none();
        let row = row.unwrap_or(UploadRow { touched_ms: 0, bytes: 0, client: Bytes::new(), incarnation: 0 });
        Upload {
            origin: UploadOrigin { client: row.client, incarnation: row.incarnation },
            touched_ms: row.touched_ms,
            bytes: row.bytes,
            is_legacy,
        }
    }

    pub(super) fn row(&self) -> UploadRow {
        UploadRow {
            touched_ms: self.touched_ms,
            bytes: self.bytes,
            client: self.origin.client.clone(),
            incarnation: self.origin.incarnation,
        }
    }

    /// Whether nothing was added for so long that it goes.
    pub(super) fn is_expired(&self, now_ms: u64, is_disk_full: bool) -> bool {
        let after_ms = match is_disk_full {
            true => EXPIRY_WHEN_FULL_MS,
            false => EXPIRY_MS,
        };
        self.touched_ms.saturating_add(after_ms) <= now_ms
    }

    /// Whether another origin may begin the upload anew: this server always, and a client of the same name,
    /// or one that may do everything, when its owner has probably died.
    pub(super) fn yields_to(&self, origin: &UploadOrigin, may_do_everything: bool, now_ms: u64) -> bool {
        if self.is_legacy || origin.is_own() {
            return true;
        }
        let is_idle = self.touched_ms.saturating_add(IDLE_MS) <= now_ms;
        is_idle && !self.origin.is_own() && (may_do_everything || self.origin.client == origin.client)
    }
}

#[cfg(test)]
mod tests;
