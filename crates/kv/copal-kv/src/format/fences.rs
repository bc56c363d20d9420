//! Fences: for a key, the partition of a table that would hold it; and the places of all partitions.
//! Resident.
//!
//! Format: docs/formats/kv-table.md v1, "Fences"
//! Invariants
//! - Fence i is greater than every key of partition i-1 and not greater than any of partition i; fence 0 is
//!   empty. All versions of a key are in one partition.
//! - Partitions follow each other without gaps from byte 0, each aligned to 4096 bytes.

use super::{
    block::{TRAILER_BYTES, common_prefix},
    error::Damage,
};
use crate::format::entry::MAX_KEY_BYTES;
use copal_codec::{Put, Reader};
use std::ops::Range;

/// Alignment of partitions and filter pages; a constant of the format.
pub(crate) const ALIGN: u64 = 4096;

/// Places of the parts of one partition, from the start of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartitionPlace {
    pub(crate) offset: u64,
    pub(crate) data_len: u64,
    pub(crate) index_len: u32,
    /// 0: no filter.
    pub(crate) filter_len: u32,
    pub(crate) uid: u64,
    pub(crate) keys: u32,
    pub(crate) entries: u64,
}

impl PartitionPlace {
    pub(crate) fn data(&self) -> Range<u64> {
        self.offset..self.offset + self.data_len
    }

    /// The index page ends where the aligned filter page begins, so one read gets both.
    pub(crate) fn index(&self) -> Range<u64> {
        let end = self.filter().start;
        end - u64::from(self.index_len)..end
    }

    pub(crate) fn filter(&self) -> Range<u64> {
        let start = (self.offset + self.data_len + u64::from(self.index_len)).next_multiple_of(ALIGN);
        start..start + u64::from(self.filter_len)
    }
}

/// Fences and places of all partitions of a table.
#[derive(Debug, Default)]
pub(crate) struct PartitionFences {
    keys: Vec<u8>,
    ends: Vec<u32>,
    /// The eight bytes after the common prefix of all fences except the first, big-endian: most searches need
    /// no more.
    heads: Vec<u64>,
    common: usize,
    partitions: Vec<PartitionPlace>,
}

impl PartitionFences {
    /// Appends a partition, which must follow the others; `fence` must be greater than the last.
    pub(crate) fn push(&mut self, fence: &[u8], partition: PartitionPlace) {
        self.keys.extend_from_slice(fence);
        self.ends.push(self.keys.len() as u32);
        self.partitions.push(partition);
    }

    /// Makes the fences searchable, after the last [`PartitionFences::push`].
    pub(crate) fn seal(&mut self) {
        let n = self.partitions.len();
        self.common = if n < 2 { 0 } else { common_prefix(self.fence(1), self.fence(n - 1)) };
        self.heads = (0..n).map(|i| head(self.fence(i).get(self.common..).unwrap_or(&[]))).collect();
        self.keys.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.partitions.shrink_to_fit();
    }

    pub(crate) fn len(&self) -> usize {
        self.partitions.len()
    }

    pub(crate) fn partition(&self, i: usize) -> &PartitionPlace {
        &self.partitions[i]
    }

    pub(crate) fn fence(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.keys[start..self.ends[i] as usize]
    }

    /// The partition that would hold `key`; `None` for a table without partitions.
    pub(crate) fn find(&self, key: &[u8]) -> Option<usize> {
        let n = self.partitions.len();
        if n <= 1 {
            return n.checked_sub(1);
        }
        let common = &self.fence(1)[..self.common];
        let Some(rest) = key.strip_prefix(common) else {
            return Some(if key < common { 0 } else { n - 1 });
        };
        // Equal heads leave a range to search by whole keys; it is almost always empty.
        let wanted = head(rest);
        let low = 1 + self.heads[1..].partition_point(|&h| h < wanted);
        let equal = self.heads[low..].partition_point(|&h| h == wanted);
        let (mut low, mut high) = (low, low + equal);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.fence(middle) <= key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Some(low - 1)
    }

    /// End of the last partition.
    pub(crate) fn partitions_end(&self) -> u64 {
        self.partitions.last().map_or(0, |last| last.filter().end)
    }

    /// Bytes of heap memory of this value.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.keys.capacity()
            + self.ends.capacity() * 4
            + self.heads.capacity() * 8
            + self.partitions.capacity() * size_of::<PartitionPlace>()
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.partitions.len() as u64);
        let mut last: &[u8] = &[];
        for (i, partition) in self.partitions.iter().enumerate() {
            let fence = self.fence(i);
            let shared = common_prefix(last, fence);
            out.put_varint(shared as u64);
            out.put_prefixed(&fence[shared..]);
            out.put_varint(partition.data_len);
            out.put_varint(u64::from(partition.index_len));
            out.put_varint(u64::from(partition.filter_len));
            out.put_u64(partition.uid);
            out.put_varint(u64::from(partition.keys));
            out.put_varint(partition.entries);
            last = fence;
        }
    }

    /// Decodes the fences of a table whose partitions end at `end`.
    pub(crate) fn decode(section: &[u8], end: u64) -> Result<PartitionFences, Damage> {
        let mut from = Reader::new(section);
        // Each takes at least 15 bytes.
        let count = from.bounded(section.len() / 15)?;
        let (mut fences, mut offset, mut key) = (PartitionFences::default(), 0u64, Vec::new());
        for i in 0..count {
            let shared = from.bounded(key.len())?;
            let rest = from.prefixed(MAX_KEY_BYTES - shared.min(MAX_KEY_BYTES))?;
            let ascends = i == 0 && rest.is_empty() || i > 0 && rest > &key[shared..];
            key.truncate(shared);
            key.extend_from_slice(rest);
            let data_len = from.varint()?;
            let index_len = u32::try_from(from.varint()?).map_err(|_| Damage::Field("index length"))?;
            let filter_len = u32::try_from(from.varint()?).map_err(|_| Damage::Field("filter length"))?;
            let uid = from.u64()?;
            let keys = u32::try_from(from.varint()?).map_err(|_| Damage::Field("number of keys"))?;
            let entries = from.varint()?;
            let partition = PartitionPlace { offset, data_len, index_len, filter_len, uid, keys, entries };
            if !ascends || fences.keys.len() + key.len() > u32::MAX as usize {
                return Err(Damage::Order);
            }
            // Bounded first, so that the sums below cannot overflow.
            if data_len < TRAILER_BYTES as u64 || data_len > end || partition.filter().end > end {
                return Err(Damage::Field("partition length"));
            }
            offset = partition.filter().end.next_multiple_of(ALIGN);
            fences.push(&key, partition);
        }
        from.finish()?;
        if fences.partitions_end() != end {
            return Err(Damage::Field("partition length"));
        }
        fences.seal();
        Ok(fences)
    }
}

fn head(bytes: &[u8]) -> u64 {
    let mut first = [0; 8];
    let len = bytes.len().min(8);
    first[..len].copy_from_slice(&bytes[..len]);
    u64::from_be_bytes(first)
}
