//! Range tombstones of one table, resident.
//!
//! Format: docs/formats/kv-table.md v1, "Range tombstones"
//! Invariant: sorted by (start, newest first); `reach[i]` is the greatest end among the first i + 1, so a
//! search walks back only while something before can still cover the key.

use super::error::Damage;
use crate::entry::{MAX_KEY_BYTES, MAX_SEQ, RangeTombstone};
use bytes::Bytes;
use copal_codec::{Put, Reader};

/// Range tombstones that answer "is this key deleted at this sequence?".
#[derive(Clone, Debug, Default)]
pub struct RangeTombstones {
    sorted: Vec<RangeTombstone>,
    /// For each tombstone the one with the greatest end among those up to it.
    reach: Vec<u32>,
}

impl RangeTombstones {
    /// Takes tombstones in any order; empty ranges are dropped.
    pub fn new(mut tombstones: Vec<RangeTombstone>) -> RangeTombstones {
        tombstones.retain(|t| t.start < t.end);
        tombstones.sort_by(|a, b| (&a.start, b.seq, &a.end).cmp(&(&b.start, a.seq, &b.end)));
        tombstones.dedup();
        let mut reach: Vec<u32> = Vec::with_capacity(tombstones.len());
        for (i, tombstone) in tombstones.iter().enumerate() {
            let farthest = match reach.last() {
                Some(&before) if tombstones[before as usize].end >= tombstone.end => before,
                _ => i as u32,
            };
            reach.push(farthest);
        }
        RangeTombstones {
            sorted: tombstones,
            reach,
        }
    }

    /// The newest tombstone over `key` among those a read at `read_seq` sees: its sequence.
    pub fn cover(&self, key: &[u8], read_seq: u64) -> Option<u64> {
        let mut newest = None;
        let mut i = self.sorted.partition_point(|t| t.start <= key);
        while i > 0 && self.sorted[self.reach[i - 1] as usize].end > key {
            i -= 1;
            let tombstone = &self.sorted[i];
            if tombstone.end > key && tombstone.seq <= read_seq {
                newest = newest.max(Some(tombstone.seq));
            }
        }
        newest
    }

    /// All tombstones, by start, then newest first.
    pub fn iter(&self) -> impl Iterator<Item = &RangeTombstone> {
        self.sorted.iter()
    }

    /// Number of tombstones.
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// Bytes of memory behind this value.
    pub fn heap_bytes(&self) -> usize {
        let keys: usize = self.sorted.iter().map(|t| t.start.len() + t.end.len()).sum();
        keys + self.sorted.capacity() * size_of::<RangeTombstone>() + self.reach.capacity() * 4
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.sorted.len() as u64);
        for tombstone in &self.sorted {
            out.put_prefixed(&tombstone.start);
            out.put_prefixed(&tombstone.end);
            out.put_varint(tombstone.seq);
        }
    }

    pub(crate) fn decode(section: &[u8]) -> Result<RangeTombstones, Damage> {
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
        Ok(RangeTombstones::new(tombstones))
    }
}
