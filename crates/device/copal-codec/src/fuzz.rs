//! Decoders of the bytes below every format, by name: for the fuzz targets, and a short run of each here.
//!
//! For a structure behind a checksum there is also a decoder of its contents, since random bytes never pass
//! the checksum. Built for tests and fuzzing only.

use crate::{Envelope, Format, Reader, envelope, varint};

/// Takes any bytes, returns nothing and must not panic.
pub type Decoder = fn(&[u8]);

const FORMAT: Format =
    Format { magic: *b"COPALFZZ", name: "fuzzed file", oldest: 1, version: 3, known_flags: 5 };

/// Names and decoders.
pub const DECODERS: &[(&str, Decoder)] = &[
    ("varint", |bytes| {
        let _ = varint::decode(bytes);
    }),
    ("prefixed bytes", |bytes| {
        let _ = Reader::new(bytes).prefixed(100).map(<[u8]>::len);
    }),
    ("items", |bytes| {
        let mut input = Reader::new(bytes);
        while let Ok(choice) = input.u8() {
            let _ = match choice % 9 {
                0 => input.u16().map(drop),
                1 => input.u32().map(drop),
                2 => input.u64().map(drop),
                3 => input.u128().map(drop),
                4 => input.varint().map(drop),
                5 => input.bounded(100).map(drop),
                6 => input.zeros(usize::from(choice)),
                7 => input.bytes(usize::from(choice)).map(drop),
                _ => input.clone().finish(),
            };
            assert!(input.position() + input.remaining() == bytes.len(), "the reader stays inside");
        }
    }),
    ("envelope", |bytes| open(bytes)),
    ("envelope behind its sum", |bytes| open(&envelope::crafted(&FORMAT, bytes))),
];

fn open(bytes: &[u8]) {
    if let Ok((envelope, body)) = Envelope::open(&FORMAT, bytes) {
        assert_eq!(envelope.body_len as usize, body.len());
        let _ = envelope.check_padding(&FORMAT, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::{Envelope, FORMAT, envelope};

    #[test]
    fn no_decoder_panics_on_any_bytes() {
        copal_testkit::decoders_survive(super::DECODERS, 4000);
    }

    #[test]
    fn crafted_sums_open_the_way_behind_them() {
        let mut bytes = [0; 40];
        bytes[8] = 2;
        let crafted = envelope::crafted(&FORMAT, &bytes);
        let (envelope, body) = Envelope::open(&FORMAT, &crafted).unwrap();
        assert_eq!((envelope.version, body.len()), (2, 8));
    }
}
