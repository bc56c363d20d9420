//! Range checksums: the same for the same content, whatever its history, and different where content differs.

use crate::support::*;
use copal_kv::{KeyspaceOptions, Options, RangeChecksum};
use std::{collections::BTreeMap, ops::Bound};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn content(seed: u64, keys: u64) -> Map {
    let mut random = Random::new(seed);
    let mut map = Map::new();
    for i in 0..keys {
        let len = match random.below(10) {
            0..6 => random.below(300),
            6..8 => 600 + random.below(4000),
            _ => 60_000 + random.below(150_000),
        };
        map.insert(format!("{:05}", i * 7).into_bytes(), value(seed << 32 | i, len as usize));
    }
    map
}

/// How a store comes by its content.
fn fill(fixture: &Fixture, options: KeyspaceOptions, map: &Map, history: u64) {
    // Another keyspace first, so that ids differ between replicas.
    if history % 2 == 1 {
        fixture.space("other", KeyspaceOptions::default());
    }
    let space = fixture.space("a", options);
    let mut random = Random::new(history);
    match history {
        0 => {
            let mut writer = space.ingest_writer().unwrap();
            for (key, value) in map {
                writer.put(key, value).unwrap();
            }
            writer.finish().unwrap();
        }
        _ => {
            for (key, value) in map.iter().rev() {
                if random.below(4) == 0 {
                    space.put(key, b"an older version", PROCESS).unwrap();
                }
                space.put(key, value, PROCESS).unwrap();
                if random.below(20) == 0 {
                    fixture.store.flush().unwrap();
                }
            }
            space.put(b"gone", &value(1, 9000), PROCESS).unwrap();
            space.delete(b"gone", PROCESS).unwrap();
            if history > 2 {
                space.compact_range(all()).unwrap();
            }
        }
    }
}

/// One content, five histories, four kinds of keyspace: inline, separated, direct, with heads.
#[test]
fn equal_content_has_equal_checksums_whatever_its_history() {
    let map = content(3, 120);
    let bytes: u64 = map.iter().map(|(k, v)| (k.len() + v.len()) as u64).sum();
    let kinds = [
        KeyspaceOptions { separate_from_bytes: u32::MAX, direct_from_bytes: u32::MAX, ..grouped() },
        grouped(),
        KeyspaceOptions { compress: true, ..KeyspaceOptions::default() },
        KeyspaceOptions { value_head_bytes: 700, ..grouped() },
    ];
    let mut first: Option<RangeChecksum> = None;
    for (history, options) in (0..5).zip(kinds.iter().cycle()) {
        let fixture = Fixture::new(192 * MIB, small());
        fill(&fixture, options.clone(), &map, history);
        let space = fixture.space("a", options.clone());
        let sum = space.range_checksum(all(), false).unwrap();
        assert_eq!((sum.keys, sum.bytes), (map.len() as u64, bytes), "history {history}");
        assert_eq!(sum, space.range_checksum(all(), true).unwrap());
        assert_eq!(*first.get_or_insert(sum), sum, "history {history}");
        // Parts add up, wherever they are cut.
        let cuts: [&[u8]; 3] = [b"00100", b"00300", b"00301"];
        let mut parts = space.range_checksum((Bound::Unbounded, Bound::Excluded(cuts[0])), false).unwrap();
        for pair in cuts.windows(2) {
            let between = (Bound::Included(pair[0]), Bound::Excluded(pair[1]));
            parts += space.range_checksum(between, false).unwrap();
        }
        parts += space.range_checksum((Bound::Included(cuts[2]), Bound::Unbounded), false).unwrap();
        assert_eq!(parts, sum);
    }
}

#[test]
fn a_checksum_reads_no_separated_value_unless_it_is_to_verify() {
    let options = Options { memory_bytes: 8 * MIB, ..small() };
    let fixture = Fixture::new(192 * MIB, options);
    let space = fixture.space("a", grouped());
    for i in 0..200u64 {
        space.put(&i.to_be_bytes(), &value(i, 100_000), PROCESS).unwrap();
    }
    fixture.store.flush().unwrap();
    let before = fixture.device.counters().read_bytes;
    let sum = space.range_checksum(all(), false).unwrap();
    let without = fixture.device.counters().read_bytes - before;
    assert!(without < 256 << 10, "{without} bytes read for 20 MB of values");
    assert_eq!(space.range_checksum(all(), true).unwrap(), sum);
    let with = fixture.device.counters().read_bytes - before - without;
    assert!(with >= 200 * 100_000, "{with} bytes read to verify");
}

#[test]
fn a_snapshot_has_the_checksum_of_its_moment() {
    let fixture = Fixture::new(64 * MIB, small());
    let space = fixture.space("a", grouped());
    space.put(b"k", b"v", PROCESS).unwrap();
    let (sum, snapshot) = (space.range_checksum(all(), false).unwrap(), fixture.store.snapshot());
    space.put(b"k", b"w", PROCESS).unwrap();
    assert_eq!(snapshot.range_checksum(&space, all(), false).unwrap(), sum);
    let now = space.range_checksum(all(), false).unwrap();
    assert_eq!((now.keys, now.bytes), (sum.keys, sum.bytes));
    assert_ne!(now.digest, sum.digest);
    space.delete(b"k", PROCESS).unwrap();
    assert_eq!(space.range_checksum(all(), false).unwrap(), RangeChecksum::default());
}

/// Two replicas that differ in one value, one extra key or one missing key: halving finds it.
#[test]
fn bisecting_finds_the_difference() {
    let map = content(9, 300);
    let keys: Vec<&Vec<u8>> = map.keys().collect();
    let mut random = Random::new(4);
    let ours = Fixture::new(192 * MIB, small());
    fill(&ours, grouped(), &map, 0);
    let theirs = Fixture::new(192 * MIB, small());
    fill(&theirs, KeyspaceOptions::default(), &map, 1);
    let (a, b) = (ours.space("a", grouped()), theirs.space("a", KeyspaceOptions::default()));
    for round in 0..6 {
        let key = keys[random.below(300) as usize].clone();
        let other = [&key[..], b"x"].concat();
        let at = match round % 3 {
            0 => {
                let mut changed = map[&key].clone();
                changed.push(1);
                b.put(&key, &changed, PROCESS).unwrap();
                key.clone()
            }
            1 => {
                b.delete(&key, PROCESS).unwrap();
                key.clone()
            }
            _ => {
                b.put(&other, b"extra", PROCESS).unwrap();
                other.clone()
            }
        };
        // Keys are five digits: halve the numbers.
        let (mut low, mut high) = (0u64, 3000u64);
        let bound = |n: u64| format!("{n:05}").into_bytes();
        let mut asked = 0;
        while high - low > 1 {
            let middle = (low + high) / 2;
            let (from, to) = (bound(low), bound(middle));
            let range = (Bound::Included(&from[..]), Bound::Excluded(&to[..]));
            let differ = a.range_checksum(range, false).unwrap() != b.range_checksum(range, false).unwrap();
            (low, high) = if differ { (low, middle) } else { (middle, high) };
            asked += 1;
        }
        assert!(at.starts_with(&bound(low)), "{at:?} is not in {low}");
        assert!(asked <= 12);
        // Made equal again for the next round.
        b.put(&key, &map[&key], PROCESS).unwrap();
        b.delete(&other, PROCESS).unwrap();
        assert_eq!(a.range_checksum(all(), false).unwrap(), b.range_checksum(all(), false).unwrap());
    }
}
