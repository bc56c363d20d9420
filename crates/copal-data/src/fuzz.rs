//! What decodes the rows of volumes, by name: for the fuzz targets, and a short run of each here.
//!
//! Where a checksum guards a structure, what lies behind it is listed too: chance does not get past a sum.
//! Built for tests and fuzzing only.

use crate::format;
use bytes::Bytes;

/// Takes any bytes, gives nothing back and must not panic.
pub type Decoder = fn(&[u8]);

/// Names and decoders.
pub const DECODERS: &[(&str, Decoder)] = &[
    ("file head", |bytes| {
        let _ = format::FileHead::parse(b"key", &Bytes::copy_from_slice(bytes));
    }),
    ("sums", |bytes| {
        let _ = format::parse_sums(b"key", bytes, 100_000);
    }),
    ("volume", |bytes| {
        let _ = format::VolumeRow::parse(b"key", bytes);
    }),
    ("name", |bytes| {
        let _ = format::parse_name_row(b"key", bytes);
    }),
    ("identity", |bytes| {
        let _ = format::parse_identity(bytes);
    }),
];

#[cfg(test)]
mod tests {
    /// Seeded bytes, mostly small numbers, so that counts and lengths are often plausible.
    fn bytes(seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let len = next() % 600;
        let byte = |word: u64| {
            if word & 0x300 == 0 {
                word as u8
            } else {
                (word % 5) as u8
            }
        };
        (0..len).map(|_| byte(next())).collect()
    }

    #[test]
    fn no_decoder_panics_on_any_bytes() {
        for (_, decode) in super::DECODERS {
            (0..4000).for_each(|seed| decode(&bytes(seed)));
        }
    }
}
