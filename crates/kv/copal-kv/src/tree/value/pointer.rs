//! Pointer to a separated value, as stored in log, memtable and table.
//!
//! Format: docs/formats/kv-values.md v2
//! Invariants
//! - The checksums are part of the pointer, not stored beside the value, so a misdirected or lost write of
//!   the value is detected.
//! - One CRC32C per 64 KiB piece, so part of a value is verified by reading the pieces that overlap it.
//! - The head, if any, repeats the first bytes of the value; it was verified together with the pointer.

use crate::{Error, session::limits::MAX_HEAD};
use copal_codec::{DecodeError, Put, Reader, crc32c};
use copal_object::ObjectId;
use std::ops::Range;

/// Bytes per checksum.
pub(crate) const PIECE: u64 = 64 << 10;
/// Longest value.
pub(crate) const MAX_VALUE: usize = 1 << 30;
/// Alignment of directly written values inside their object, so that a dead one leaves whole pages.
pub(crate) const VALUE_PAGE: u64 = 4096;

/// Place and checksums of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValuePointer {
    pub(crate) object: ObjectId,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    /// CRC32C of each 64 KiB piece; the last may be shorter.
    pub(crate) sums: Vec<u32>,
    /// First bytes of the value, as many as the keyspace keeps beside its pointers.
    pub(crate) head: Vec<u8>,
}

/// Checksums of `value`, one per piece. At least one, so an empty value has one too.
pub(crate) fn piece_sums(value: &[u8]) -> Vec<u32> {
    if value.is_empty() {
        return vec![0];
    }
    value.chunks(PIECE as usize).map(|piece| crc32c(0, piece)).collect()
}

fn pieces(len: u64) -> usize {
    len.div_ceil(PIECE).max(1) as usize
}

impl ValuePointer {
    /// Encoded length of a pointer for a value of `len` bytes with a head of `head` bytes.
    pub(crate) fn encoded_len(len: usize, head: usize) -> usize {
        let head = if head == 0 { 0 } else { 2 + head };
        20 + 4 * pieces(len as u64) + head
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.object.0);
        out.put_u64(self.offset);
        out.put_u32(self.len);
        for sum in &self.sums {
            out.put_u32(*sum);
        }
        if !self.head.is_empty() {
            out.put_u16(self.head.len() as u16);
            out.put_bytes(&self.head);
        }
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(ValuePointer::encoded_len(self.len as usize, self.head.len()));
        self.encode(&mut out);
        out
    }

    /// # Errors
    /// `Corrupt` when the bytes are no pointer.
    pub(crate) fn decode(bytes: &[u8]) -> Result<ValuePointer, Error> {
        let wrong = |why: &dyn std::fmt::Display| Error::corrupt("value pointer", why);
        let pointer = ValuePointer::parse(bytes).map_err(|error| wrong(&error))?;
        if pointer.len as usize > MAX_VALUE || pointer.offset > u64::MAX / 2 {
            return Err(wrong(&"length or offset is out of bounds"));
        }
        if pointer.head.len() > (pointer.len as usize).min(MAX_HEAD) {
            return Err(wrong(&"the head is longer than the value"));
        }
        Ok(pointer)
    }

    fn parse(bytes: &[u8]) -> Result<ValuePointer, DecodeError> {
        let mut input = Reader::new(bytes);
        let object = ObjectId(input.u64()?);
        let offset = input.u64()?;
        let len = input.u32()?;
        // Allocation is bounded by the input, not by the claimed length.
        let count = pieces(u64::from(len));
        let mut sums = Vec::with_capacity(count.min(input.remaining() / 4));
        for _ in 0..count {
            sums.push(input.u32()?);
        }
        let mut head = Vec::new();
        if !input.is_empty() {
            let len = usize::from(input.u16()?);
            head.extend_from_slice(input.bytes(len)?);
        }
        input.finish()?;
        Ok(ValuePointer { object, offset, len, sums, head })
    }

    /// The bytes of the object that hold the value.
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + u64::from(self.len)
    }

    /// The piece-aligned bytes of the value that overlap `part`, clamped to the value.
    pub(crate) fn cover(&self, part: &Range<u64>) -> Range<u64> {
        let len = u64::from(self.len);
        let start = part.start.min(len) / PIECE * PIECE;
        let end = part.end.min(len).next_multiple_of(PIECE).min(len);
        start..end.max(start)
    }

    /// Checks `bytes`, which hold the value from `start` (a multiple of [`PIECE`]) on.
    /// # Errors
    /// `Corrupt` names the value's place.
    pub(crate) fn verify(&self, start: u64, bytes: &[u8]) -> Result<(), Error> {
        let first = (start / PIECE) as usize;
        for (index, piece) in bytes.chunks(PIECE as usize).enumerate() {
            let sum = crc32c(0, piece);
            if self.sums.get(first + index) != Some(&sum) {
                let at = self.offset + start + index as u64 * PIECE;
                let place = format!("value in object {} at byte {at}", self.object.0);
                return Err(Error::corrupt(place, format!("its checksum is {sum:08x}, not the pointer's")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked example of docs/formats/kv-values.md.
    #[test]
    fn golden_pointer() {
        let pointer = ValuePointer {
            object: ObjectId(0x1234),
            offset: 0x10000,
            len: 9,
            sums: piece_sums(b"123456789"),
            head: Vec::new(),
        };
        let bytes = pointer.to_vec();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "341200000000000000000100000000000900000083920 6e3".replace(' ', ""));
        assert_eq!(ValuePointer::decode(&bytes).unwrap(), pointer);
        let with_head = ValuePointer { head: b"1234".to_vec(), ..pointer };
        let longer = with_head.to_vec();
        assert_eq!(longer[..bytes.len()], bytes);
        assert_eq!(longer[bytes.len()..], *b"\x04\x001234");
        assert_eq!(longer.len(), ValuePointer::encoded_len(9, 4));
        assert_eq!(ValuePointer::decode(&longer).unwrap(), with_head);
    }

    #[test]
    fn bytes_that_are_no_pointer_are_refused() {
        let value = vec![7u8; 3 * PIECE as usize + 1];
        let pointer = ValuePointer {
            object: ObjectId(1),
            offset: 0,
            len: value.len() as u32,
            sums: piece_sums(&value),
            head: vec![7; 100],
        };
        let good = pointer.to_vec();
        let without_head = ValuePointer::encoded_len(value.len(), 0);
        assert_eq!(good.len(), ValuePointer::encoded_len(value.len(), 100));
        for cut in (0..good.len()).filter(|cut| *cut != without_head) {
            assert!(ValuePointer::decode(&good[..cut]).unwrap_err().is_corruption(), "cut at {cut}");
        }
    }

    #[test]
    fn a_part_is_verified_by_its_pieces() {
        let value: Vec<u8> = (0..200_000u32).map(|i| (i * 31) as u8).collect();
        let pointer = ValuePointer {
            object: ObjectId(1),
            offset: 0,
            len: value.len() as u32,
            sums: piece_sums(&value),
            head: Vec::new(),
        };
        let cover = pointer.cover(&(70_000..70_010));
        assert_eq!(cover, PIECE..2 * PIECE);
        let mut bytes = value[cover.start as usize..cover.end as usize].to_vec();
        pointer.verify(cover.start, &bytes).unwrap();
        bytes[17] ^= 1;
        assert!(pointer.verify(cover.start, &bytes).unwrap_err().is_corruption());
        assert_eq!(pointer.cover(&(199_990..300_000)), 3 * PIECE..200_000);
        assert!(pointer.cover(&(200_000..300_000)).start <= 200_000);
    }
}
