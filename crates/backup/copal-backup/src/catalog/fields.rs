//! Fields that records, checkpoints and manifests have in common, and their bytes.

use crate::request::SnapshotId;
use copal_codec::{DecodeError, Put, Reader};

/// One session: a single attempt to back up one VM.
pub(crate) type SessionId = [u8; 16];

/// Above the sequence of any snapshot: one a millisecond for 8,000 years.
pub(crate) const MAX_SEQUENCE: u64 = 1 << 48;

/// The list of dead frames that is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DeadList {
    pub(crate) number: u64,
    /// Of its file.
    pub(crate) hash: [u8; 32],
}

/// An optional list of dead frames: 0, or 1, its number and its hash.
pub(super) fn put_dead(bytes: &mut Vec<u8>, dead: Option<&DeadList>) {
    bytes.put_u8(u8::from(dead.is_some()));
    if let Some(dead) = dead {
        bytes.put_u64(dead.number);
        bytes.put_bytes(&dead.hash);
    }
}

/// Reads what [`put_dead`] wrote. A number that nobody can count on from is none.
pub(super) fn dead(input: &mut Reader<'_>) -> Result<Option<DeadList>, DecodeError> {
    Ok(match input.bounded(1)? {
        0 => None,
        _ => Some(DeadList { number: input.u64()?.min(MAX_SEQUENCE), hash: input.array()? }),
    })
}

/// Most lists of moved frames of a VM that are in force at once.
pub(crate) const MAX_MOVED_LISTS: usize = 1024;

/// A list of moved frames that is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MovedList {
    pub(crate) number: u64,
    /// How many ids it leads on.
    pub(crate) ids: u32,
    /// Of its file.
    pub(crate) hash: [u8; 32],
}

/// Lists of moved frames: how many, then the number, the ids and the hash of each.
pub(super) fn put_moved(bytes: &mut Vec<u8>, lists: &[MovedList]) {
    bytes.put_varint(lists.len() as u64);
    for list in lists {
        bytes.put_u64(list.number);
        bytes.put_u32(list.ids);
        bytes.put_bytes(&list.hash);
    }
}

/// Reads what [`put_moved`] wrote. A number that nobody can count on from is none.
pub(super) fn moved(input: &mut Reader<'_>) -> Result<Vec<MovedList>, DecodeError> {
    let count = input.bounded(MAX_MOVED_LISTS)?;
    let list =
        |_| Ok(MovedList { number: input.u64()?.min(MAX_SEQUENCE), ids: input.u32()?, hash: input.array()? });
    (0..count).map(list).collect()
}

/// An optional snapshot: 0, or 1 and its id.
pub(crate) fn put_option(bytes: &mut Vec<u8>, snapshot: Option<SnapshotId>) {
    bytes.put_u8(u8::from(snapshot.is_some()));
    if let Some(snapshot) = snapshot {
        bytes.put_bytes(&snapshot.0);
    }
}

/// Reads what [`put_option`] wrote.
pub(crate) fn option(input: &mut Reader<'_>) -> Result<Option<SnapshotId>, DecodeError> {
    match input.bounded(1)? {
        0 => Ok(None),
        _ => Ok(Some(SnapshotId(input.array()?))),
    }
}
