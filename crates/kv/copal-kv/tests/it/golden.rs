//! A store with ingested tables, written by an older build (`tests/golden/README.md`).
//!
//! Entries of these tables store sequence 0; the manifest gives each table its actual sequence. So every read
//! and every merge here depends on that record.

use crate::{dump::everything, support::*};
use copal_device::{Image, MemoryDevice};
use copal_kv::{Keyspace, KeyspaceOptions, Options, Store};
use std::{collections::BTreeMap, path::Path, process::Command};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(group: u8, i: u64) -> Vec<u8> {
    [&[group][..], format!("{i:04}").as_bytes()].concat()
}

fn body(tag: u64, len: usize) -> Vec<u8> {
    value(tag, 16).into_iter().cycle().take(len).collect()
}

/// Sizes of inline, separated and direct values.
fn len(i: u64) -> usize {
    [40, 200, 700, 3500][(i % 4) as usize]
}

/// The contents that the build left.
fn content() -> Map {
    let mut map = Map::new();
    for i in 0..60 {
        map.insert(key(b'a', i), body(i, len(i)));
        map.insert(key(b'b', i), body(100 + i, len(i)));
    }
    map.retain(|found, _| !(key(b'b', 10)..key(b'b', 50)).contains(found));
    map.extend((20..200).step_by(2).map(|i| (key(b'a', i), body(1000 + i, len(i / 2)))));
    map.extend((20..40).map(|i| (key(b'b', i), body(1000 + i, len(i)))));
    map.extend((0..80).map(|i| (key(b'c', i), body(2000 + i, len(i)))));
    map.extend((30..40).map(|i| (key(b'a', i), body(3000 + i, len(i)))));
    map.remove(&key(b'a', 50));
    map.insert(key(b'c', 7), body(4007, 700));
    map.retain(|found, _| !(key(b'c', 60)..key(b'c', 70)).contains(found));
    map
}

fn unpacked() -> Image {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/ingested.copal.gz");
    let unpacked = Command::new("gzip").arg("-dc").arg(archive).output().expect("gzip");
    assert!(unpacked.status.success());
    let mut image = Image::zeroed(unpacked.stdout.len() as u64);
    image.write(0, &unpacked.stdout);
    image
}

/// Only requested merges run, so that the first reads meet the ingested tables.
fn options() -> Options {
    Options { table_bytes: 6 << 10, merge_for_reads: false, ..small() }
}

fn fixture() -> Fixture {
    let image = unpacked();
    let bytes = image.size();
    let device = MemoryDevice::from_image(image, bytes);
    let objects = open_objects(&device);
    let store = Store::open(objects.clone(), options()).unwrap();
    Fixture { device, objects, store }
}

fn space(fixture: &Fixture) -> Keyspace {
    fixture.store.open_keyspace("a").unwrap().expect("the build made it")
}

/// Number of tables that the manifest marks as ingested.
fn ingested(fixture: &Fixture) -> usize {
    let all = everything(&fixture.objects);
    let (_, manifest) = all.iter().find(|(id, _)| id.0 == 1).expect("the manifest is object 1");
    manifest.iter().filter(|item| item.kind == "ingested").count()
}

/// Every kind of read answers with `expected`.
fn assert_holds(space: &Keyspace, expected: &Map) {
    assert_eq!(pairs(space), expected.clone().into_iter().collect::<Vec<_>>());
    let backward: Vec<_> = space.iter(all()).rev().map(|item| item.unwrap().0).collect();
    assert!(backward.iter().eq(expected.keys().rev()));
    let heads: Vec<_> = space.iter(all()).heads().map(|item| item.unwrap().1).collect();
    assert!(heads.iter().eq(expected.values().map(|value| &value[..16])));
    let keys: Vec<Vec<u8>> = (0..200).flat_map(|i| [key(b'a', i), key(b'b', i), key(b'c', i)]).collect();
    for (key, found) in keys.iter().zip(space.multi_get(&keys)) {
        let value = expected.get(key).map(|value| &value[..]);
        assert_eq!(found.unwrap().as_deref(), value, "{key:?}");
        assert_eq!(space.get(key).unwrap().as_deref(), value, "{key:?}");
        assert_eq!(space.contains(key).unwrap(), value.is_some(), "{key:?}");
        let part = space.get_range(key, 10..30).unwrap();
        assert_eq!(part.as_deref(), value.map(|value| &value[10..30]), "{key:?}");
    }
}

#[test]
fn a_store_that_holds_ingested_tables_is_read_merged_and_written() {
    let mut expected = content();
    let mut fixture = fixture();
    assert_eq!(ingested(&fixture), 17);
    assert_eq!(space(&fixture).options(), &KeyspaceOptions { value_head_bytes: 16, ..grouped() });
    assert_holds(&space(&fixture), &expected);
    assert_sound(&fixture.store, true);
    // A session without merges keeps the record, even if it rewrites the manifest.
    fixture = fixture.reopen(options(), true);
    assert_holds(&space(&fixture), &expected);

    // Over ingested keys, in memory and in tables; a snapshot keeps its contents.
    let before = expected.clone();
    let snapshot = fixture.store.snapshot();
    let writes = space(&fixture);
    for i in (0..80).step_by(3) {
        writes.put(&key(b'c', i), &body(5000 + i, len(i + 1)), DEVICE).unwrap();
        expected.insert(key(b'c', i), body(5000 + i, len(i + 1)));
        writes.delete(&key(b'a', 100 + i), DEVICE).unwrap();
        expected.remove(&key(b'a', 100 + i));
    }
    for round in 0..3 {
        assert_holds(&writes, &expected);
        let seen: Map = snapshot
            .iter(&writes, all())
            .map(|item| item.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
            .collect();
        assert!(seen == before, "round {round}");
        match round {
            0 => fixture.store.flush().unwrap(),
            _ => writes.compact_range(all()).unwrap(),
        }
    }
    assert_sound(&fixture.store, true);
    drop((snapshot, writes));
    for properly in [true, false] {
        fixture = fixture.reopen(options(), properly);
        assert_holds(&space(&fixture), &expected);
        assert_sound(&fixture.store, true);
        space(&fixture).compact_range(all()).unwrap();
    }
    assert_holds(&space(&fixture), &expected);
    assert_sound(&fixture.store, true);
}

/// A merge without anything newer: ingested entries hide those of older runs, and a range tombstone from
/// before the ingest hides none of them.
#[test]
fn a_merge_keeps_ingested_entries_over_older_writes() {
    let expected = content();
    let mut fixture = fixture();
    space(&fixture).compact_range(all()).unwrap();
    assert_holds(&space(&fixture), &expected);
    assert_sound(&fixture.store, true);
    fixture = fixture.reopen(options(), true);
    assert_holds(&space(&fixture), &expected);
    assert_sound(&fixture.store, true);
}
