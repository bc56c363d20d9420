//! Fields that records, checkpoints and manifests share, and their encoding.

use crate::request::SnapshotId;
use copal_codec::{DecodeError, Put, Reader};

/// One session: one attempt to back up one VM.
pub(crate) type SessionId = [u8; 16];

/// Largest sequence of a snapshot: one a millisecond for 8,000 years.
pub(crate) const MAX_SEQUENCE: u64 = 1 << 48;

/// Reference to the valid list of dead frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DeadList {
    pub(crate) number: u64,
    /// Hash of its file.
    pub(crate) hash: [u8; 32],
}

/// Encodes an optional list of dead frames: 0, or 1, its number and its hash.
pub(super) fn put_dead(bytes: &mut Vec<u8>, dead: Option<&DeadList>) {
    bytes.put_u8(u8::from(dead.is_some()));
    if let Some(dead) = dead {
        bytes.put_u64(dead.number);
        bytes.put_bytes(&dead.hash);
    }
}

/// Decodes the output of [`put_dead`]. The number is capped, so that the next one does not overflow.
pub(super) fn dead(input: &mut Reader<'_>) -> Result<Option<DeadList>, DecodeError> {
    Ok(match input.bounded(1)? {
        0 => None,
        _ => Some(DeadList { number: input.u64()?.min(MAX_SEQUENCE), hash: input.array()? }),
    })
}

/// Most lists of moved frames of a VM.
pub(crate) const MAX_MOVED_LISTS: usize = 1024;

/// Reference to a valid list of moved frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MovedList {
    pub(crate) number: u64,
    /// Number of ids in it.
    pub(crate) ids: u32,
    /// Hash of its file.
    pub(crate) hash: [u8; 32],
}

/// Encodes lists of moved frames: their count, then number, ids and hash of each.
pub(super) fn put_moved(bytes: &mut Vec<u8>, lists: &[MovedList]) {
    bytes.put_varint(lists.len() as u64);
    for list in lists {
        bytes.put_u64(list.number);
        bytes.put_u32(list.ids);
        bytes.put_bytes(&list.hash);
    }
}

/// Decodes the output of [`put_moved`]. The numbers are capped, so that the next one does not overflow.
pub(super) fn moved(input: &mut Reader<'_>) -> Result<Vec<MovedList>, DecodeError> {
    let count = input.bounded(MAX_MOVED_LISTS)?;
    let list =
        |_| Ok(MovedList { number: input.u64()?.min(MAX_SEQUENCE), ids: input.u32()?, hash: input.array()? });
    (0..count).map(list).collect()
}

/// Encodes an optional snapshot: 0, or 1 and its id.
pub(crate) fn put_option(bytes: &mut Vec<u8>, snapshot: Option<SnapshotId>) {
    bytes.put_u8(u8::from(snapshot.is_some()));
    if let Some(snapshot) = snapshot {
        bytes.put_bytes(&snapshot.0);
    }
}

/// Decodes the output of [`put_option`].
pub(crate) fn option(input: &mut Reader<'_>) -> Result<Option<SnapshotId>, DecodeError> {
    match input.bounded(1)? {
        0 => Ok(None),
        _ => Ok(Some(SnapshotId(input.array()?))),
    }
}
