//! Section of range tombstones.
//!
//! Format: docs/formats/kv-table.md v1, "Range tombstones"
//! Invariant: none is empty; they are ordered by start, newest first.
//! Not here: searching them.

use super::error::Damage;
use crate::format::entry::{MAX_KEY_BYTES, MAX_SEQ, RangeTombstone};
use bytes::Bytes;
use copal_codec::{Put, Reader};

/// Sorts tombstones into the order of the section, and removes duplicates.
pub(crate) fn arrange(tombstones: &mut Vec<RangeTombstone>) {
    tombstones.sort_by(|a, b| (&a.start, b.seq, &a.end).cmp(&(&b.start, a.seq, &b.end)));
    tombstones.dedup();
}

/// Appends sorted tombstones.
pub(crate) fn encode(tombstones: &[RangeTombstone], out: &mut Vec<u8>) {
    out.put_varint(tombstones.len() as u64);
    for tombstone in tombstones {
        out.put_prefixed(&tombstone.start);
        out.put_prefixed(&tombstone.end);
        out.put_varint(tombstone.seq);
    }
}

/// Decodes the section.
pub(crate) fn decode(section: &[u8]) -> Result<Vec<RangeTombstone>, Damage> {
    let mut from = Reader::new(section);
    // Each takes at least three bytes.
    let count = from.bounded(section.len() / 3)?;
    let mut tombstones = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Bytes::copy_from_slice(from.prefixed(MAX_KEY_BYTES)?);
        let end = Bytes::copy_from_slice(from.prefixed(MAX_KEY_BYTES)?);
        let seq = from.varint()?;
        if start >= end || seq > MAX_SEQ {
            return Err(Damage::Field("range tombstone"));
        }
        tombstones.push(RangeTombstone { start, end, seq });
    }
    from.finish()?;
    Ok(tombstones)
}

/// Bytes of heap memory of a list of tombstones whose keys are shared with fragments: `bytes` counts the
/// references to a key in an allocation of its own.
pub(crate) fn heap_bytes(tombstones: &[RangeTombstone]) -> usize {
    const SHARED_BYTES: usize = 3 * size_of::<usize>();
    let keys: usize = tombstones.iter().map(|t| t.start.len() + t.end.len()).sum();
    keys + tombstones.len() * 2 * SHARED_BYTES + size_of_val(tombstones)
}
