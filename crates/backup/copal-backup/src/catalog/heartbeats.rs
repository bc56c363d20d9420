//! Heartbeats of processes with open sessions, in a fleet on several servers.
//!
//! Files `a.<holder>.<number>`, each with one Beat record. A holder is one run of one program, with a random
//! id; its numbers ascend. Only the appearance of a newer number is a heartbeat: no time that a clock stamped
//! decides anything (BAK-21). Only the newest number is needed. A holder deletes its older files, and all of
//! them when it ends.
//!
//! Format: docs/formats/backup-catalog.md v4
//! Not here: writing at intervals (`lease::heartbeat`), conclusions from missing heartbeats (`lease::watch`).

use super::files::CatalogFiles;
use super::record::Record;
use crate::request::error::Result;
use crate::request::open_session::HolderId;
use bytes::Bytes;
use copal_volume::{FileId, FileInfo, VolumeError};

const PREFIX: &str = "a.";
/// Age after which the files of a silent holder are deleted. This decides nothing: a holder that is alive
/// soon writes a newer file.
const CLEARED_AFTER_MS: u64 = 7 * 24 * 3600 * 1000;
/// Longest record of this kind.
const MAX_BEAT_BYTES: u64 = 1024;

/// A heartbeat file in the catalog.
#[derive(Clone, Debug)]
pub(crate) struct StoredHeartbeat {
    pub(crate) holder: HolderId,
    pub(crate) number: u64,
    /// By the store's order of events.
    pub(crate) created_ms: u64,
    file: (Bytes, FileId),
}

/// Content of a heartbeat.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeartbeatContent {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) progress: u64,
}

/// All heartbeat files, by holder, oldest first.
/// # Errors
/// Errors of the store.
pub(crate) fn list_heartbeats(files: &CatalogFiles) -> Result<Vec<StoredHeartbeat>> {
    let mut found = Vec::new();
    // A holder without a newer file is taken for dead, so the listing is strict.
    files.for_each(PREFIX, |name, info| {
        found.extend(stored(Bytes::copy_from_slice(name), info));
        Ok(())
    })?;
    Ok(found)
}

/// The content of a heartbeat, for display; `None`: the file was removed meanwhile, or cannot be read.
/// # Errors
/// Errors of the store.
pub(crate) fn heartbeat_content(
    files: &CatalogFiles,
    beat: &StoredHeartbeat,
) -> Result<Option<HeartbeatContent>> {
    let (name, _) = &beat.file;
    let bytes = match files.get(name, MAX_BEAT_BYTES) {
        Err(VolumeError::NotFound | VolumeError::Corrupt { .. }) => return Ok(None),
        read => read?,
    };
    match Record::decode(&bytes, &String::from_utf8_lossy(name), files.keys()) {
        Ok(Record::Beat { name, address, progress }) => {
            Ok(Some(HeartbeatContent { name, address, progress }))
        }
        Ok(_) => Ok(None),
        Err(detail) => {
            tracing::warn!(file = %String::from_utf8_lossy(&beat.file.0), detail, "malformed heartbeat record ignored");
            Ok(None)
        }
    }
}

/// Deletes all heartbeat files except the newest of each holder, and old ones of silent holders. A
/// process without the right to delete leaves them to another, such as a prune.
/// # Errors
/// Errors of the store.
pub(crate) fn clear_heartbeats(files: &CatalogFiles) -> Result<()> {
    let heartbeats = list_heartbeats(files)?;
    let now_ms = files.store().now_ms();
    let is_old = |beat: &StoredHeartbeat| now_ms.saturating_sub(beat.created_ms) > CLEARED_AFTER_MS;
    // The files of a holder are sorted by number.
    let has_newer =
        |at: usize| heartbeats.get(at + 1).is_some_and(|next| next.holder == heartbeats[at].holder);
    let of_no_use = heartbeats.iter().enumerate().filter(|(at, beat)| has_newer(*at) || is_old(beat));
    drop_heartbeats(files, of_no_use.map(|(_, beat)| beat))
}

/// Deletes heartbeat files. A process without the right to delete leaves them to another.
/// # Errors
/// Errors of the store.
pub(crate) fn drop_heartbeats<'a>(
    files: &CatalogFiles,
    heartbeats: impl Iterator<Item = &'a StoredHeartbeat>,
) -> Result<()> {
    let deleted: Vec<(Bytes, FileId)> = heartbeats.map(|beat| beat.file.clone()).collect();
    files.delete_unneeded(&deleted)
}

/// Writes the heartbeats of one holder.
pub(crate) struct HeartbeatWriter {
    files: CatalogFiles,
    holder: HolderId,
    /// Its files that still exist, oldest first.
    kept: Vec<(Bytes, FileId)>,
}

impl HeartbeatWriter {
    /// Most files of a holder.
    pub(crate) const KEPT: usize = 8;

    /// A writer that is independent of the life of the handle.
    pub(crate) fn new(files: &CatalogFiles, holder: HolderId) -> HeartbeatWriter {
        HeartbeatWriter { files: files.clone(), holder, kept: Vec::new() }
    }

    /// Writes one heartbeat; durable on return.
    /// # Errors
    /// Errors of the store.
    pub(crate) fn write(&mut self, number: u64, words: &HeartbeatContent) -> Result<()> {
        let place = format!("{PREFIX}{}.{number:016x}", self.holder);
        let record = Record::Beat {
            name: words.name.clone(),
            address: words.address.clone(),
            progress: words.progress,
        };
        let bytes = record.encode(&place, self.files.keys());
        let put = self.files.put(place.as_bytes(), bytes.into());
        let fid = match put {
            Ok(info) => info.fid,
            Err(VolumeError::Unknown { fid }) if self.files.settled(fid)? => fid,
            Err(error) => return Err(error.into()),
        };
        self.kept.push((Bytes::from(place), fid));
        if self.kept.len() >= Self::KEPT {
            let newest = self.kept.split_off(self.kept.len() - 1);
            self.drop_kept();
            self.kept = newest;
        }
        Ok(())
    }

    /// Deletes all its files.
    pub(crate) fn end(mut self) {
        self.drop_kept();
    }

    /// Deletes its files. Files that it cannot delete are left to `clear_heartbeats`.
    fn drop_kept(&mut self) {
        let kept = std::mem::take(&mut self.kept);
        if let Err(error) = self.files.delete(&kept) {
            tracing::debug!(%error, "old heartbeats could not be removed");
        }
    }
}

/// Parses the name of a heartbeat file; `None` for other files.
fn stored(name: Bytes, info: &FileInfo) -> Option<StoredHeartbeat> {
    let text = std::str::from_utf8(&name).ok()?;
    let (holder, number) = text.strip_prefix(PREFIX)?.split_once('.')?;
    let holder = HolderId(u128::from_str_radix(holder, 16).ok()?.to_be_bytes());
    let number = u64::from_str_radix(number, 16).ok()?;
    (text == format!("{PREFIX}{holder}.{number:016x}")).then_some(StoredHeartbeat {
        holder,
        number,
        created_ms: info.created_ms,
        file: (name, info.fid),
    })
}
