//! Internal entries: what memtables, tables and merges pass to each other.
//!
//! Invariants
//! - Order is user key ascending, then sequence descending: the newest version of a key comes first.
//! - A sequence has 56 bits; together with the kind it makes the 64-bit tag stored in tables.
//!
//! Not here: what a key is made of, range tombstones' effect on reads.

use bytes::Bytes;
use copal_codec::Reader;
use copal_object::ObjectId;
use std::cmp::Ordering;

/// Largest sequence; reading at it sees everything.
pub const MAX_SEQ: u64 = (1 << 56) - 1;
/// The last sequence that is given to an operation: nothing on disk names a later one.
pub(crate) const LAST_SEQ: u64 = MAX_SEQ - 1;
/// Longest key of an entry: a user key of 65535 bytes behind a keyspace id of 4, and one byte more for its
/// successor.
pub const MAX_KEY_BYTES: usize = 65_540;
/// Longest value.
pub const MAX_VALUE_BYTES: usize = 1 << 30;

/// What a version of a key says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EntryKind {
    /// The key is gone from here on.
    Delete = 0,
    /// The value stands in the entry.
    Put = 1,
    /// The value stands in a value object; the entry holds a pointer.
    Pointer = 2,
}

impl EntryKind {
    /// The kind stored as `byte`.
    pub fn from_byte(byte: u8) -> Option<EntryKind> {
        match byte {
            0 => Some(EntryKind::Delete),
            1 => Some(EntryKind::Put),
            2 => Some(EntryKind::Pointer),
            _ => None,
        }
    }
}

/// One version of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Key, ordered bytewise.
    pub key: &'a [u8],
    /// Commit number, 56 bits.
    pub seq: u64,
    /// What the version says.
    pub kind: EntryKind,
    /// Value, encoded pointer, or empty for a delete.
    pub value: &'a [u8],
}

impl Entry<'_> {
    /// Place of the entry in the internal order.
    pub fn position(&self) -> (&[u8], u64) {
        (self.key, self.seq)
    }
}

/// Compares two places in the internal order: key ascending, then sequence descending.
pub fn compare(a: (&[u8], u64), b: (&[u8], u64)) -> Ordering {
    a.0.cmp(b.0).then(b.1.cmp(&a.1))
}

/// Sequence and kind as one stored number.
pub(crate) fn pack_tag(seq: u64, kind: EntryKind) -> u64 {
    seq << 8 | kind as u64
}

/// Takes a stored tag apart; `None` for a kind no writer produces.
pub(crate) fn unpack_tag(tag: u64) -> Option<(u64, EntryKind)> {
    Some((tag >> 8, EntryKind::from_byte(tag as u8)?))
}

/// Deletes the keys in `[start, end)` up to and including `seq`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RangeTombstone {
    /// First key deleted.
    pub start: Bytes,
    /// First key not deleted any more.
    pub end: Bytes,
    /// Commit number of the delete.
    pub seq: u64,
}

/// What every encoded pointer to a separated value begins with: value object u64, offset u64, length u32.
/// Tables count the values they point at by these; the rest of a pointer is the engine's.
pub(crate) fn pointer_head(value: &[u8]) -> Option<(ObjectId, u32)> {
    let mut from = Reader::new(value);
    let object = ObjectId(from.u64().ok()?);
    from.u64().ok()?;
    Some((object, from.u32().ok()?))
}
