//! Data block: up to about 4 KiB of entries, prefix-compressed, with a full key every 16 entries.
//!
//! Format: docs/formats/kv-table.md v1, "Data block"
//! Invariants
//! - The checksum is seeded with (partition uid, block number). So a block read from the wrong place is
//!   damaged, and a partition copied byte for byte stays valid.
//! - Restarts are checked once at decoding. Entries are checked when they are read, so crafted bytes cannot
//!   cause a panic here.

use super::error::Damage;
use crate::format::entry::{Entry, EntryKind, MAX_KEY_BYTES, MAX_VALUE_BYTES, pack_tag, unpack_tag};
use bytes::Bytes;
use copal_codec::{Put, Reader, crc32c};

/// Bytes at which a block ends.
pub(crate) const TARGET_BYTES: usize = 4096;
/// Bytes by which a block may exceed its target for one more entry.
const SLACK_BYTES: usize = 512;
/// Entries between two full keys.
const RESTART_INTERVAL: u32 = 16;
/// Codec u8, stored length u32, raw length u32, checksum u32.
pub(crate) const TRAILER_BYTES: usize = 13;
/// Blocks above this many bytes are not compressed, since the claimed length of a compressed block is
/// allocated before it is verified.
const MAX_PACKED_BYTES: usize = 4 << 20;
/// Highest possible compression ratio of lz4.
const MAX_LZ4_RATIO: usize = 255;

const CODEC_NONE: u8 = 0;
pub(crate) const CODEC_LZ4: u8 = 1;

/// Checksum seed of the parts of one partition.
pub(crate) fn seed(uid: u64, number: u32) -> u32 {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&uid.to_le_bytes());
    bytes[8..].copy_from_slice(&number.to_le_bytes());
    crc32c(0, &bytes)
}

/// Builder of one block.
#[derive(Default)]
pub(crate) struct BlockBuilder {
    raw: Vec<u8>,
    restarts: Vec<u32>,
    since_restart: u32,
    last_key: Vec<u8>,
}

impl BlockBuilder {
    pub(crate) fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Bytes of the block if it ended here, before compression.
    pub(crate) fn bytes(&self) -> usize {
        self.raw.len() + 4 * self.restarts.len() + 4 + TRAILER_BYTES
    }

    /// Whether the block should end before `entry`.
    pub(crate) fn is_full_for(&self, entry: &Entry<'_>) -> bool {
        let grown = self.bytes() + entry.key.len() + entry.value.len() + 8;
        self.bytes() >= TARGET_BYTES || self.bytes() >= TARGET_BYTES / 4 && grown > TARGET_BYTES + SLACK_BYTES
    }

    /// Appends an entry; the caller ensures the order.
    pub(crate) fn add(&mut self, entry: &Entry<'_>) {
        let mut shared = 0;
        if self.restarts.is_empty() || self.since_restart == RESTART_INTERVAL {
            self.restarts.push(self.raw.len() as u32);
            self.since_restart = 0;
        } else {
            shared = common_prefix(&self.last_key, entry.key);
        }
        self.since_restart += 1;
        self.raw.put_varint(shared as u64);
        self.raw.put_varint((entry.key.len() - shared) as u64);
        self.raw.put_varint(entry.value.len() as u64);
        self.raw.put_varint(pack_tag(entry.seq, entry.kind));
        self.raw.put_bytes(&entry.key[shared..]);
        self.raw.put_bytes(entry.value);
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(&entry.key[shared..]);
    }

    /// Appends the finished block to `out` and starts an empty one. Compresses it only if that saves an
    /// eighth.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>, compress: bool, uid: u64, number: u32) {
        for &restart in &self.restarts {
            self.raw.put_u32(restart);
        }
        self.raw.put_u32(self.restarts.len() as u32);
        let from = out.len();
        let compress = compress && self.raw.len() <= MAX_PACKED_BYTES;
        let packed = if compress { lz4_flex::block::compress(&self.raw) } else { Vec::new() };
        if compress && packed.len() < self.raw.len() - self.raw.len() / 8 {
            append_block(out, CODEC_LZ4, &packed, self.raw.len());
        } else {
            append_block(out, CODEC_NONE, &self.raw, self.raw.len());
        }
        let sum = crc32c(seed(uid, number), &out[from..]);
        out.put_u32(sum);
        self.raw.clear();
        self.restarts.clear();
        self.since_restart = 0;
        self.last_key.clear();
    }
}

fn append_block(out: &mut Vec<u8>, codec: u8, stored: &[u8], raw_len: usize) {
    out.put_bytes(stored);
    out.put_u8(codec);
    out.put_u32(stored.len() as u32);
    out.put_u32(raw_len as u32);
}

/// Length of the longest common prefix.
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Length of the block at the end of `bytes`, trailer included; `None` if no block can end there. Serves to
/// read a partition backwards when its index page is lost.
pub(crate) fn len_of_last(bytes: &[u8]) -> Option<usize> {
    let trailer = bytes.last_chunk::<TRAILER_BYTES>()?;
    let stored = u32::from_le_bytes([trailer[1], trailer[2], trailer[3], trailer[4]]) as usize;
    let len = stored.checked_add(TRAILER_BYTES)?;
    (len <= bytes.len()).then_some(len)
}

/// A checked, decompressed block.
#[derive(Clone, Debug)]
pub(crate) struct DataBlock {
    /// Entries, then restarts, then their number.
    pub(crate) raw: Bytes,
    pub(crate) entries_end: usize,
    pub(crate) restarts: usize,
}

impl DataBlock {
    /// Checks and decompresses a stored block, trailer included. The result owns exactly the bytes it needs.
    pub(crate) fn decode(stored: &[u8], uid: u64, number: u32) -> Result<DataBlock, Damage> {
        let (payload, codec, raw_len) = open(stored, uid, number)?;
        let raw = match codec {
            CODEC_NONE => Bytes::copy_from_slice(payload),
            _ => unpack(payload, raw_len)?,
        };
        DataBlock::parse(raw)
    }

    /// Like [`DataBlock::decode`], but shares the stored bytes of an uncompressed block: for scans, which do
    /// not keep their blocks.
    pub(crate) fn decode_shared(stored: &Bytes, uid: u64, number: u32) -> Result<DataBlock, Damage> {
        let (payload, codec, raw_len) = open(stored, uid, number)?;
        let raw = match codec {
            CODEC_NONE => stored.slice(..payload.len()),
            _ => unpack(payload, raw_len)?,
        };
        DataBlock::parse(raw)
    }

    pub(crate) fn parse(raw: Bytes) -> Result<DataBlock, Damage> {
        let (rest, count) = raw.split_last_chunk::<4>().ok_or(Damage::Field("length"))?;
        let restarts = u32::from_le_bytes(*count) as usize;
        let entries_end = restarts
            .checked_mul(4)
            .and_then(|bytes| rest.len().checked_sub(bytes))
            .ok_or(Damage::Field("number of restarts"))?;
        let (offsets, _) = rest[entries_end..].as_chunks::<4>();
        let mut offsets = offsets.iter().map(|o| u32::from_le_bytes(*o) as usize);
        let mut last = offsets.next().filter(|&first| first == 0).ok_or(Damage::Field("first restart"))?;
        for offset in offsets {
            if offset <= last {
                return Err(Damage::Field("restart"));
            }
            last = offset;
        }
        if last >= entries_end {
            return Err(Damage::Field("restart"));
        }
        Ok(DataBlock { raw, entries_end, restarts })
    }

    /// Bytes of heap memory of this block.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.raw.len()
    }

    /// Offset of entry 16 i.
    pub(crate) fn restart(&self, i: usize) -> usize {
        let at = self.entries_end + 4 * i;
        // Checked by `parse`: i < restarts.
        u32::from_le_bytes([self.raw[at], self.raw[at + 1], self.raw[at + 2], self.raw[at + 3]]) as usize
    }

    /// Decodes the header of the entry at `at`.
    pub(crate) fn parts_at(&self, at: usize) -> Result<EntryParts, Damage> {
        let mut from = Reader::new(&self.raw[at..self.entries_end]);
        let (shared, unshared, value_len) = match self.raw[at..self.entries_end] {
            // Most lengths fit one byte each.
            [shared, unshared, value_len, ..] if (shared | unshared | value_len) < 0x80 => {
                from.bytes(3)?;
                (usize::from(shared), usize::from(unshared), usize::from(value_len))
            }
            _ => (from.bounded(MAX_KEY_BYTES)?, from.bounded(MAX_KEY_BYTES)?, from.bounded(MAX_VALUE_BYTES)?),
        };
        let (seq, kind) = unpack_tag(from.varint()?).ok_or(Damage::Field("entry kind"))?;
        let rest = at + from.position();
        from.bytes(unshared)?;
        from.bytes(value_len)?;
        Ok(EntryParts { shared, rest, value: rest + unshared, end: at + from.position(), seq, kind })
    }
}

/// Checks the trailer; returns payload, codec and raw length.
fn open(stored: &[u8], uid: u64, number: u32) -> Result<(&[u8], u8, usize), Damage> {
    let (checked, sum) = stored.split_last_chunk::<4>().ok_or(Damage::Field("length"))?;
    let (sum, computed) = (u32::from_le_bytes(*sum), crc32c(seed(uid, number), checked));
    if sum != computed {
        return Err(Damage::Checksum { stored: sum, computed });
    }
    let (payload, trailer) = checked.split_last_chunk::<9>().ok_or(Damage::Field("length"))?;
    let mut trailer = Reader::new(trailer);
    let (codec, stored_len, raw_len) = (trailer.u8()?, trailer.u32()? as usize, trailer.u32()? as usize);
    if stored_len != payload.len() {
        return Err(Damage::Field("stored length"));
    }
    let raw_len_possible = match codec {
        CODEC_NONE => raw_len == stored_len,
        CODEC_LZ4 => raw_len <= MAX_PACKED_BYTES && raw_len <= stored_len.saturating_mul(MAX_LZ4_RATIO),
        _ => return Err(Damage::Field("codec")),
    };
    if !raw_len_possible {
        return Err(Damage::Field("raw length"));
    }
    Ok((payload, codec, raw_len))
}

fn unpack(payload: &[u8], raw_len: usize) -> Result<Bytes, Damage> {
    let mut raw = vec![0; raw_len];
    match lz4_flex::block::decompress_into(payload, &mut raw) {
        Ok(len) if len == raw_len => Ok(raw.into()),
        _ => Err(Damage::Codec),
    }
}

/// Parts of one entry, as offsets into the block.
pub(crate) struct EntryParts {
    pub(crate) shared: usize,
    pub(crate) rest: usize,
    pub(crate) value: usize,
    pub(crate) end: usize,
    pub(crate) seq: u64,
    pub(crate) kind: EntryKind,
}

/// Any bytes as the payload of a stored block with a valid trailer.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn crafted(payload: &[u8], codec: u8, raw_len: u32, uid: u64, number: u32) -> Vec<u8> {
    let mut block = payload.to_vec();
    block.put_u8(codec);
    block.put_u32(payload.len() as u32);
    block.put_u32(raw_len);
    let sum = crc32c(seed(uid, number), &block);
    block.put_u32(sum);
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::entry::MAX_SEQ;

    /// Symptom: a block of 4 MiB made the reader allocate 1 GiB, as its trailer claimed. Cause: the only
    /// limit of the claimed length was the longest possible value. Fix: blocks beyond 4 MiB are not
    /// compressed, and a compressed block that claims more is damaged before anything is allocated for it.
    #[test]
    fn a_compressed_block_that_claims_more_than_any_has_is_damage() {
        let raw = vec![0; MAX_PACKED_BYTES + 1];
        let packed = lz4_flex::block::compress(&raw);
        let stored = crafted(&packed, CODEC_LZ4, raw.len() as u32, 7, 1);
        let refused = DataBlock::decode(&stored, 7, 1);
        assert!(matches!(refused, Err(Damage::Field("raw length"))), "{refused:?}");
        // The writer does not produce such a block either.
        for len in [MAX_PACKED_BYTES / 2, MAX_PACKED_BYTES] {
            let mut builder = BlockBuilder::default();
            builder.add(&Entry { key: b"key", seq: MAX_SEQ - 1, kind: EntryKind::Put, value: &vec![7; len] });
            let mut stored = Vec::new();
            builder.finish(&mut stored, true, 7, 1);
            assert_eq!(stored.len() < len / 2, len < MAX_PACKED_BYTES, "{len}");
            assert!(DataBlock::decode(&stored, 7, 1).unwrap().heap_bytes() > len);
        }
    }
}
