//! Internal entries of memtables, tables and merges, and internal keys.
//!
//! Invariants
//! - Order is user key ascending, then sequence descending: the newest version of a key comes first.
//! - A sequence has 56 bits; together with the kind it makes the 64-bit tag stored in tables.
//!
//! Not here: effect of range tombstones on reads.
//!
//! An internal key is the keyspace's id (4 bytes, big-endian), then the user's key, ordered bytewise. So all
//! keyspaces share one key order, one log and one tree, and a keyspace is a range of it. Each range inside
//! the engine is `[start, end)` with an end: keyspace ids stay below `u32::MAX`.

use crate::Error;
use bytes::Bytes;
use copal_codec::Reader;
use copal_object::ObjectId;
use std::{cmp::Ordering, ops::Bound};

/// Largest sequence; reading at it sees everything.
pub const MAX_SEQ: u64 = (1 << 56) - 1;
/// The last sequence that is allocated to an operation: no later one is stored.
pub(crate) const LAST_SEQ: u64 = MAX_SEQ - 1;
/// Longest key of an entry: a user key of 65535 bytes after a keyspace id of 4, and one byte more for its
/// successor.
pub const MAX_KEY_BYTES: usize = 65_540;
/// Longest value.
pub const MAX_VALUE_BYTES: usize = 1 << 30;

/// Kind of a version of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EntryKind {
    /// The key is deleted from here on.
    Delete = 0,
    /// The value is in the entry.
    Put = 1,
    /// The value is in a value object; the entry holds a pointer.
    Pointer = 2,
}

impl EntryKind {
    /// The kind with the stored number `byte`.
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
    /// Kind of the version.
    pub kind: EntryKind,
    /// Value, encoded pointer, or empty for a delete.
    pub value: &'a [u8],
}

impl Entry<'_> {
    /// Position of the entry in the internal order.
    pub fn position(&self) -> (&[u8], u64) {
        (self.key, self.seq)
    }
}

/// Compares two positions in the internal order: key ascending, then sequence descending.
pub fn compare(a: (&[u8], u64), b: (&[u8], u64)) -> Ordering {
    a.0.cmp(b.0).then(b.1.cmp(&a.1))
}

/// Sequence and kind as one stored number.
pub(crate) fn pack_tag(seq: u64, kind: EntryKind) -> u64 {
    seq << 8 | kind as u64
}

/// Sequence and kind of a stored tag; `None` for a kind that no writer produces.
pub(crate) fn unpack_tag(tag: u64) -> Option<(u64, EntryKind)> {
    Some((tag >> 8, EntryKind::from_byte(tag as u8)?))
}

/// Deletes the keys in `[start, end)` up to and including `seq`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RangeTombstone {
    /// First key deleted.
    pub start: Bytes,
    /// Exclusive end: the first key that is not deleted.
    pub end: Bytes,
    /// Commit number of the delete.
    pub seq: u64,
}

/// Beginning of every encoded pointer to a separated value: value object u64, offset u64, length u32. Tables
/// count the values they point at by these fields; the engine uses the rest of a pointer.
pub(crate) fn pointer_head(value: &[u8]) -> Option<(ObjectId, u32)> {
    let mut from = Reader::new(value);
    let object = ObjectId(from.u64().ok()?);
    from.u64().ok()?;
    Some((object, from.u32().ok()?))
}

/// Bytes of the keyspace id in an internal key.
pub(crate) const KEYSPACE_LEN: usize = 4;
/// Longest user key.
pub(crate) const MAX_USER_KEY: usize = 65535;
/// Longest internal key, with the zero byte that makes an inclusive bound exclusive.
pub(crate) const MAX_KEY: usize = MAX_USER_KEY + KEYSPACE_LEN + 1;

/// Number of a keyspace; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyspaceId(pub(crate) u32);

impl KeyspaceId {
    /// The internal key of `key` in this keyspace.
    pub(crate) fn key(self, key: &[u8]) -> Bytes {
        let mut out = Vec::with_capacity(KEYSPACE_LEN + key.len());
        out.extend_from_slice(&self.0.to_be_bytes());
        out.extend_from_slice(key);
        Bytes::from(out)
    }

    /// Like [`KeyspaceId::key`], but refuses keys that are too long.
    pub(crate) fn checked_key(self, key: &[u8]) -> Result<Bytes, Error> {
        if key.len() > MAX_USER_KEY {
            return Err(Error::KeyTooLong(key.len()));
        }
        Ok(self.key(key))
    }

    /// All keys of this keyspace.
    pub(crate) fn range(self) -> KeyRange {
        KeyRange { start: self.key(b""), end: KeyspaceId(self.0 + 1).key(b"") }
    }

    /// The part of this keyspace between two bounds of user keys.
    pub(crate) fn between(self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> KeyRange {
        let all = self.range();
        let start = match range.0 {
            Bound::Unbounded => all.start,
            Bound::Included(key) => self.key(key),
            Bound::Excluded(key) => successor(&self.key(key)),
        };
        let end = match range.1 {
            Bound::Unbounded => all.end,
            Bound::Excluded(key) => self.key(key),
            Bound::Included(key) => successor(&self.key(key)),
        };
        KeyRange { start, end }
    }

    /// All keys of this keyspace that start with `prefix`.
    pub(crate) fn prefix(self, prefix: &[u8]) -> KeyRange {
        let start = self.key(prefix);
        let end = prefix_end(&start);
        KeyRange { start, end }
    }
}

/// The keyspace of an internal key; `None` when the key is too short.
pub(crate) fn keyspace_of(key: &[u8]) -> Option<KeyspaceId> {
    let id: [u8; KEYSPACE_LEN] = key.get(..KEYSPACE_LEN)?.try_into().ok()?;
    Some(KeyspaceId(u32::from_be_bytes(id)))
}

/// The user's part of an internal key.
pub(crate) fn user_key(key: &Bytes) -> Bytes {
    key.slice(KEYSPACE_LEN.min(key.len())..)
}

/// The smallest key above `key`.
pub(crate) fn successor(key: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(key.len() + 1);
    out.extend_from_slice(key);
    out.push(0);
    Bytes::from(out)
}

/// The smallest key above all keys that start with `prefix`; empty if `prefix` is all 0xff, which no internal
/// key is.
fn prefix_end(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.last_mut() {
        if *last < u8::MAX {
            *last += 1;
            break;
        }
        end.pop();
    }
    Bytes::from(end)
}

/// Limit of the length of table bounds where a shortened key works as well: bounds are in memory while the
/// table is open.
pub(crate) const SHORT_BOUND: usize = 256;

/// A prefix of `key` of at most [`SHORT_BOUND`] bytes, so not above it.
pub(crate) fn short_below(key: &Bytes) -> Bytes {
    if key.len() <= SHORT_BOUND {
        return key.clone();
    }
    Bytes::copy_from_slice(&key[..SHORT_BOUND])
}

/// A key above `last` and not above `next`, which must be above `last`: `next` itself, or for a long one a
/// prefix of it that differs from `last`.
pub(crate) fn border_between(last: &[u8], next: &[u8]) -> Bytes {
    if next.len() <= SHORT_BOUND || *last >= *next {
        return Bytes::copy_from_slice(next);
    }
    let shared = last.iter().zip(next).take_while(|(a, b)| a == b).count();
    Bytes::copy_from_slice(&next[..(shared + 1).max(SHORT_BOUND)])
}

/// A short key above `key` and above all keys with the same beginning; `None`: `key` is short itself, or
/// nothing is above.
pub(crate) fn short_above(key: &[u8]) -> Option<Bytes> {
    let beginning = key.get(..SHORT_BOUND).filter(|_| key.len() > SHORT_BOUND)?;
    Some(prefix_end(beginning)).filter(|end| !end.is_empty())
}

/// Internal keys from `start` up to, not including, `end`. Empty when `start >= end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) start: Bytes,
    pub(crate) end: Bytes,
}

impl KeyRange {
    /// All keys of all keyspaces.
    pub(crate) fn all() -> KeyRange {
        KeyRange { start: Bytes::new(), end: Bytes::from_static(&[0xff; 4]) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.start[..] <= *key && *key < self.end[..]
    }

    /// Whether every key of `other` is in this range.
    pub(crate) fn covers(&self, other: &KeyRange) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    pub(crate) fn overlaps(&self, other: &KeyRange) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// A range that contains this one, with short bounds where the outer range permits.
    pub(crate) fn shortened_within(&self, outer: &KeyRange) -> KeyRange {
        let end = short_above(&self.end).filter(|end| *end <= outer.end);
        let too_long = self.end.len() > SHORT_BOUND;
        KeyRange {
            start: short_below(&self.start).max(outer.start.clone()),
            end: end.unwrap_or_else(|| if too_long { outer.end.clone() } else { self.end.clone() }),
        }
    }

    /// The keys in both ranges.
    pub(crate) fn intersect(&self, other: &KeyRange) -> KeyRange {
        KeyRange {
            start: self.start.clone().max(other.start.clone()),
            end: self.end.clone().min(other.end.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_of_0xff_ends_where_the_keyspace_ends() {
        let space = KeyspaceId(7);
        assert_eq!(space.prefix(&[0xff, 0xff]).end, Bytes::from_static(&[0, 0, 0, 8]));
        assert_eq!(space.prefix(b"ab").end, space.key(b"ac"));
        assert_eq!(space.prefix(b""), space.range());
    }

    #[test]
    fn shortened_bounds_cover_the_original_and_stay_inside() {
        let space = KeyspaceId(7);
        let range = |start: &[u8], end: &[u8]| KeyRange { start: space.key(start), end: space.key(end) };
        let short = range(b"b", b"c");
        assert_eq!(short.shortened_within(&space.range()), short);
        let long = range(&[b'b'; 9000], &[b'c'; 9000]);
        let cut = long.shortened_within(&space.range());
        assert!(cut.covers(&long) && space.range().covers(&cut));
        assert_eq!((cut.start.len(), cut.end.len()), (SHORT_BOUND, SHORT_BOUND));
        // A neighbour that begins with the same bytes: the border between the two stays.
        let neighbours = range(&[&[b'b'; 9000][..], b"a"].concat(), &[&[b'c'; 9000][..], b"z"].concat());
        let inner = range(&[&[b'b'; 9000][..], b"c"].concat(), &[&[b'c'; 9000][..], b"d"].concat());
        assert_eq!(inner.shortened_within(&neighbours), neighbours);
    }

    #[test]
    fn bounds_become_half_open() {
        let space = KeyspaceId(1);
        let range = space.between((Bound::Excluded(b"a"), Bound::Included(b"c")));
        assert!(!range.contains(&space.key(b"a")));
        assert!(range.contains(&space.key(b"a\0")));
        assert!(range.contains(&space.key(b"c")));
        assert!(!range.contains(&space.key(b"c\0")));
    }
}
