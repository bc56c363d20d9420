//! Promises of each call, one at a time.

use crate::support::*;
use bytes::Bytes;
use copal_kv::{Durability, Error, KeyspaceOptions, Store};

#[test]
fn values_of_every_size_come_back_from_memory_tables_and_value_objects() {
    let mut fixture = Fixture::new(128 * MIB, small());
    let sizes = [0usize, 1, 599, 600, 2999, 3000, 65_536, 65_537, 300_000, 3 << 20];
    let space = fixture.space("a", grouped());
    for (i, size) in sizes.iter().enumerate() {
        space.put(format!("key{i}").as_bytes(), &value(i as u64, *size), PROCESS).unwrap();
    }
    for round in 0..4 {
        let space = fixture.space("a", grouped());
        for (i, size) in sizes.iter().enumerate() {
            let key = format!("key{i}");
            let expected = value(i as u64, *size);
            assert_eq!(space.get(key.as_bytes()).unwrap().unwrap(), expected, "round {round}, {size} bytes");
            let from = (size / 3) as u64;
            let part = space.get_range(key.as_bytes(), from..from + 70_000).unwrap().unwrap();
            assert_eq!(part, expected[from as usize..(from as usize + 70_000).min(*size)]);
            assert!(space.contains(key.as_bytes()).unwrap());
        }
        assert_eq!(space.get(b"key").unwrap(), None);
        assert_sound(&fixture.store, true);
        match round {
            0 => fixture.store.flush().unwrap(),
            1 => space.compact_range(all()).unwrap(),
            2 => {
                drop(space);
                fixture = fixture.reopen(small(), true);
            }
            _ => {}
        }
    }
}

#[test]
fn a_batch_is_atomic_over_keyspaces_and_later_operations_win() {
    let fixture = Fixture::new(64 * MIB, small());
    let (a, b) = (fixture.space("a", grouped()), fixture.space("b", KeyspaceOptions::default()));
    a.put(b"gone", b"x", PROCESS).unwrap();
    let mut batch = fixture.store.batch();
    batch.put(&a, b"k", Bytes::from_static(b"first")).put(&b, b"k", Bytes::from_static(b"other"));
    batch.put(&a, b"k", Bytes::from_static(b"second")).delete(&a, b"gone");
    batch.put(&a, b"r1", Bytes::new()).delete_range(&a, b"r0", b"r9").put(&a, b"r2", Bytes::new());
    assert_eq!(batch.len(), 7);
    batch.commit(DEVICE).unwrap();
    assert_eq!(a.get(b"k").unwrap().unwrap(), b"second"[..]);
    assert_eq!(b.get(b"k").unwrap().unwrap(), b"other"[..]);
    assert_eq!((a.get(b"gone").unwrap(), a.get(b"r1").unwrap()), (None, None));
    assert!(a.contains(b"r2").unwrap());
    fixture.store.batch().commit(DEVICE).unwrap();
}

#[test]
fn a_batch_with_a_bad_key_changes_nothing() {
    let fixture = Fixture::new(64 * MIB, small());
    let space = fixture.space("a", grouped());
    let mut batch = fixture.store.batch();
    batch.put(&space, b"good", Bytes::from_static(b"1")).put(&space, &vec![0; 65_536], Bytes::new());
    assert!(matches!(batch.commit(DEVICE), Err(Error::KeyTooLong(65_536))));
    assert_eq!(space.get(b"good").unwrap(), None);
    let mut batch = fixture.store.batch();
    for i in 0..70_000u32 {
        batch.put(&space, &i.to_be_bytes(), Bytes::from(vec![7; 1000]));
    }
    let separated = KeyspaceOptions { direct_from_bytes: 65_536, ..grouped() };
    let plain = fixture.space("plain", separated);
    let mut too_large = fixture.store.batch();
    for i in 0..1100u32 {
        too_large.put(&plain, &i.to_be_bytes(), Bytes::from(vec![7; 65_000]));
    }
    assert!(matches!(too_large.commit(DEVICE), Err(Error::BatchTooLarge { .. })));
    assert_eq!(plain.iter(all()).count(), 0);
}

#[test]
fn the_longest_key_works_everywhere() {
    let fixture = Fixture::new(128 * MIB, small());
    let space = fixture.space("a", grouped());
    let long = vec![0xff; 65_535];
    space.put(&long, b"end", PROCESS).unwrap();
    space.put(&[], b"start", PROCESS).unwrap();
    for _ in 0..2 {
        assert_eq!(space.get(&long).unwrap().unwrap(), b"end"[..]);
        assert_eq!(space.get(b"").unwrap().unwrap(), b"start"[..]);
        assert_eq!(space.prefix(&[0xff; 60_000]).count(), 1);
        fixture.store.flush().unwrap();
    }
    space.purge_prefix(&[0xff], DEVICE).unwrap();
    space.compact_range(all()).unwrap();
    assert_eq!(pairs(&space).len(), 1);
    assert!(matches!(space.put(&vec![0; 65_536], b"", DEVICE), Err(Error::KeyTooLong(65_536))));
}

#[test]
fn keyspaces_keep_their_options_and_go_when_dropped() {
    let fixture = Fixture::new(64 * MIB, small());
    let space = fixture.space("a", grouped());
    space.put(b"k", &value(1, 100_000), DEVICE).unwrap();
    let fixture = fixture.reopen(small(), true);
    let again = fixture.store.open_keyspace("a").unwrap().unwrap();
    assert_eq!(again.options(), &grouped());
    assert_eq!(again.get(b"k").unwrap().unwrap(), value(1, 100_000));
    fixture.store.drop_keyspace("a").unwrap();
    assert!(matches!(again.get(b"k"), Err(Error::NoKeyspace(_))));
    assert!(matches!(again.put(b"k", b"", DEVICE), Err(Error::NoKeyspace(_))));
    assert!(matches!(fixture.store.drop_keyspace("a"), Err(Error::NoKeyspace(_))));
    let new = fixture.space("a", KeyspaceOptions::default());
    assert_eq!(new.get(b"k").unwrap(), None);
    new.compact_range(all()).unwrap();
    let fixture = fixture.reopen(small(), false);
    assert_eq!(fixture.space("a", grouped()).options(), &KeyspaceOptions::default());
    assert_sound(&fixture.store, true);
}

#[test]
fn a_snapshot_sees_its_moment_through_flush_and_merge() {
    let fixture = Fixture::new(64 * MIB, small());
    let space = fixture.space("a", grouped());
    for i in 0..200u64 {
        space.put(&i.to_be_bytes(), &value(i, 50 + (i as usize % 5) * 1000), PROCESS).unwrap();
    }
    let snapshot = fixture.store.snapshot();
    for i in 0..200u64 {
        match i % 3 {
            0 => space.delete(&i.to_be_bytes(), PROCESS).unwrap(),
            1 => space.put(&i.to_be_bytes(), b"new", PROCESS).unwrap(),
            _ => {}
        }
    }
    space.purge_prefix(&[0, 0, 0, 0, 0, 0, 0], PROCESS).unwrap();
    for _ in 0..3 {
        for i in 0..200u64 {
            let expected = value(i, 50 + (i as usize % 5) * 1000);
            assert_eq!(snapshot.get(&space, &i.to_be_bytes()).unwrap().unwrap(), expected);
        }
        assert_eq!(snapshot.iter(&space, all()).count(), 200);
        assert_eq!(space.iter(all()).count(), 0);
        fixture.store.flush().unwrap();
        space.compact_range(all()).unwrap();
        assert_sound(&fixture.store, true);
    }
    drop(snapshot);
    space.compact_range(all()).unwrap();
    let report = fixture.store.verify(true).unwrap();
    assert_eq!((report.entries, report.problems.len()), (0, 0), "{report:?}");
}

#[test]
fn opening_read_only_replays_the_log_and_writes_nothing() {
    let fixture = Fixture::new(64 * MIB, small());
    let space = fixture.space("a", grouped());
    space.put(b"table", b"1", DEVICE).unwrap();
    fixture.store.flush().unwrap();
    space.put(b"log", &value(3, 5000), DEVICE).unwrap();
    let Fixture { device, objects, store } = fixture;
    drop((space, store));
    objects.close().unwrap();
    drop(objects);
    let before = device.counters();
    let options = copal_object::OpenOptions { read_only: true, ..Default::default() };
    let (objects, _) = copal_object::Store::open(device.clone(), &options).unwrap();
    let read_only = copal_kv::Options { read_only: true, ..small() };
    let store = Store::open(objects, read_only).unwrap();
    let space = store.open_keyspace("a").unwrap().unwrap();
    assert_eq!(space.get(b"table").unwrap().unwrap(), b"1"[..]);
    assert_eq!(space.get(b"log").unwrap().unwrap(), value(3, 5000));
    assert!(matches!(space.put(b"k", b"", DEVICE), Err(Error::ReadOnly)));
    assert!(matches!(space.compact_range(all()), Err(Error::ReadOnly)));
    assert!(matches!(store.keyspace("new", grouped()), Err(Error::ReadOnly)));
    store.flush().unwrap();
    store.close().unwrap();
    let after = device.counters();
    assert_eq!((after.writes, after.fua_writes), (before.writes, before.fua_writes));
}

#[test]
fn deferred_writes_are_logged_by_sync_and_by_close() {
    let fixture = Fixture::new(64 * MIB, small());
    let space = fixture.space("a", grouped());
    for i in 0..100u32 {
        space.put(&i.to_be_bytes(), &value(u64::from(i), 100), Durability::Deferred).unwrap();
    }
    assert_eq!(space.iter(all()).count(), 100);
    fixture.store.sync().unwrap();
    space.put(b"last", b"", Durability::Deferred).unwrap();
    let fixture = fixture.reopen(small(), true);
    assert_eq!(fixture.space("a", grouped()).iter(all()).count(), 101);
}

#[test]
fn a_closed_store_answers_closed() {
    let fixture = Fixture::new(64 * MIB, small());
    let space = fixture.space("a", grouped());
    space.put(b"k", b"v", DEVICE).unwrap();
    fixture.store.close().unwrap();
    fixture.store.close().unwrap();
    assert!(matches!(space.put(b"k", b"v", DEVICE), Err(Error::Closed)));
    assert!(matches!(space.get(b"k"), Err(Error::Closed)));
}

#[test]
fn memory_stays_inside_the_budget() {
    let options = copal_kv::Options { memory_bytes: 4 * MIB, table_bytes: 256 << 10, ..small() };
    let fixture = Fixture::new(256 * MIB, options);
    let space = fixture.space("a", KeyspaceOptions::default());
    let mut random = Random::new(5);
    for i in 0..30_000u64 {
        space.put(&random.below(1 << 40).to_be_bytes(), &value(i, 300), Durability::Deferred).unwrap();
        if i % 64 == 0 {
            space.get(&random.below(1 << 40).to_be_bytes()).unwrap();
            let used = fixture.store.stats().memory_bytes;
            assert!(used <= 4 * MIB, "{used} bytes after {i} writes");
        }
    }
    let stats = fixture.store.stats();
    assert!(stats.flushes > 5 && stats.merges > 0, "{stats:?}");
    assert_sound(&fixture.store, true);
}
