//! Truncated, changed or crafted pages: refused with a reason, or still without a false negative; never a
//! panic.

use super::support::{SEED, hash, partitions};
use crate::{FilterPage, HEADER_BYTES, Kind, PageError};
use copal_codec::crc32c;

/// Sets header bytes and fixes the header's checksum, as an attacker would.
fn crafted(page: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut page = page.to_vec();
    page[at..at + bytes.len()].copy_from_slice(bytes);
    let sum = crc32c(0, &page[..HEADER_BYTES - 4]);
    page[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    page
}

#[test]
fn every_changed_byte_is_noticed() {
    for kind in [Kind::Ribbon, Kind::Bloom] {
        let (_, page) = partitions(kind, 50, 1).remove(0);
        FilterPage::verify(&page, 0, SEED).unwrap();
        for at in 0..page.len() {
            let mut changed = page.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(FilterPage::verify(&changed, 0, SEED).is_err(), "{kind:?}: byte {at}");
        }
    }
}

#[test]
fn a_damaged_unit_spoils_only_loads_that_need_it() {
    let (keys, mut page) = partitions(Kind::Ribbon, 51, 1).remove(0);
    page[HEADER_BYTES + 256 * 4] ^= 1;
    let units = FilterPage::load(&page, 4, 0, SEED).unwrap();
    assert!(keys.iter().all(|&key| units.may_contain(key)));
    assert_eq!(FilterPage::load(&page, 5, 0, SEED).unwrap_err(), PageError::UnitChecksum { unit: 4 });
}

#[test]
fn a_page_cut_behind_the_units_wanted_is_enough() {
    let (keys, page) = partitions(Kind::Ribbon, 52, 1).remove(0);
    let units = FilterPage::load(&page[..HEADER_BYTES + 3 * 256], 3, 0, SEED).unwrap();
    assert!(keys.iter().all(|&key| units.may_contain(key)));
    for len in [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 3 * 256 - 1] {
        let short = FilterPage::load(&page[..len], 3, 0, SEED).unwrap_err();
        assert!(matches!(short, PageError::Short { .. }), "{len}: {short}");
    }
}

#[test]
fn a_foreign_page_is_refused() {
    let (_, page) = partitions(Kind::Ribbon, 53, 1).remove(0);
    let other = FilterPage::load(&page, 3, 99, SEED).unwrap_err();
    assert_eq!(other, PageError::Partition { found: 0, expected: 99 });
    assert_eq!(FilterPage::load(&page, 3, 0, SEED + 1).unwrap_err(), PageError::Seed);
}

#[test]
fn crafted_headers_with_a_right_checksum_are_refused_by_field() {
    let (_, page) = partitions(Kind::Ribbon, 54, 1).remove(0);
    let cases: [(usize, &[u8], &str); 9] = [
        (6, &[9], "kind"),
        (7, &[16], "units"),
        (7, &[0], "units"),
        (16, &0u32.to_le_bytes(), "keys"),
        (16, &u32::MAX.to_le_bytes(), "keys"),
        (20, &4096u32.to_le_bytes(), "slots"),
        (24, &u32::MAX.to_le_bytes(), "unit bytes"),
        (24, &0u32.to_le_bytes(), "unit bytes"),
        (100, &[1], "reserved"),
    ];
    for (at, bytes, name) in cases {
        match FilterPage::load(&crafted(&page, at, bytes), 15, 0, SEED) {
            Err(PageError::Field { field, .. }) => assert_eq!(field, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    let newer = crafted(&page, 4, &2u16.to_le_bytes());
    let refused = FilterPage::load(&newer, 15, 0, SEED).unwrap_err();
    assert_eq!(refused, PageError::Version { found: 2, known: 1 });
}

#[test]
fn random_headers_never_panic() {
    let (_, page) = partitions(Kind::Bloom, 55, 1).remove(0);
    for i in 0..20_000u64 {
        let noise = hash(56, i).0.to_le_bytes();
        let at = 4 + (i % 27) as usize;
        let len = 1 + (i % 5) as usize;
        let changed = crafted(&page, at, &noise[..len]);
        if let Ok(units) = FilterPage::load(&changed, noise[9] % 17, 0, SEED) {
            units.may_contain(hash(57, i));
        }
    }
}
