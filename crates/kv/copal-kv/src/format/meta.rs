//! Metadata of a table: its properties section, and the part that a manifest needs.
//!
//! Format: docs/formats/kv-table.md v1, "Properties"

use super::error::Damage;
use crate::format::entry::{MAX_KEY_BYTES, MAX_SEQ, short_above, short_below};
use bytes::Bytes;
use copal_codec::{Put, Reader};
use copal_filter::Kind;
use copal_object::ObjectId;

/// Metadata of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableMeta {
    /// Object of the table.
    pub object: ObjectId,
    /// Bytes of the object.
    pub bytes: u64,
    /// Smallest key of an entry or start of a range tombstone. If it is long, an open table keeps only its
    /// beginning.
    pub smallest: Bytes,
    /// Largest key of an entry or end of a range tombstone. If it is long, an open table keeps a short key
    /// above it.
    pub largest: Bytes,
    /// `largest` is the end of a range tombstone, and so outside the table's range.
    pub largest_is_exclusive: bool,
    /// Number of entries, all versions and kinds.
    pub entries: u64,
    /// Number of different user keys.
    pub keys: u64,
    /// Number of entries that delete their key.
    pub deletes: u64,
    /// Number of range tombstones.
    pub range_tombstones: u64,
    /// Smallest sequence of entries and range tombstones.
    pub min_seq: u64,
    /// Largest sequence of entries and range tombstones.
    pub max_seq: u64,
    /// Bytes of all keys.
    pub key_bytes: u64,
    /// Bytes of all values in the table itself.
    pub value_bytes: u64,
    /// Number of partitions.
    pub partitions: u32,
    /// Kind of its filter units.
    pub filter: Kind,
    /// Separated values that entries of this table point at, by value object, ascending.
    pub value_objects: Vec<ValueUse>,
}

/// Separated values of one value object that one table points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueUse {
    /// The value object.
    pub object: ObjectId,
    /// Number of values.
    pub values: u64,
    /// Bytes of the values, without record headers.
    pub bytes: u64,
    /// Bytes of their keys, which value records repeat.
    pub key_bytes: u64,
}

impl TableMeta {
    /// Whether `key` lies in the range of the table.
    pub fn covers(&self, key: &[u8]) -> bool {
        key >= self.smallest && (key < self.largest || !self.largest_is_exclusive && key == self.largest)
    }

    /// Shortens long bounds, which are in memory while the table is open.
    pub(crate) fn cut_bounds(&mut self) {
        self.smallest = short_below(&self.smallest);
        if let Some(above) = short_above(&self.largest) {
            (self.largest, self.largest_is_exclusive) = (above, true);
        }
    }

    /// Bytes of heap memory of this value.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.smallest.len() + self.largest.len() + self.value_objects.capacity() * size_of::<ValueUse>()
    }

    /// Appends the encoded metadata; used for the properties section and for manifests.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.object.0);
        out.put_varint(self.bytes);
        out.put_prefixed(&self.smallest);
        out.put_prefixed(&self.largest);
        out.put_u8(u8::from(self.largest_is_exclusive));
        for number in [
            self.entries,
            self.keys,
            self.deletes,
            self.range_tombstones,
            self.min_seq,
            self.max_seq,
            self.key_bytes,
            self.value_bytes,
            u64::from(self.partitions),
        ] {
            out.put_varint(number);
        }
        out.put_u8(self.filter as u8);
        out.put_varint(self.value_objects.len() as u64);
        for used in &self.value_objects {
            out.put_u64(used.object.0);
            out.put_varint(used.values);
            out.put_varint(used.bytes);
            out.put_varint(used.key_bytes);
        }
    }

    /// Decodes the output of [`TableMeta::encode`] and advances `from` to its end.
    ///
    /// # Errors
    /// The bytes are no metadata.
    pub fn decode(from: &mut Reader<'_>) -> Result<TableMeta, Damage> {
        let mut meta = TableMeta {
            object: ObjectId(from.u64()?),
            bytes: from.varint()?,
            smallest: Bytes::copy_from_slice(from.prefixed(MAX_KEY_BYTES)?),
            largest: Bytes::copy_from_slice(from.prefixed(MAX_KEY_BYTES)?),
            largest_is_exclusive: match from.u8()? {
                0 => false,
                1 => true,
                _ => return Err(Damage::Field("flag")),
            },
            entries: from.varint()?,
            keys: from.varint()?,
            deletes: from.varint()?,
            range_tombstones: from.varint()?,
            min_seq: from.varint()?,
            max_seq: from.varint()?,
            key_bytes: from.varint()?,
            value_bytes: from.varint()?,
            partitions: u32::try_from(from.varint()?).map_err(|_| Damage::Field("number of partitions"))?,
            filter: Kind::from_byte(from.u8()?).ok_or(Damage::Field("filter kind"))?,
            value_objects: Vec::new(),
        };
        if meta.smallest > meta.largest || meta.min_seq > meta.max_seq || meta.max_seq > MAX_SEQ {
            return Err(Damage::Field("range"));
        }
        // Each takes at least eleven bytes.
        let count = from.bounded(from.remaining() / 11)?;
        meta.value_objects.reserve_exact(count);
        for _ in 0..count {
            meta.value_objects.push(ValueUse {
                object: ObjectId(from.u64()?),
                values: from.varint()?,
                bytes: from.varint()?,
                key_bytes: from.varint()?,
            });
        }
        Ok(meta)
    }
}
