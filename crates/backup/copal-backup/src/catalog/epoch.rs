//! Epochs: a counter that rises before packs are added or removed.
//!
//! An epoch is an empty file `e.<number>`. A backup raises the epoch before its first pack, a prune before its
//! first removal. An index that is up to date in the newest epoch, or made all changes of that epoch itself,
//! knows all packs, so the packs need not be listed.

use super::files::CatalogFiles;
use super::log::number_of;
use crate::request::error::Result;
use bytes::Bytes;
use copal_volume::{FileInfo, VolumeError};

const PREFIX: &str = "e.";
/// Number of epoch files after which the older ones are deleted.
const CLEARED_AFTER: u64 = 64;

fn place(epoch: u64) -> String {
    format!("{PREFIX}{epoch:016x}")
}

/// The newest epoch; 0: no pack was ever written.
/// # Errors
/// Errors of the store.
pub(crate) fn newest_epoch(files: &CatalogFiles) -> Result<u64> {
    let listed = epochs(files)?;
    listed.last().map_or(Ok(0), |(name, _)| number_of(PREFIX, name))
}

fn epochs(files: &CatalogFiles) -> Result<Vec<(Bytes, FileInfo)>> {
    let mut found = Vec::new();
    // If no newer epoch is listed, an index counts as complete; the listing is strict.
    files.for_each(PREFIX, |name, info| {
        found.push((Bytes::copy_from_slice(name), info.clone()));
        Ok(())
    })?;
    Ok(found)
}

/// Creates the epoch after `from` and returns it; `None` if another process did.
/// # Errors
/// Errors of the store.
pub(crate) fn raise_epoch(files: &CatalogFiles, from: u64) -> Result<Option<u64>> {
    let raised = from.saturating_add(1);
    let name = place(raised);
    match files.put(name.as_bytes(), Bytes::new()) {
        Ok(_) => {}
        Err(VolumeError::Exists { .. }) => return Ok(None),
        Err(VolumeError::Unknown { fid }) => {
            if !files.settled(fid)? {
                return Ok(None);
            }
        }
        Err(error) => return Err(error.into()),
    }
    // The number may have been free because its file was deleted as an old one.
    let listed = epochs(files)?;
    if listed.last().is_some_and(|(newest, _)| newest.as_ref() > name.as_bytes()) {
        return Ok(None);
    }
    if listed.len() as u64 >= CLEARED_AFTER {
        let older = listed.iter().filter(|(older, _)| older.as_ref() < name.as_bytes());
        let older: Vec<_> = older.map(|(older, info)| (older.clone(), info.fid)).collect();
        files.delete_unneeded(&older)?;
    }
    Ok(Some(raised))
}
