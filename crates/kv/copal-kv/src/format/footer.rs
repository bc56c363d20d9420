//! Footer: places of the sections after the partitions. Two equal copies end the table.
//!
//! Format: docs/formats/kv-table.md v1, "Footer"

use super::error::{Damage, DamageAt, TableError};
use copal_codec::{ENVELOPE_LEN, Envelope, EnvelopeError, Format, Put, Reader, crc32c};
use copal_object::ObjectId;
use std::ops::Range;

/// Bytes of one copy: one sector, so that a torn write damages at most one.
pub(crate) const FOOTER_BYTES: usize = 512;

const FORMAT: Format = Format { magic: *b"COPALTBL", name: "table", oldest: 1, version: 1, known_flags: 0 };

/// Place and checksum of one section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FooterSection {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) crc: u32,
}

impl FooterSection {
    pub(crate) fn of(offset: u64, bytes: &[u8]) -> FooterSection {
        FooterSection { offset, len: bytes.len() as u64, crc: crc32c(0, bytes) }
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.len
    }

    pub(crate) fn check(&self, bytes: &[u8]) -> Result<(), Damage> {
        let computed = crc32c(0, bytes);
        if computed != self.crc || bytes.len() as u64 != self.len {
            return Err(Damage::Checksum { stored: self.crc, computed });
        }
        Ok(())
    }
}

/// Contents of both footers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableFooter {
    /// The object as which the table was written.
    pub(crate) object: ObjectId,
    /// End of the last partition; the tombstones begin here.
    pub(crate) partitions_end: u64,
    pub(crate) tombstones: FooterSection,
    pub(crate) fences: FooterSection,
    pub(crate) properties: FooterSection,
}

impl TableFooter {
    pub(crate) fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut out = [0; FOOTER_BYTES];
        let mut to = copal_codec::SliceWriter::new(&mut out[ENVELOPE_LEN..]);
        to.put_u64(self.object.0);
        to.put_u64(self.partitions_end);
        for section in [self.tombstones, self.fences, self.properties] {
            to.put_u64(section.offset);
            to.put_u64(section.len);
            to.put_u32(section.crc);
        }
        Envelope::seal(&FORMAT, 0, 0, &mut out);
        out
    }

    fn decode(bytes: &[u8], object_len: u64) -> Result<TableFooter, Damage> {
        let (_, body) = Envelope::open(&FORMAT, bytes)?;
        let mut from = Reader::new(body);
        let (object, partitions_end) = (ObjectId(from.u64()?), from.u64()?);
        let [tombstones, fences, properties] =
            [section(&mut from)?, section(&mut from)?, section(&mut from)?];
        from.zeros(from.remaining())?;
        // Bounded first, so that the sums below cannot overflow.
        if partitions_end > object_len {
            return Err(Damage::Field("section"));
        }
        let mut end = partitions_end;
        for section in [tombstones, fences, properties] {
            if section.offset != end || section.len > object_len {
                return Err(Damage::Field("section"));
            }
            end = section.range().end;
        }
        if end > object_len - 2 * FOOTER_BYTES as u64 {
            return Err(Damage::Field("section"));
        }
        Ok(TableFooter { object, partitions_end, tombstones, fences, properties })
    }

    /// Decodes the footer from the last [`FOOTER_BYTES`] x 2 of an object, from the copy that is intact.
    pub(crate) fn from_tail(
        tail: &[u8],
        object: ObjectId,
        object_len: u64,
    ) -> Result<TableFooter, TableError> {
        let mut error = Damage::Field("length").at(object, DamageAt::Footer);
        if object_len < 2 * FOOTER_BYTES as u64 {
            return Err(error);
        }
        for copy in tail.rchunks_exact(FOOTER_BYTES).take(2) {
            match TableFooter::decode(copy, object_len) {
                Ok(footer) if footer.object == object => return Ok(footer),
                Ok(_) => error = Damage::Field("object number").at(object, DamageAt::Footer),
                Err(Damage::Envelope(
                    source @ (EnvelopeError::Version { .. }
                    | EnvelopeError::Flags { .. }
                    | EnvelopeError::Reserved { .. }),
                )) => error = TableError::Unsupported { object, source },
                Err(damage) => error = damage.at(object, DamageAt::Footer),
            }
        }
        Err(error)
    }
}

fn section(from: &mut Reader<'_>) -> Result<FooterSection, Damage> {
    Ok(FooterSection { offset: from.u64()?, len: from.u64()?, crc: from.u32()? })
}

/// Two footers with valid checksums around any bytes.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn crafted(body: &[u8]) -> Vec<u8> {
    let mut copy = [0; FOOTER_BYTES];
    let len = body.len().min(FOOTER_BYTES - ENVELOPE_LEN);
    copy[ENVELOPE_LEN..ENVELOPE_LEN + len].copy_from_slice(&body[..len]);
    Envelope::seal(&FORMAT, 0, 0, &mut copy);
    copy.repeat(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: a footer with a valid checksum and an end of the partitions near 2^64 panicked in builds that
    /// check arithmetic. Cause: the lengths of the sections after it were added before that end was compared
    /// with the object's length.
    /// Fix: it is bounded first.
    #[test]
    fn an_end_of_the_partitions_beyond_the_object_is_damage() {
        for partitions_end in [u64::MAX, u64::MAX - 5, (1 << 20) + 1] {
            let mut body = Vec::new();
            body.put_u64(7);
            body.put_u64(partitions_end);
            for section in 0..3 {
                body.put_u64(partitions_end.wrapping_add(section * 9));
                body.put_u64(9);
                body.put_u32(0);
            }
            let error = TableFooter::from_tail(&crafted(&body), ObjectId(7), 1 << 20).unwrap_err();
            assert!(error.is_corruption(), "{error}");
        }
    }
}
