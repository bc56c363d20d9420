//! Table of uploads without a file yet: origin, bytes and expiry of each.
//!
//! All of them are in memory, read from rows at the start. There are few, since each has more than 4 MiB.
//!
//! Invariants
//! - An upload has one origin. Only that origin adds pieces to it and makes a file of it.
//! - No upload has the id of an existing file: its expiry never deletes a piece of a file.
//! - An upload expires one day after its last piece, on a full disk after ten minutes.
//!
//! Format: docs/formats/data-rows.md v1
//! Design: docs/design/cluster.md#rules VOL-73
//! Not here: acceptance of pieces (`stage`), creation of the file (`group_batch`), deletion of rows
//! (`upload_rows`).

use crate::{format::UploadRow, keys, keyspaces::DataKeyspaces};
use bytes::Bytes;
use copal_volume::{FileId, VolumeId};
use std::collections::BTreeMap;

/// Time from the last piece to the expiry of an upload, ms.
const EXPIRY_MS: u64 = 24 * 3600 * 1000;
/// The same on a full disk, ms: refused uploads hold space that others could use.
const EXPIRY_WHEN_FULL_MS: u64 = 600_000;
/// Time after which another process with the same client name may restart an upload, ms: its own process has
/// probably died.
const IDLE_MS: u64 = 60_000;
/// Maximum number of uploads on one disk.
pub(super) const MOST_UPLOADS: usize = 16_384;

/// Origin of an upload. It stays the same over connections, and over members that pass pieces on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadOrigin {
    /// Name in the client's certificate; empty: this server, which copies a file.
    pub client: Bytes,
    /// The incarnation of that client.
    pub incarnation: u64,
}

impl UploadOrigin {
    /// Whether it is this server.
    pub fn is_own(&self) -> bool {
        self.client.is_empty()
    }
}

/// Known state of an upload.
#[derive(Clone, Debug)]
pub(super) struct StagedUpload {
    pub(super) origin: UploadOrigin,
    pub(super) touched_ms: u64,
    pub(super) bytes: u64,
    /// Written by an earlier release, without origin and checksums of pieces. It may belong to an existing
    /// file.
    pub(super) is_legacy: bool,
}

/// All uploads of a disk.
#[derive(Default)]
pub(super) struct UploadTable(BTreeMap<(VolumeId, FileId), StagedUpload>);

impl UploadTable {
    /// Reads the rows of a disk. An unreadable upload takes space until its volume is removed.
    pub(super) fn load(spaces: &DataKeyspaces) -> UploadTable {
        let mut uploads = BTreeMap::new();
        for row in spaces.uploads.prefix(&[]) {
            let (key, row) = match row {
                Ok(row) => row,
                Err(error) => {
                    tracing::warn!(%error, "further uploads are unreadable and stay on the disk");
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
                Ok(upload) => drop(uploads.insert((vid, fid), StagedUpload::of(upload))),
                Err(error) => {
                    tracing::warn!(volume = %vid, file = %fid, %error, "the row of an upload is damaged")
                }
            }
        }
        UploadTable(uploads)
    }

    pub(super) fn get(&self, vid: VolumeId, fid: FileId) -> Option<&StagedUpload> {
        self.0.get(&(vid, fid))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn insert(&mut self, vid: VolumeId, fid: FileId, upload: StagedUpload) {
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

    /// Drops the uploads of removed groups or volumes.
    pub(super) fn forget(&mut self, is_removed: impl Fn(VolumeId) -> bool) {
        self.0.retain(|(vid, _), _| !is_removed(*vid));
    }

    /// All expired uploads.
    pub(super) fn expired(&self, now_ms: u64, is_disk_full: bool) -> Vec<(VolumeId, FileId)> {
        let is_expired = |upload: &StagedUpload| upload.is_expired(now_ms, is_disk_full);
        let expired = self.0.iter().filter(|(_, upload)| is_expired(upload));
        expired.map(|(key, _)| *key).collect()
    }
}

impl StagedUpload {
    fn of(row: Option<UploadRow>) -> StagedUpload {
        let is_legacy = row.is_none();
        let row = row.unwrap_or(UploadRow { touched_ms: 0, bytes: 0, client: Bytes::new(), incarnation: 0 });
        StagedUpload {
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

    /// Whether the upload has expired.
    pub(super) fn is_expired(&self, now_ms: u64, is_disk_full: bool) -> bool {
        let after_ms = match is_disk_full {
            true => EXPIRY_WHEN_FULL_MS,
            false => EXPIRY_MS,
        };
        self.touched_ms.saturating_add(after_ms) <= now_ms
    }

    /// Whether another origin may restart the upload. This server always may. A client may if the owner has
    /// probably died, and only with the same name or with all rights.
    pub(super) fn yields_to(&self, origin: &UploadOrigin, has_all_rights: bool, now_ms: u64) -> bool {
        if self.is_legacy || origin.is_own() {
            return true;
        }
        let is_idle = self.touched_ms.saturating_add(IDLE_MS) <= now_ms;
        is_idle && !self.origin.is_own() && (has_all_rights || self.origin.client == origin.client)
    }
}

#[cfg(test)]
mod tests;
