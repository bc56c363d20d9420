//! Journal entry: one accepted operation, decoded from its row.

use super::disk_state::MemberCore;
use crate::{
    error::{corrupt, of_engine},
    format::{JournalAction, JournalRow},
    keys,
};
use bytes::Bytes;
use copal_volume::{
    FileId, OpId, VolumeError, VolumeId,
    group::{Bucket, GroupId},
};

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

/// The first bucket with operations, from `from` on.
pub(super) fn first_bucket(
    core: &MemberCore,
    group: GroupId,
    from: Bucket,
) -> Result<Option<Bucket>, VolumeError> {
    let prefix = keys::group(group);
    let end = keys::above(&prefix);
    let start = keys::journal_bucket(group, from.0);
    let end = match &end {
        Some(end) => std::ops::Bound::Excluded(&end[..]),
        None => std::ops::Bound::Unbounded,
    };
    let range = (std::ops::Bound::Included(&start[..]), end);
    let first = core.own.journal.iter(range).keys_only().next();
    let Some((key, _)) = first.transpose().map_err(|error| of_engine(&error))? else {
        return Ok(None);
    };
    Ok(keys::split_journal(&key).map(Bucket::of))
}

pub(super) fn each_record(
    core: &MemberCore,
    group: GroupId,
    from: Bucket,
    last: Option<Bucket>,
    mut each: impl FnMut(&JournalEntry),
) -> Result<(), VolumeError> {
    let start = keys::journal_bucket(group, from.0);
    let end = match last {
        Some(last) => keys::above(&keys::journal_bucket(group, last.0)),
        None => keys::above(&keys::group(group)),
    };
    let end = match &end {
        Some(end) => std::ops::Bound::Excluded(&end[..]),
        None => std::ops::Bound::Unbounded,
    };
    let range = (std::ops::Bound::Included(&start[..]), end);
    for row in core.own.journal.iter(range) {
        let (key, row) = row.map_err(|error| of_engine(&error))?;
        each(&journal_entry(key, &row)?);
    }
    Ok(())
}
