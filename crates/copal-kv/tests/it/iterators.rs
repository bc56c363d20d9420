//! Both ends of an iterator, and what it does not see.

use crate::support::*;
use copal_kv::Keyspace;
use std::ops::Bound;

fn filled(fixture: &Fixture) -> Keyspace {
    let space = fixture.space("a", grouped());
    // Three layers: bottom, a newer run, the memtable; every key in each of them differs.
    for layer in 0..3u64 {
        for i in (0..300u64).filter(|i| i % (layer + 1) == 0) {
            space
                .put(format!("{i:04}").as_bytes(), &value(i + layer, 20), PROCESS)
                .unwrap();
        }
        match layer {
            0 => space.compact_range(all()).unwrap(),
            1 => fixture.store.flush().unwrap(),
            _ => {}
        }
    }
    fixture
        .space("b", grouped())
        .put(b"0000", b"of another keyspace", PROCESS)
        .unwrap();
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
        space
            .put(
                format!("{i:04}").as_bytes(),
                &value(i, 2000 + (i as usize % 3) * 2000),
                PROCESS,
            )
            .unwrap();
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
    // Only now may the old values go.
    space.compact_range(all()).unwrap();
    assert_sound(&fixture.store, true);
}
