//! Decoders of filter pages, by name: the fuzz target uses them, and a short run of each is a test here.
//!
//! A structure behind a checksum is listed separately without it, since random input does not get past a
//! checksum. Built for tests and fuzzing only.

use crate::{FilterPage, HEADER_BYTES, KeyHash, MAX_UNITS, page};

/// Decodes any bytes, discards the result and must not panic.
pub type Decoder = fn(&[u8]);

const UID: u64 = 7;
const SEED: u64 = 1;

/// Names and decoders.
pub const DECODERS: &[(&str, Decoder)] = &[
    ("filter page", |bytes| {
        let _ = FilterPage::load(bytes, MAX_UNITS, UID, SEED);
    }),
    ("filter page behind its sums", |bytes| {
        load_and_ask(&page::crafted(bytes, UID, SEED));
    }),
    ("filter page with a likely header", |bytes| {
        // Kind, units, keys, slots and bytes of a unit from the first bytes; the units from the rest.
        let mut page = vec![0; HEADER_BYTES];
        let (choice, rest) = bytes.split_at(bytes.len().min(4));
        let at = |i: usize| choice.get(i).copied().unwrap_or_default();
        let kind = [1u8, 2, 3, 4][usize::from(at(0) % 4)];
        let unit_bytes = [8u32, 32, 64, 128, 256, 1016][usize::from(at(1) % 6)];
        page[6] = kind;
        page[7] = [15, 6, 10, at(2)][usize::from(kind - 1)];
        page[16..20].copy_from_slice(&(u32::from(at(3)) * 8).to_le_bytes());
        page[20..24].copy_from_slice(&(unit_bytes * 8).to_le_bytes());
        page[24..28].copy_from_slice(&unit_bytes.to_le_bytes());
        page.extend(rest.iter().cycle().take(if rest.is_empty() { 0 } else { 16 * 1024 }));
        load_and_ask(&page::crafted(&page, UID, SEED));
    }),
];

/// Loads every number of units, drops some, and probes keys at both ends and in between.
fn load_and_ask(page: &[u8]) {
    let _ = FilterPage::verify(page, UID, SEED);
    for count in 0..=MAX_UNITS {
        if let Ok(units) = FilterPage::load(page, count, UID, SEED) {
            assert!(units.count() <= count);
            for key in [0, u128::MAX, 1 << 127, 0x5555 << 80, u128::from(count) << 96] {
                let (all, fewer) =
                    (units.may_contain(KeyHash(key)), units.first(count / 2).may_contain(KeyHash(key)));
                assert!(fewer || !all, "fewer units deny what more admit");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{FilterPage, MAX_UNITS, page};

    #[test]
    fn no_decoder_panics_on_any_bytes() {
        copal_testkit::decoders_survive(super::DECODERS, 2000);
    }

    #[test]
    fn crafted_sums_open_the_way_behind_them() {
        let hashes: Vec<_> = (0..100u64).map(|i| crate::KeyHash::new(&i.to_le_bytes(), 5)).collect();
        let page = FilterPage::build(crate::Kind::Ribbon, &hashes, 1, 5).unwrap();
        assert!(FilterPage::load(page.as_bytes(), MAX_UNITS, super::UID, super::SEED).is_err());
        let crafted = page::crafted(page.as_bytes(), super::UID, super::SEED);
        assert_eq!(FilterPage::load(&crafted, MAX_UNITS, super::UID, super::SEED).unwrap().count(), 15);
    }
}
