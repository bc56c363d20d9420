//! No false negative, FPR of k units = FPR(1)^k, size, and independence (elasticbf §3.1).

use super::support::{SEED, fill, hash, partitions, within_3_sigma};
use crate::{
    FilterPage, HEADER_BYTES, Kind, PartitionFilterBuilder, Units, bloom, ribbon, ribbon::reference,
};

fn load(page: &[u8], units: u8, uid: u64) -> Units {
    FilterPage::load(page, units, uid, SEED).unwrap()
}

#[test]
fn no_kind_ever_denies_a_key_it_holds() {
    for kind in [Kind::Ribbon, Kind::Bloom] {
        for (uid, (keys, page)) in partitions(kind, 1, 8).iter().enumerate() {
            for units in 0..=kind.units() {
                let filter = load(page, units, uid as u64);
                assert_eq!(filter.count(), units);
                assert!(keys.iter().all(|&key| filter.may_contain(key)), "{kind:?}, {units} units");
            }
        }
    }
}

#[test]
fn units_that_stay_answer_as_if_they_had_been_loaded_alone() {
    for kind in [Kind::Ribbon, Kind::Bloom] {
        let (keys, page) = &partitions(kind, 6, 1)[0];
        for loaded in 0..=kind.units() {
            let all = load(page, loaded, 0);
            for count in 0..=kind.units() {
                let (kept, fresh) = (all.first(count), load(page, count.min(loaded), 0));
                assert_eq!(kept.count(), count.min(loaded));
                assert_eq!(kept.heap_bytes(), fresh.heap_bytes());
                assert!(keys.iter().all(|&key| kept.may_contain(key)));
                let absent = (0..300).map(|i| hash(7, i));
                for key in absent {
                    assert_eq!(kept.may_contain(key), fresh.may_contain(key), "{kind:?}");
                }
            }
        }
    }
}

#[test]
fn k_columns_let_one_absent_key_in_two_to_the_k_pass() {
    let partitions = partitions(Kind::Ribbon, 2, 40);
    for k in 1..=8u8 {
        let (mut seen, mut probes) = (0, 0);
        for (uid, (_, page)) in partitions.iter().enumerate() {
            let filter = load(page, k, uid as u64);
            let absent = (0..20_000).map(|i| hash(3, i + 20_000 * uid as u64));
            seen += absent.filter(|&key| filter.may_contain(key)).count() as u64;
            probes += 20_000;
        }
        let p = Kind::Ribbon.fpr(k);
        assert!(within_3_sigma(seen, probes, p), "k = {k}: {} instead of {p}", seen as f64 / probes as f64);
    }
}

#[test]
fn any_choice_of_columns_is_as_good_as_the_first_ones() {
    let hashes: Vec<_> = (0..2000).map(|i| hash(4, i)).collect();
    let (slots, columns) = ribbon::solve(&hashes, 9).unwrap();
    for choice in [[14, 3].as_slice(), &[7, 1, 12], &[0, 2, 4, 6]] {
        let probes = 200_000;
        let passes = |i: u64| {
            let key = hash(5, i);
            choice.iter().all(|&j| reference::holds(&columns[usize::from(j)], slots, j, key))
        };
        let seen = (0..probes).filter(|&i| passes(i)).count() as u64;
        assert!(within_3_sigma(seen, probes, 0.5f64.powi(choice.len() as i32)), "{choice:?}: {seen}");
    }
}

#[test]
fn bloom_units_multiply_as_the_paper_says() {
    for kind in [Kind::Bloom] {
        let partitions = partitions(kind, 6, 20);
        for units in 1..=4u8 {
            let (mut seen, mut probes) = (0, 0);
            for (uid, (_, page)) in partitions.iter().enumerate() {
                let filter = load(page, units, uid as u64);
                seen += (0..20_000).filter(|&i| filter.may_contain(hash(7, i))).count() as u64;
                probes += 20_000;
            }
            // Unlike columns, Bloom units differ in how full they are: allow 3 %.
            let (rate, p) = (seen as f64 / probes as f64, kind.fpr(units));
            let sigma = (p / probes as f64).sqrt();
            assert!((rate - p).abs() < 0.03 * p + 3.0 * sigma, "{kind:?} x {units}: {rate} instead of {p}");
        }
    }
}

/// Unit number `unit` of a stored page.
fn unit_words(page: &[u8], unit_bytes: u32, unit: u8) -> Vec<u64> {
    let at = HEADER_BYTES + unit_bytes as usize * usize::from(unit);
    let (words, _) = page[at..at + unit_bytes as usize].as_chunks::<8>();
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

#[test]
fn any_subset_of_units_multiplies_for_each_kind() {
    // Separability, elasticbf §3.1: the rates of the units of any subset multiply to the rate of the subset.
    for kind in [Kind::Ribbon, Kind::Bloom] {
        let subsets: [&[u8]; 6] = [&[5], &[0, 5], &[4, 1], &[2, 3, 5], &[1, 4, 5, 2], &[5, 4, 3, 2, 1]];
        let (partitions, probes) = (25, 16_000u64);
        let mut seen = [0u64; 6];
        let mut alone = [0u64; 6];
        for (_, page) in &partitions_of(kind, partitions) {
            let unit_bytes = kind.unit_bytes(crate::KEYS_PER_PARTITION);
            let units: Vec<Vec<u64>> = (0..6).map(|unit| unit_words(page, unit_bytes, unit)).collect();
            for i in 0..probes {
                let key = hash(61, i);
                let admits = |unit: &u8| {
                    let words = &units[usize::from(*unit)];
                    match kind {
                        Kind::Ribbon => reference::holds(words, unit_bytes * 8, *unit, key),
                        Kind::Bloom => bloom::admits(words, *unit, key),
                    }
                };
                for (subset, seen) in subsets.iter().zip(&mut seen) {
                    *seen += u64::from(subset.iter().all(admits));
                }
                for (unit, alone) in (0u8..).zip(&mut alone) {
                    *alone += u64::from(admits(&unit));
                }
            }
        }
        let all = (partitions * probes) as f64;
        for (subset, seen) in subsets.iter().zip(seen) {
            let product: f64 = subset.iter().map(|&unit| alone[usize::from(unit)] as f64 / all).product();
            let rate = seen as f64 / all;
            // The product is measured too, and the units of a Bloom page differ a little from page to page.
            let sigma = (product * (1.0 + subset.len() as f64) / all).sqrt();
            assert!(
                (rate - product).abs() < 3.0 * sigma + 0.01 * product,
                "{kind:?} {subset:?}: {rate} and {product}"
            );
            let promised = kind.fpr(subset.len() as u8);
            assert!(
                (rate / promised - 1.0).abs() < 0.05 + 3.0 / (promised * all).sqrt(),
                "{kind:?} {subset:?}"
            );
        }
    }
}

fn partitions_of(kind: Kind, count: u64) -> Vec<(Vec<crate::KeyHash>, Vec<u8>)> {
    let full = partitions(kind, 60, count);
    // Close to full: the promised rate of a Bloom unit is that of a full one.
    assert!(full.iter().all(|(keys, _)| keys.len() > 1700));
    full
}

#[test]
fn a_column_takes_1_013_bits_per_key() {
    let partitions = partitions(Kind::Ribbon, 8, 100);
    let keys: usize = partitions.iter().map(|(keys, _)| keys.len()).sum();
    let bits = partitions.len() as f64 * f64::from(ribbon::MAX_SLOTS) / keys as f64;
    assert!((bits - 1.013).abs() < 0.01, "{bits} bits per key");
    assert!(partitions.iter().all(|(_, page)| page.len() == 4096));
}

#[test]
fn small_systems_fill_as_simulated() {
    // Average number of keys until the first that does not fit, as simulated before the implementation.
    for (slots, expected) in [(256, 254.0), (512, 510.0), (1024, 1017.0), (2048, 2021.0)] {
        let mut hashes = (0..).map(|i| hash(slots, i));
        let rounds = 60;
        let mut keys = 0;
        for _ in 0..rounds {
            let mut band = ribbon::RibbonBand::new(slots);
            keys += hashes.by_ref().take_while(|&h| band.add(h) != ribbon::BandPlacement::DoesNotFit).count();
        }
        let mean = keys as f64 / f64::from(rounds);
        assert!((mean - expected).abs() < 0.01 * expected, "{slots} slots hold {mean} keys");
    }
}

#[test]
fn partitions_that_share_their_keys_err_independently() {
    // Two runs may hold the same keys; an absent key must not pass both filters more often than 4^-k.
    for shared in [0, 1000, 1800, 1999, 2000] {
        let keys = |own: u32| {
            let common = (0..shared).map(|i| hash(20, i));
            common.chain((shared..2000).map(move |i| hash(own, i))).collect::<Vec<_>>()
        };
        let mut builder = PartitionFilterBuilder::new(Kind::Ribbon, SEED);
        let mut page = |own: u32, uid: u64| {
            let keys = keys(own);
            assert_eq!(fill(&mut builder, &mut keys.iter().copied()).len(), 2000);
            let page = builder.finish(uid).unwrap();
            load(page.as_bytes(), 3, uid)
        };
        let (a, b) = (page(21, 1), page(22, 2));
        let probes = 200_000;
        let both = |i: u64| a.may_contain(hash(23, i)) && b.may_contain(hash(23, i));
        let seen = (0..probes).filter(|&i| both(i)).count() as u64;
        let p = 1.0 / 64.0;
        assert!(within_3_sigma(seen, probes, p), "{shared} keys shared: {}", seen as f64 / probes as f64);
    }
}

#[test]
fn the_fast_query_agrees_with_the_definition() {
    for (slots, keys) in [(256, 200), (512, 500), (1024, 900), (2048, 2000)] {
        let hashes: Vec<_> = (0..keys).map(|i| hash(30, i)).collect();
        let (found, columns) = ribbon::solve(&hashes, 3).unwrap();
        assert_eq!(found, slots);
        for k in 0..=columns.len() {
            let fast = ribbon::UnitColumns::interleave(slots, &columns[..k]);
            for i in 0..3000 {
                let key = hash(31, i);
                assert_eq!(fast.may_contain(key), reference::may_contain(&columns[..k], slots, key));
            }
        }
    }
}

#[test]
fn crafted_keys_cannot_make_tiny_partitions() {
    // Keys of equal row and start but different results contradict each other at the second key.
    let mut builder = PartitionFilterBuilder::new(Kind::Ribbon, SEED);
    for i in 0..1000u128 {
        let key = crate::KeyHash(1 << 100 | (i & 0x7fff) << 81 | 5);
        assert_eq!(builder.add(key), crate::FilterFit::Fits);
    }
    assert!(builder.finish(1).is_none(), "the partition stays open, unfiltered");
    // The builder is as new.
    assert_eq!(builder.add(hash(40, 1)), crate::FilterFit::Fits);
    assert!(builder.finish(2).is_some());
}

#[test]
fn the_same_key_twice_changes_nothing() {
    let mut band = ribbon::RibbonBand::new(256);
    assert_eq!(band.add(hash(41, 1)), ribbon::BandPlacement::Took);
    let before = band.columns(1);
    assert_eq!(band.add(hash(41, 1)), ribbon::BandPlacement::Implied);
    assert_eq!(band.columns(1), before);
}
