//! Both ends of an iterator, and writes that it must not see.

use crate::support::*;
use copal_kv::{Keyspace, KeyspaceOptions};
use std::ops::Bound;

fn filled(fixture: &Fixture) -> Keyspace {
    let space = fixture.space("a", grouped());
    // Three layers: bottom, a newer run, the memtable; every key in each of them differs.
    for layer in 0..3u64 {
        for i in (0..300u64).filter(|i| i % (layer + 1) == 0) {
            space.put(format!("{i:04}").as_bytes(), &value(i + layer, 20), PROCESS).unwrap();
        }
        match layer {
            0 => space.compact_range(all()).unwrap(),
            1 => fixture.store.flush().unwrap(),
            _ => {}
        }
    }
    fixture.space("b", grouped()).put(b"0000", b"of another keyspace", PROCESS).unwrap();
    space
}

#[test]
fn both_ends_meet_without_losing_or_repeating_a_key() {
    let fixture = Fixture::new(64 * MIB, small());
    let space = filled(&fixture);
    let forward: Vec<_> = space.iter(all()).map(Result::unwrap).collect();
    let mut backward: Vec<_> = space.iter(all()).rev().map(Result::unwrap).collect();
    backward.reverse();
    assert_eq!(forward.len(), 300);
    assert_eq!(forward, backward);
    let mut random = Random::new(3);
    for _ in 0..50 {
        let mut iter = space.iter(all());
        let (mut front, mut back) = (Vec::new(), Vec::new());
        loop {
            let item = if random.below(2) == 0 {
                iter.next().map(|i| (true, i))
            } else {
                iter.next_back().map(|i| (false, i))
            };
            match item {
                None => break,
                Some((true, item)) => front.push(item.unwrap()),
                Some((false, item)) => back.push(item.unwrap()),
            }
        }
        assert!(iter.next().is_none() && iter.next_back().is_none());
        front.extend(back.into_iter().rev());
        assert_eq!(front, forward);
    }
}

#[test]
fn a_seek_skips_lower_keys_and_never_moves_back() {
    let fixture = Fixture::new(64 * MIB, small());
    let space = filled(&fixture);
    let all_keys: Vec<Vec<u8>> = space.iter(all()).keys_only().map(|item| item.unwrap().0.to_vec()).collect();
    let mut random = Random::new(5);
    for _ in 0..60 {
        let mut iter = space.iter(all()).keys_only();
        let mut left = &all_keys[..];
        for _ in 0..random.below(40) {
            match random.below(4) {
                0 => {
                    // Between two keys, or after all of them.
                    let key = format!("{:04}{}", random.below(310), ["", "x"][random.below(2) as usize]);
                    iter.seek(key.as_bytes());
                    let below = left.partition_point(|other| other[..] < *key.as_bytes());
                    left = &left[below..];
                }
                1 => {
                    let back = iter.next_back().map(|item| item.unwrap().0);
                    assert_eq!(back.as_deref(), left.last().map(Vec::as_slice));
                    left = &left[..left.len().saturating_sub(1)];
                }
                _ => {
                    let next = iter.next().map(|item| item.unwrap().0);
                    assert_eq!(next.as_deref(), left.first().map(Vec::as_slice));
                    left = left.get(1..).unwrap_or_default();
                }
            }
        }
        assert_eq!(iter.count(), left.len());
    }
}

#[test]
fn the_bytes_of_a_range_are_estimated_without_reading_it() {
    let fixture = Fixture::new(256 * MIB, small());
    let small = fixture.space("small", KeyspaceOptions::default());
    for i in 0..40_000u64 {
        small.put(&i.to_be_bytes(), &value(i, 100), PROCESS).unwrap();
    }
    // With separated values.
    let large = fixture.space("large", KeyspaceOptions::default());
    for i in 0..12_000u64 {
        large.put(&i.to_be_bytes(), &value(i, 5000), PROCESS).unwrap();
    }
    small.compact_range(all()).unwrap();
    large.compact_range(all()).unwrap();
    let read = fixture.device.counters().read_bytes;
    let bytes = |space: &Keyspace, from: u64, to: u64| {
        let (from, to) = (from.to_be_bytes(), to.to_be_bytes());
        space.approximate_bytes((Bound::Included(&from[..]), Bound::Excluded(&to[..]))) as f64
    };
    let close = |told: f64, real: f64, part: f64| assert!((told / real - 1.0).abs() < part, "{told} {real}");
    close(small.approximate_bytes(all()) as f64, 40_000.0 * 118.0, 0.1);
    close(large.approximate_bytes(all()) as f64, 12_000.0 * 5050.0, 0.1);
    close(bytes(&small, 10_000, 30_000), 20_000.0 * 118.0, 0.25);
    close(bytes(&large, 0, 6000), 6000.0 * 5050.0, 0.4);
    // No keys in the range; there may be neighbours in the same partition.
    assert!(bytes(&small, 50_000, 60_000) < 100_000.0);
    assert_eq!(bytes(&small, 7, 7), 0.0);
    assert_eq!(fixture.device.counters().read_bytes, read);
}

#[test]
fn bounds_and_prefixes_cut_where_they_say() {
    let fixture = Fixture::new(64 * MIB, small());
    let space = filled(&fixture);
    let count = |low: Bound<&[u8]>, high: Bound<&[u8]>| {
        let forward = space.iter((low, high)).count();
        assert_eq!(forward, space.iter((low, high)).rev().count());
        forward
    };
    assert_eq!(count(Bound::Included(b"0010"), Bound::Excluded(b"0020")), 10);
    assert_eq!(count(Bound::Excluded(b"0010"), Bound::Included(b"0020")), 10);
    assert_eq!(count(Bound::Included(b"0020"), Bound::Excluded(b"0010")), 0);
    assert_eq!(count(Bound::Unbounded, Bound::Excluded(b"0001")), 1);
    assert_eq!(count(Bound::Included(b"03"), Bound::Unbounded), 0);
    assert_eq!(space.prefix(b"01").count(), 100);
    assert_eq!(space.prefix(b"").count(), 300);
    let keys: Vec<_> = space.prefix(b"000").keys_only().map(Result::unwrap).collect();
    assert_eq!(keys.len(), 10);
    assert!(keys.iter().all(|(key, value)| key.len() == 4 && value.is_empty()));
}

#[test]
fn an_iterator_sees_the_moment_it_was_made_although_the_tree_changes_under_it() {
    let fixture = Fixture::new(64 * MIB, small());
    let space = fixture.space("a", grouped());
    for i in 0..300u64 {
        space.put(format!("{i:04}").as_bytes(), &value(i, 2000 + (i as usize % 3) * 2000), PROCESS).unwrap();
    }
    let mut iter = space.iter(all());
    let mut seen = Vec::new();
    for _ in 0..50 {
        seen.push(iter.next().unwrap().unwrap());
    }
    space.purge_prefix(b"", PROCESS).unwrap();
    for i in 0..300u64 {
        space.put(format!("{i:04}x").as_bytes(), b"new", PROCESS).unwrap();
    }
    space.compact_range(all()).unwrap();
    seen.extend(iter.map(Result::unwrap));
    assert_eq!(seen.len(), 300);
    for (i, (key, found)) in seen.iter().enumerate() {
        assert_eq!(key, format!("{i:04}").as_bytes());
        assert_eq!(found[..], value(i as u64, 2000 + (i % 3) * 2000));
    }
    drop(seen);
    // The old values may be freed only now.
    space.compact_range(all()).unwrap();
    assert_sound(&fixture.store, true);
}
