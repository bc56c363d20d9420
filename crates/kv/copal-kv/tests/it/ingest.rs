//! Sorted ingest: all at once, in its place in the order, without the log, and nothing left of what was given
//! up.

use crate::support::*;
use copal_kv::{Error, Keyspace, KeyspaceOptions};
use std::collections::BTreeMap;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(group: u8, i: u64) -> Vec<u8> {
    [&[group][..], format!("{i:06}").as_bytes()].concat()
}

/// Sizes that stay in tables, leave them, and would go direct.
fn sample(group: u8, count: u64, tag: u64) -> Map {
    let len = |i: u64| [40, 700, 3500, 20_000][(i % 4) as usize];
    (0..count).map(|i| (key(group, i), value(tag << 32 | i, len(i)))).collect()
}

fn ingest(space: &Keyspace, pairs: &Map) {
    let mut writer = space.ingest_writer().unwrap();
    for (key, value) in pairs {
        writer.put(key, value).unwrap();
    }
    assert_eq!(writer.finish().unwrap(), pairs.len() as u64);
}

fn assert_holds(space: &Keyspace, expected: &Map) {
    assert_eq!(pairs(space), expected.clone().into_iter().collect::<Vec<_>>());
    let backward: Vec<_> = space.iter(all()).rev().map(|item| item.unwrap().0).collect();
    assert!(backward.iter().eq(expected.keys().rev()));
    for (key, value) in expected.iter().step_by(17) {
        assert_eq!(space.get(key).unwrap().unwrap(), value);
        let part = space.get_range(key, 10..30).unwrap().unwrap();
        assert_eq!(part, value[10..30]);
    }
}

#[test]
fn what_is_ingested_appears_at_once_and_stays() {
    let mut fixture = Fixture::new(128 * MIB, small());
    let expected = sample(1, 400, 1);
    {
        let space = fixture.space("a", grouped());
        let mut writer = space.ingest_writer().unwrap();
        let before = fixture.store.snapshot();
        for (key, value) in &expected {
            writer.put(key, value).unwrap();
        }
        assert_eq!(space.iter(all()).count(), 0);
        assert_sound(&fixture.store, true);
        writer.finish().unwrap();
        assert_holds(&space, &expected);
        assert_eq!(before.iter(&space, all()).count(), 0);
        assert_eq!(before.get(&space, &key(1, 3)).unwrap(), None);
    }
    for round in 0..4 {
        let space = fixture.space("a", grouped());
        assert_holds(&space, &expected);
        assert_sound(&fixture.store, true);
        match round {
            0 => space.compact_range(all()).unwrap(),
            1 => {
                // Overwritten with itself: the merge meets both versions of each key.
                ingest(&space, &expected);
                space.compact_range(all()).unwrap();
            }
            _ => {
                drop(space);
                fixture = fixture.reopen(small(), round == 2);
            }
        }
    }
}

#[test]
fn an_ingest_is_newer_than_what_was_written_before_and_older_than_what_comes_after() {
    for flush_first in [false, true] {
        let fixture = Fixture::new(128 * MIB, small());
        let space = fixture.space("a", grouped());
        let mut expected = sample(1, 200, 1);
        for (key, value) in &expected {
            space.put(key, value, PROCESS).unwrap();
        }
        space.delete(&key(1, 7), PROCESS).unwrap();
        space.purge_prefix(&[2], PROCESS).unwrap();
        if flush_first {
            fixture.store.flush().unwrap();
        }
        let snapshot = fixture.store.snapshot();
        expected.remove(&key(1, 7));
        let before = expected.clone();
        let mut new = sample(1, 100, 2);
        new.extend(sample(2, 50, 2));
        ingest(&space, &new);
        expected.extend(new);
        assert_holds(&space, &expected);
        let seen: Map = snapshot
            .iter(&space, all())
            .map(|item| item.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
            .collect();
        assert_eq!(seen, before);
        space.put(&key(1, 50), b"later", PROCESS).unwrap();
        expected.insert(key(1, 50), b"later".to_vec());
        space.delete(&key(2, 3), PROCESS).unwrap();
        expected.remove(&key(2, 3));
        let mut batch = fixture.store.batch();
        batch.delete_range(&space, &key(1, 10), &key(1, 20));
        batch.commit(PROCESS).unwrap();
        expected.retain(|k, _| *k < key(1, 10) || *k >= key(1, 20));
        for _ in 0..2 {
            let found: Map = pairs(&space).into_iter().collect();
            assert_eq!(found, expected);
            space.compact_range(all()).unwrap();
            assert_sound(&fixture.store, true);
        }
        assert_eq!(snapshot.iter(&space, all()).count(), before.len());
    }
}

#[test]
fn an_ingest_into_an_empty_range_is_written_once_and_never_merged() {
    let fixture = Fixture::new(256 * MIB, small());
    let space = fixture.space("a", KeyspaceOptions::default());
    for i in 0..100 {
        space.put(&key(9, i), &value(i, 100), PROCESS).unwrap();
    }
    space.compact_range(all()).unwrap();
    let (before, written) = (fixture.store.stats(), fixture.device.counters().write_bytes);
    let expected: Map = (0..40_000).map(|i| (key(1, i), value(i, 200))).collect();
    let bytes: u64 = expected.iter().map(|(k, v)| (k.len() + v.len()) as u64).sum();
    ingest(&space, &expected);
    space.compact_range(all()).unwrap();
    let after = fixture.store.stats();
    assert_eq!(after.merges, before.merges, "the bottom is where it belongs");
    assert_eq!(after.groups, before.groups, "nothing went through the log");
    let written = fixture.device.counters().write_bytes - written;
    assert!(written < bytes + bytes / 4, "{written} bytes went to the device for {bytes}");
    assert_eq!(space.prefix(&[1]).count(), expected.len());
}

#[test]
fn a_writer_that_is_dropped_or_killed_leaves_nothing() {
    let fixture = Fixture::new(128 * MIB, small());
    let space = fixture.space("a", grouped());
    space.put(b"there", &value(1, 9000), DEVICE).unwrap();
    space.compact_range(all()).unwrap();
    let empty = fixture.live_bytes();
    let begin = |space: &'_ Keyspace| {
        let mut writer = space.ingest_writer().unwrap();
        for (key, value) in &sample(1, 900, 5) {
            writer.put(key, value).unwrap();
        }
        std::mem::forget(writer);
    };
    let mut writer = space.ingest_writer().unwrap();
    for (key, value) in &sample(1, 900, 5) {
        writer.put(key, value).unwrap();
    }
    assert!(fixture.live_bytes() > empty);
    assert_sound(&fixture.store, true);
    drop(writer);
    assert_sound(&fixture.store, true);
    assert_eq!(fixture.live_bytes(), empty);
    begin(&space);
    drop(space);
    let fixture = fixture.reopen(small(), false);
    let space = fixture.space("a", grouped());
    assert_eq!(space.iter(all()).count(), 1);
    assert_sound(&fixture.store, true);
    // What it wrote is 5 MB; an opening writes a checkpoint.
    assert!(fixture.live_bytes() <= empty + 2 * MIB, "{} live, {empty} before", fixture.live_bytes());
}

#[test]
fn a_key_out_of_order_is_refused_and_the_ingest_goes_on() {
    let fixture = Fixture::new(64 * MIB, small());
    let space = fixture.space("a", grouped());
    let mut writer = space.ingest_writer().unwrap();
    writer.put(b"b", b"1").unwrap();
    assert!(matches!(writer.put(b"b", b"2"), Err(Error::NotAscending)));
    assert!(matches!(writer.put(b"a", b"2"), Err(Error::NotAscending)));
    assert!(matches!(writer.put(&vec![b'c'; 65_536], b""), Err(Error::KeyTooLong(65_536))));
    writer.put(b"c", b"3").unwrap();
    assert_eq!(writer.finish().unwrap(), 2);
    assert_eq!(space.get(b"b").unwrap().unwrap(), b"1"[..]);
    assert_eq!(space.ingest_writer().unwrap().finish().unwrap(), 0);
    let mut writer = space.ingest_writer().unwrap();
    writer.put(b"x", b"").unwrap();
    fixture.store.drop_keyspace("a").unwrap();
    assert!(matches!(writer.finish(), Err(Error::NoKeyspace(_))));
    assert_sound(&fixture.store, true);
    fixture.store.close().unwrap();
    assert!(space.ingest_writer().is_err());
}

#[test]
fn a_full_store_refuses_an_ingest_whole() {
    let fixture = Fixture::new(64 * MIB, small());
    let space = fixture.space("a", grouped());
    space.put(b"k", b"v", DEVICE).unwrap();
    let mut writer = space.ingest_writer().unwrap();
    let refused = (0..100_000u64).find_map(|i| writer.put(&key(1, i), &value(i, 3000)).err());
    assert!(refused.is_some_and(|error| error.is_no_space()));
    assert!(writer.put(b"zz", b"").unwrap_err().is_no_space());
    assert!(writer.finish().unwrap_err().is_no_space());
    space.put(b"k2", &value(2, 2000), DEVICE).unwrap();
    assert_eq!(space.iter(all()).count(), 2);
    assert_sound(&fixture.store, true);
}

/// The log's own frames take no sequence, but say which comes next: an ingest in between must not contradict
/// them.
#[test]
fn an_ingest_behind_an_empty_synced_log_survives_reopening() {
    let mut fixture = Fixture::new(64 * MIB, small());
    for round in 0..3 {
        fixture.store.sync().unwrap();
        let space = fixture.space("a", grouped());
        ingest(&space, &sample(1, 3, round));
        fixture.store.sync().unwrap();
        ingest(&space, &sample(2, 3, round));
        space.put(b"z", b"after", DEVICE).unwrap();
        assert_eq!(space.iter(all()).count(), 7);
        drop(space);
        fixture = fixture.reopen(small(), round % 2 == 0);
        let space = fixture.space("a", grouped());
        assert_eq!(space.iter(all()).count(), 7);
        assert_eq!(space.get(&key(1, 1)).unwrap().unwrap(), sample(1, 3, round)[&key(1, 1)]);
    }
    assert_sound(&fixture.store, true);
}

#[test]
fn ingests_and_writers_and_merges_do_not_disturb_each_other() {
    let fixture = Fixture::new(256 * MIB, small());
    let space = fixture.space("a", grouped());
    std::thread::scope(|scope| {
        for thread in 0..2u8 {
            let space = &space;
            scope.spawn(move || {
                let mut random = Random::new(u64::from(thread));
                for i in 0..1500 {
                    let at = key(10 + thread, random.below(300));
                    space.put(&at, &value(i, 50 + random.below(2000) as usize), PROCESS).unwrap();
                    if i % 100 == 0 {
                        space.compact_range(all()).unwrap();
                    }
                }
            });
        }
        for thread in 0..2u8 {
            let space = &space;
            scope.spawn(move || {
                for round in 0..12 {
                    // Between and over the keys of the others' last rounds.
                    let pairs: Map =
                        sample(20 + thread, 60, round).into_iter().skip((round % 3) as usize * 10).collect();
                    ingest(space, &pairs);
                    for (key, value) in pairs.iter().step_by(7) {
                        assert_eq!(space.get(key).unwrap().unwrap(), value);
                    }
                }
            });
        }
    });
    for thread in 0..2 {
        let found: Map = pairs(&space).into_iter().filter(|(key, _)| key[0] == 20 + thread).collect();
        // Rounds 9, 10 and 11 began at keys 0, 10 and 20: the newest that holds a key counts.
        let mut expected = sample(20 + thread, 60, 9);
        expected.extend(sample(20 + thread, 60, 10).into_iter().skip(10));
        expected.extend(sample(20 + thread, 60, 11).into_iter().skip(20));
        assert_eq!(found, expected);
    }
    assert_sound(&fixture.store, true);
}
