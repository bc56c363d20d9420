//! Journal entry: one accepted operation, decoded from its row.

use crate::{
    error::corrupt,
    format::{JournalAction, JournalRow},
    keys,
};
use bytes::Bytes;
use copal_volume::{FileId, OpId, VolumeError, VolumeId};

/// One operation that a member has accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// Key of the row: the next page starts after it.
    pub key: Bytes,
    /// The operation.
    pub op: OpId,
    /// Whether it is a create; else a delete.
    pub is_create: bool,
    /// The file's volume.
    pub vid: VolumeId,
    /// The file's name.
    pub name: Bytes,
    /// The file.
    pub fid: FileId,
}

pub(super) fn journal_entry(key: Bytes, row: &Bytes) -> Result<JournalEntry, VolumeError> {
    let damaged = |error: String| corrupt(format!("a row of the journal: {error}"));
    let parsed = JournalRow::parse(&key, row).map_err(|error| damaged(error.to_string()))?;
    let op = keys::split_journal(&key).ok_or_else(|| damaged("its key is cut".to_owned()))?;
    Ok(JournalEntry {
        op,
        is_create: parsed.did == JournalAction::Create,
        vid: parsed.vid,
        name: parsed.name,
        fid: parsed.fid,
        key,
    })
}
