//! What decodes packs, recipes, manifests, catalog and key slots, by name: for the fuzz targets, and a short run of each here.
//!
//! Where a checksum guards a structure, what lies behind it is listed too: chance does not get past a sum.
//! Built for tests and fuzzing only.

use crate::{
    catalog::record, key_slot, manifest, pack::format as pack, recipe, source::parse_changed_extents,
};
use copal_codec::Reader;

/// Takes any bytes, gives nothing back and must not panic.
pub type Decoder = fn(&[u8]);

/// Names and decoders.
pub const DECODERS: &[(&str, Decoder)] = &[
    ("pack header", |bytes| {
        let _ = pack::Header::decode(bytes);
    }),
    ("pack footer", |bytes| {
        let _ = pack::decode_rows(bytes, 1 << 24);
    }),
    ("segment recipe", |bytes| {
        let _ = recipe::SegmentRecipe::decode(bytes, 2 << 20);
    }),
    ("recipe page", |bytes| {
        let _ = recipe::Page::decode(bytes, 512);
    }),
    ("disk root", |bytes| {
        let _ = recipe::Root::decode(bytes);
    }),
    ("manifest body", |bytes| {
        let _ = manifest::parse(&mut Reader::new(bytes));
    }),
    ("catalog record body", |bytes| {
        let _ = record::parse(&mut Reader::new(bytes));
    }),
    ("key slot", |bytes| {
        let _ = key_slot::decode(bytes);
    }),
    ("changed extents", |bytes| {
        let _ = parse_changed_extents(bytes);
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
