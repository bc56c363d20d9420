//! A damaged key range is reported, left out by merges, and restored by repair or purge; the rest keeps
//! working.

use crate::support::*;
use bytes::Bytes;
use copal_device::{
    Device, Image, MemoryDevice,
    fault::{CompletionOrder, Fault, FaultDevice, FaultOptions},
};
use copal_kv::{DamagedRange, Error, Keyspace, KeyspaceOptions, Options, Store};
use copal_object::{Ack, ObjectId, Txn};
use std::{
    collections::BTreeMap,
    ops::Bound::{self, Excluded, Included, Unbounded},
    sync::Arc,
};

const SIZE: u64 = 64 * MIB;

fn key(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

/// Inline values whose bytes can be found in the image.
fn inline(i: u64) -> Vec<u8> {
    value(i, 100)
}

/// A store of `keys` inline values, all in one bottom table of several partitions, cleanly closed.
fn stored(keys: u64, options: &Options) -> Image {
    let (recorder, device) = recorder();
    let store = Store::open(open_objects(&device), options.clone()).unwrap();
    let space = store.keyspace("a", KeyspaceOptions::default()).unwrap();
    for i in 0..keys {
        space.put(&key(i), &inline(i), PROCESS).unwrap();
    }
    space.compact_range(all()).unwrap();
    store.close().unwrap();
    store.objects().close().unwrap();
    recorder.image()
}

fn recorder() -> (Arc<FaultDevice>, Arc<dyn Device>) {
    let options = FaultOptions {
        order: CompletionOrder::Immediate,
        max_size: SIZE,
        record: false,
        ..FaultOptions::default()
    };
    let device = FaultDevice::with_options(Image::zeroed(SIZE), options);
    let dynamic: Arc<dyn Device> = device.clone();
    format(&dynamic);
    (device, dynamic)
}

/// All offsets of `needle`.
fn places(image: &Image, needle: &[u8]) -> Vec<u64> {
    const STEP: usize = 1 << 20;
    let mut found = Vec::new();
    let mut window = vec![0; STEP + needle.len()];
    for at in (0..image.size()).step_by(STEP) {
        window.fill(0);
        let len = window.len().min((image.size() - at) as usize);
        image.read(at, &mut window[..len]);
        let mut from = 0;
        while let Some(next) = window[from..].iter().position(|byte| *byte == needle[0]) {
            let here = from + next;
            if here >= STEP {
                break;
            }
            if window[here..].starts_with(needle) {
                found.push(at + here as u64);
            }
            from = here + 1;
        }
    }
    found
}

/// Flips a bit of every copy of `needle`.
fn damage(image: &mut Image, needle: &[u8]) {
    let places = places(image, needle);
    assert!(!places.is_empty(), "the bytes are in the image");
    for at in places {
        let mut byte = [0];
        image.read(at, &mut byte);
        image.write(at, &[byte[0] ^ 4]);
    }
}

fn open(image: Image, options: &Options) -> (Store, Keyspace) {
    let device = MemoryDevice::from_image(image, SIZE);
    let store = Store::open(open_objects(&device), options.clone()).unwrap();
    let space = store.keyspace("a", KeyspaceOptions::default()).unwrap();
    (store, space)
}

fn big_tables() -> Options {
    Options { table_bytes: 4 * MIB, ..small() }
}

/// Checks every key against the model; returns the keys that answered `Corrupt`.
fn corrupt_keys(space: &Keyspace, model: &BTreeMap<u64, Vec<u8>>, keys: u64) -> Vec<u64> {
    let mut corrupt = Vec::new();
    for i in 0..keys {
        match space.get(&key(i)) {
            Ok(found) => assert_eq!(found.as_deref(), model.get(&i).map(Vec::as_slice), "key {i}"),
            Err(error) => {
                assert!(error.is_corruption(), "{error}");
                corrupt.push(i);
            }
        }
    }
    corrupt
}

fn bounds(range: &DamagedRange) -> (Bound<&[u8]>, Bound<&[u8]>) {
    let end = range.end.as_ref().map_or(Unbounded, |end| Excluded(&end[..]));
    (Included(&range.start[..]), end)
}

/// The first number whose key is not below the bound: a bound may be any bytes, not always an existing key.
fn number(bound: &Bytes) -> u64 {
    let mut head = [0; 8];
    let len = bound.len().min(8);
    head[..len].copy_from_slice(&bound[..len]);
    u64::from_be_bytes(head) + u64::from(bound.len() > 8)
}

#[test]
fn a_damaged_block_sets_its_partition_apart_and_nothing_else() {
    const KEYS: u64 = 9000;
    let options = big_tables();
    let mut image = stored(KEYS, &options);
    damage(&mut image, &inline(5000)[..24]);
    let (store, space) = open(image, &options);
    let mut model: BTreeMap<u64, Vec<u8>> = (0..KEYS).map(|i| (i, inline(i))).collect();
    assert!(store.damaged_ranges().is_empty(), "nothing was read yet");
    let corrupt = corrupt_keys(&space, &model, KEYS);
    assert!(corrupt.contains(&5000) && corrupt.len() < 60, "{corrupt:?}");
    let ranges = store.damaged_ranges();
    assert_eq!(ranges.len(), 1, "{ranges:?}");
    let DamagedRange { keyspace, start, end, .. } = ranges[0].clone();
    let (first, behind) = (number(&start), number(&end.unwrap()));
    assert_eq!(keyspace, "a");
    assert!(first <= 5000 && 5000 < behind && behind - first < 2100, "{first} to {behind}");

    // Iterators in both directions: all items before the damage, then the error, then the end.
    let mut ahead = space.iter(all());
    let mut seen = 0;
    let failed = loop {
        match ahead.next().expect("it does not end before the damage is told") {
            Ok((found, bytes)) => {
                assert_eq!((number(&found), &bytes[..]), (seen, &inline(seen)[..]));
                seen += 1;
            }
            Err(error) => break error,
        }
    };
    assert!(failed.is_corruption() && ahead.next().is_none());
    assert_eq!(seen, corrupt[0]);
    let mut back = space.iter(all()).rev();
    let mut seen = KEYS;
    let failed = loop {
        match back.next().expect("it does not end before the damage is told") {
            Ok((found, bytes)) => {
                seen -= 1;
                assert_eq!((number(&found), &bytes[..]), (seen, &inline(seen)[..]));
            }
            Err(error) => break error,
        }
    };
    assert!(failed.is_corruption() && back.next().is_none());
    // Backward, a key's newest version comes last and could be in the damaged block.
    assert!(seen - corrupt[corrupt.len() - 1] <= 2, "{seen}");
    assert_eq!(space.iter((Unbounded, Excluded(&key(first)[..]))).count() as u64, first);

    // Writes, flushes and merges still work, over the damaged range too.
    for round in 1..9u64 {
        for i in (round..KEYS).step_by(9) {
            if i % 3 == round % 3 {
                space.delete(&key(i), PROCESS).unwrap();
                model.remove(&i);
            } else {
                let new = value(round << 32 | i, 100);
                space.put(&key(i), &new, PROCESS).unwrap();
                model.insert(i, new);
            }
        }
        store.flush().unwrap();
        if round % 4 == 0 {
            space.compact_range(all()).unwrap();
        }
    }
    let now = corrupt_keys(&space, &model, KEYS);
    assert!(now.iter().all(|i| corrupt.contains(i)), "{now:?}");
    assert!(
        !now.is_empty() && now.iter().all(|i| model.get(i) == Some(&inline(*i))),
        "never overwritten: {now:?}"
    );
    let report = store.verify(true).unwrap();
    assert!(!report.is_sound());
    assert!(report.problems.iter().all(|problem| problem.contains("damaged")), "{:#?}", report.problems);

    // After reopening, the damage is found again, and nothing else is lost.
    let store = reopen(store, space, &options);
    let space = store.open_keyspace("a").unwrap().unwrap();
    assert_eq!(corrupt_keys(&space, &model, KEYS), now);
    let ranges = store.damaged_ranges();
    assert_eq!(ranges.len(), 1);

    // After refilling from a replica everything is there, and the next check is clean.
    let replica: Vec<_> = model
        .range(first..behind)
        .map(|(i, value)| Ok((Bytes::copy_from_slice(&key(*i)), Bytes::from(value.clone()))))
        .collect();
    let entries = replica.len() as u64;
    let report = space.repair(bounds(&ranges[0]), replica).unwrap();
    assert_eq!(report.entries, entries);
    assert_eq!(corrupt_keys(&space, &model, KEYS), Vec::<u64>::new());
    assert_eq!(store.damaged_ranges(), Vec::new());
    assert_sound(&store, true);
    assert_eq!(pairs(&space).len(), model.len());
}

fn reopen(store: Store, space: Keyspace, options: &Options) -> Store {
    let objects = store.objects().clone();
    store.close().unwrap();
    drop((store, space));
    Store::open(objects, options.clone()).unwrap()
}

#[test]
fn a_merge_that_meets_damage_first_skips_it() {
    const KEYS: u64 = 9000;
    let options = big_tables();
    let mut image = stored(KEYS, &options);
    damage(&mut image, &inline(5000)[..24]);
    let (store, space) = open(image, &options);
    // Nothing has read the damaged block; a merge over everything is the first to.
    let mut model: BTreeMap<u64, Vec<u8>> = (0..KEYS).map(|i| (i, inline(i))).collect();
    for i in (0..KEYS).step_by(3) {
        space.put(&key(i), b"newer", PROCESS).unwrap();
        model.insert(i, b"newer".to_vec());
    }
    space.compact_range(all()).unwrap();
    assert_eq!(store.damaged_ranges().len(), 1);
    let corrupt = corrupt_keys(&space, &model, KEYS);
    assert!(!corrupt.is_empty() && corrupt.len() < 60, "{corrupt:?}");
    assert!(corrupt.iter().all(|i| i % 3 != 0), "what is newer answers: {corrupt:?}");
}

#[test]
fn a_purge_gives_a_damaged_range_free() {
    const KEYS: u64 = 3000;
    let options = big_tables();
    let mut image = stored(KEYS, &options);
    damage(&mut image, &inline(100)[..24]);
    let (store, space) = open(image, &options);
    assert!(space.get(&key(100)).unwrap_err().is_corruption());
    assert_eq!(store.damaged_ranges().len(), 1);
    // An older snapshot still sees the damage, never a gap.
    let snapshot = store.snapshot();
    space.purge_prefix(&[], DEVICE).unwrap();
    assert_eq!(space.get(&key(100)).unwrap(), None);
    store.flush().unwrap();
    assert!(snapshot.get(&space, &key(100)).unwrap_err().is_corruption());
    drop(snapshot);
    space.compact_range(all()).unwrap();
    assert_eq!(store.damaged_ranges(), Vec::new());
    assert_sound(&store, true);
    assert_eq!(pairs(&space).len(), 0);
    space.put(&key(100), b"again", DEVICE).unwrap();
    assert_eq!(space.get(&key(100)).unwrap().unwrap(), &b"again"[..]);
}

#[test]
fn a_table_that_cannot_be_opened_costs_its_range_and_not_the_store() {
    const KEYS: u64 = 3000;
    // Small tables: one of several is hit.
    let image = stored(KEYS, &small());
    let model: BTreeMap<u64, Vec<u8>> = (0..KEYS).map(|i| (i, inline(i))).collect();
    let footers = places(&image, b"COPALTBL");
    assert!(footers.len() >= 6, "{footers:?}");
    let mut told = 0;
    for pair in footers.chunks(2).filter(|pair| pair[1] == pair[0] + 512) {
        let mut image = image.clone();
        for footer in pair {
            image.write(footer + 40, b"!");
        }
        let (store, space) = open(image, &small());
        let corrupt = corrupt_keys(&space, &model, KEYS);
        if corrupt.is_empty() {
            continue; // A table from before the merge, in free space.
        }
        told += 1;
        assert!(corrupt.len() < KEYS as usize / 2, "only one table is lost");
        assert_eq!(corrupt[corrupt.len() - 1] - corrupt[0] + 1, corrupt.len() as u64, "its whole range is");
        let ranges = store.damaged_ranges();
        assert_eq!(ranges.len(), 1, "{ranges:?}");
        assert!(ranges[0].what.contains("footers"), "{}", ranges[0].what);
        assert!(!store.verify(false).unwrap().is_sound());
        // A key that may be present is never absent, also below newer entries and tombstones.
        let inside = corrupt[corrupt.len() / 2];
        space.put(&key(inside), b"new", DEVICE).unwrap();
        space.delete(&key(inside + 1), DEVICE).unwrap();
        space.compact_range(all()).unwrap();
        assert_eq!(space.get(&key(inside)).unwrap().unwrap(), &b"new"[..]);
        assert_eq!(space.get(&key(inside + 1)).unwrap(), None);
        assert!(space.get(&key(inside + 2)).unwrap_err().is_corruption());
        assert!(space.get(&[&key(inside)[..], b"between"].concat()).unwrap_err().is_corruption());
        let replica = corrupt.iter().map(|i| Ok((Bytes::copy_from_slice(&key(*i)), Bytes::from(inline(*i)))));
        space.repair(bounds(&ranges[0]), replica).unwrap();
        assert_eq!(corrupt_keys(&space, &model, KEYS), Vec::<u64>::new());
        assert_sound(&store, true);
    }
    assert!(told >= 3, "{told} tables were hit");
}

#[test]
fn a_table_that_is_missing_is_damage_too() {
    let device = MemoryDevice::from_image(stored(3000, &small()), SIZE);
    let objects = open_objects(&device);
    let tables = objects.list(ObjectId(0), 100);
    let table = tables.iter().find(|stat| stat.label.starts_with(b"kv table")).unwrap().id;
    objects.commit(Txn::new().delete(table), Ack::Durable).wait().unwrap();
    let store = Store::open(objects, small()).unwrap();
    let space = store.open_keyspace("a").unwrap().unwrap();
    let model: BTreeMap<u64, Vec<u8>> = (0..3000).map(|i| (i, inline(i))).collect();
    let corrupt = corrupt_keys(&space, &model, 3000);
    assert!(!corrupt.is_empty() && corrupt.len() < 3000);
    let ranges = store.damaged_ranges();
    assert_eq!((ranges.len(), ranges[0].object), (1, table.0));
    let replica = corrupt.iter().map(|i| Ok((Bytes::copy_from_slice(&key(*i)), Bytes::from(inline(*i)))));
    space.repair(bounds(&ranges[0]), replica).unwrap();
    assert_eq!(corrupt_keys(&space, &model, 3000), Vec::<u64>::new());
    assert_sound(&store, true);
}

#[test]
fn a_repair_that_fails_half_way_hides_nothing() {
    let options = big_tables();
    let mut image = stored(3000, &options);
    damage(&mut image, &inline(1000)[..24]);
    let (store, space) = open(image, &options);
    let model: BTreeMap<u64, Vec<u8>> = (0..3000).map(|i| (i, inline(i))).collect();
    let corrupt = corrupt_keys(&space, &model, 3000);
    let feed = |keys: Vec<u64>| {
        keys.into_iter().map(|i| Ok((Bytes::copy_from_slice(&key(i)), Bytes::from(inline(i)))))
    };
    // Out of order, outside the range, an iterator that fails: nothing of the stretch changes.
    let range = (Included(&key(900)[..]), Excluded(&key(1100)[..]));
    for keys in [vec![950, 949], vec![950, 950], vec![899], vec![1100]] {
        assert!(matches!(space.repair(range, feed(keys)), Err(Error::NotInRange { .. })));
    }
    let broken = feed((900..1050).collect()).chain([Err(Error::Closed)]);
    assert!(matches!(space.repair(range, broken), Err(Error::Closed)));
    assert_eq!(corrupt_keys(&space, &model, 3000), corrupt);
    // A smaller range than the damaged partition: the repaired keys are right, the others still report
    // damage.
    space.repair(range, feed((900..1100).collect())).unwrap();
    assert_eq!(corrupt_keys(&space, &model, 3000), Vec::<u64>::new());
    // All of it only now.
    space.repair(all(), feed((0..3000).collect())).unwrap();
    assert_eq!(store.damaged_ranges(), Vec::new());
    assert_sound(&store, true);
}

#[test]
fn a_damaged_separated_value_is_one_key_and_its_neighbours_move_on() {
    let (recorder, device) = recorder();
    let store = Store::open(open_objects(&device), small()).unwrap();
    let space = store.keyspace("v", grouped()).unwrap();
    let content = |i: u64| value(i, [800, 5000][(i % 2) as usize]);
    for i in 0..200 {
        space.put(&key(i), &content(i), PROCESS).unwrap();
    }
    space.compact_range(all()).unwrap();
    store.close().unwrap();
    store.objects().close().unwrap();
    drop((space, store));
    let mut image = recorder.image();
    damage(&mut image, &content(20)[..24]);
    damage(&mut image, &content(21)[..24]);
    let device = MemoryDevice::from_image(image, SIZE);
    let store = Store::open(open_objects(&device), small()).unwrap();
    let space = store.open_keyspace("v").unwrap().unwrap();
    let progress = store.scrub(u64::MAX).unwrap().wait().unwrap();
    assert!(progress.finished && progress.damaged.len() == 2, "{progress:?}");
    assert_eq!(progress.values, 198);
    let ranges = store.damaged_ranges();
    let starts: Vec<u64> = ranges.iter().map(|range| number(&range.start)).collect();
    assert_eq!(starts, [20, 21]);
    // Most values die, so the rest is moved together; the damaged one stays and is reported.
    for i in (0..200).filter(|i| i % 4 != 0) {
        space.delete(&key(i), PROCESS).unwrap();
    }
    space.compact_range(all()).unwrap();
    for i in (0..200).step_by(4) {
        match space.get(&key(i)) {
            Ok(found) => assert_eq!(found.unwrap(), content(i)),
            Err(error) => assert!(i == 20 && error.is_corruption(), "{i}: {error}"),
        }
    }
    let ranges = store.damaged_ranges();
    assert_eq!(ranges.len(), 1, "21 was deleted: {ranges:?}");
    let entry = Ok((Bytes::copy_from_slice(&key(20)), Bytes::from(content(20))));
    space.repair(bounds(&ranges[0]), [entry]).unwrap();
    assert_eq!(space.get(&key(20)).unwrap().unwrap(), content(20));
    assert_eq!(store.damaged_ranges(), Vec::new());
    assert_sound(&store, true);
}

#[test]
fn values_behind_a_dropped_range_leave_no_bytes_without_owner() {
    let (recorder, device) = recorder();
    let options = big_tables();
    let store = Store::open(open_objects(&device), options.clone()).unwrap();
    // One group, so that values of the damaged range and of others share objects.
    let shared = KeyspaceOptions { group_prefix_len: 0, ..grouped() };
    let space = store.keyspace("v", shared).unwrap();
    let content = |i: u64| value(i, [100, 700, 5000][(i % 3) as usize]);
    for i in 0..3000 {
        space.put(&key(i), &content(i), PROCESS).unwrap();
    }
    space.compact_range(all()).unwrap();
    store.close().unwrap();
    store.objects().close().unwrap();
    drop((space, store));
    let mut image = recorder.image();
    damage(&mut image, &content(600)[..24]);
    let device = MemoryDevice::from_image(image, SIZE);
    let store = Store::open(open_objects(&device), options).unwrap();
    let space = store.open_keyspace("v").unwrap().unwrap();
    assert!(space.get(&key(600)).unwrap_err().is_corruption());
    let ranges = store.damaged_ranges();
    let behind = ranges[0].end.as_ref().map_or(3000, number);
    let first = if ranges[0].start.is_empty() { 0 } else { number(&ranges[0].start) };
    assert!(first <= 600 && 600 < behind && behind < 3000);
    let replica = (first..behind).map(|i| Ok((Bytes::copy_from_slice(&key(i)), Bytes::from(content(i)))));
    space.repair(bounds(&ranges[0]), replica).unwrap();
    assert_sound(&store, true);
    for i in 0..3000 {
        assert_eq!(space.get(&key(i)).unwrap().unwrap(), content(i));
    }
    // A purge of everything returns all space: no bytes are left without an owner.
    space.purge_prefix(&[], DEVICE).unwrap();
    space.compact_range(all()).unwrap();
    assert_sound(&store, true);
    let values = store.objects().list(ObjectId(0), 1000);
    let held: u64 = values
        .iter()
        .filter(|stat| stat.label.starts_with(b"kv value"))
        .map(|stat| stat.allocated_bytes)
        .sum();
    assert!(held < MIB, "{held} bytes of value objects are left");
}

#[test]
fn a_scrub_finds_damage_that_no_read_met_and_can_be_cancelled() {
    let options = big_tables();
    let mut image = stored(9000, &options);
    damage(&mut image, &inline(5000)[..24]);
    let (store, space) = open(image, &options);
    let progress = store.scrub(u64::MAX).unwrap().wait().unwrap();
    assert!(progress.finished);
    assert!(progress.total_bytes > 900_000, "{progress:?}");
    // Only the table with the damage is read again, by its own checksums.
    assert!((1..4).contains(&progress.partitions), "{progress:?}");
    assert_eq!(progress.done_bytes, progress.total_bytes);
    assert_eq!(progress.damaged.len(), 1, "{progress:?}");
    assert_eq!(store.damaged_ranges().len(), 1);
    // A byte per second would take weeks; a cancel ends it, and so does closing the store.
    let scrub = store.scrub(1).unwrap();
    scrub.cancel();
    assert!(!scrub.wait().unwrap().finished);
    let scrub = store.scrub(1).unwrap();
    drop(space);
    store.close().unwrap();
    assert!(!scrub.wait().unwrap().finished);
    assert!(matches!(store.scrub(1), Err(Error::Closed)));
}

/// Symptom: after an interrupted scrub, the engine numbered its next objects near the end of all ids.
/// Cause: the object with the scrub's place was taken for the highest one.
/// Fix: the engine leaves it out.
#[test]
fn the_place_of_an_interrupted_scrub_is_no_object_of_the_engine() {
    let options = big_tables();
    let (store, space) = open(stored(3000, &options), &options);
    let mut scrub = store.objects().scrub();
    scrub.step(&mut |damage| panic!("{damage}")).unwrap();
    scrub.keep_place();
    store.close().unwrap();
    let objects = store.objects().clone();
    drop((scrub, space, store));
    assert!(objects.stat(copal_object::SCRUB_PLACE_ID).is_some());
    let store = Store::open(objects, options).unwrap();
    let space = store.keyspace("a", KeyspaceOptions::default()).unwrap();
    (0..3000).for_each(|i| space.put(&key(i), &inline(i), PROCESS).unwrap());
    space.compact_range(all()).unwrap();
    let ids = store.objects().list(ObjectId(0), 1000).into_iter().map(|stat| stat.id);
    assert!(ids.filter(|id| *id != copal_object::SCRUB_PLACE_ID).all(|id| id.0 < 1 << 20));
    assert_sound(&store, true);
    // The scrub of the engine goes on there, and removes the place.
    assert!(store.scrub(u64::MAX).unwrap().wait().unwrap().finished);
    assert!(store.objects().stat(copal_object::SCRUB_PLACE_ID).is_none());
}

/// Symptom: a salvage deleted rows that look-ups could read, because they were newer than the lost table or
/// in the same partition as the damaged block.
/// Cause: it kept only rows that an iterator from either end reached before the first damage, and treated any
/// error as damage.
/// Fix: every key that exists anywhere in the range is looked up, and kept if it answers.
#[test]
fn a_salvage_keeps_every_row_that_answers() {
    const KEYS: u64 = 3000;
    let image = stored(KEYS, &small());
    let model: BTreeMap<u64, Vec<u8>> = (0..KEYS).map(|i| (i, inline(i))).collect();
    // Blocks of one partition, with intact blocks between them; then whole tables.
    let mut blocks = image.clone();
    for i in [700, 900, 901, 1100] {
        damage(&mut blocks, &inline(i));
    }
    let places = places(&image, b"COPALTBL");
    let footers = places.chunks(2).filter(|pair| pair[1] == pair[0] + 512);
    let without_table = footers.map(|pair| {
        let mut image = image.clone();
        pair.iter().for_each(|footer| image.write(footer + 40, b"!"));
        image
    });
    let mut salvaged = 0;
    for image in std::iter::once(blocks).chain(without_table) {
        let (store, space) = open(image, &small());
        let corrupt = corrupt_keys(&space, &model, KEYS);
        let Some(inside) = corrupt.get(corrupt.len() / 2).copied() else {
            continue;
        };
        space.put(&key(inside), b"new", DEVICE).unwrap();
        store.flush().unwrap();
        space.put(&key(inside + 1), b"newer", DEVICE).unwrap();
        let before: Vec<_> = (0..KEYS).map(|i| space.get(&key(i))).collect();
        for range in store.damaged_ranges() {
            space.salvage(bounds(&range)).unwrap();
        }
        for (i, before) in before.into_iter().enumerate() {
            let after = space.get(&key(i as u64)).unwrap();
            match before {
                Ok(before) => assert_eq!(after, before, "{i}"),
                Err(_) => assert_eq!(after, None, "{i}"),
            }
        }
        assert!(store.damaged_ranges().is_empty());
        assert_sound(&store, true);
        salvaged += 1;
    }
    assert!(salvaged > 1, "no table was hit");
}

/// Symptom: rows that a device temporarily could not read were lost.
/// Cause: a salvage treated any failed read of a row as damage, and wrote before it had read everything.
/// Fix: everything is read once before anything is changed, and only damage counts as damage.
#[test]
fn a_salvage_changes_nothing_while_the_device_errs() {
    const KEYS: u64 = 3000;
    let mut image = stored(KEYS, &small());
    for i in [700, 2900] {
        damage(&mut image, &inline(i));
    }
    let model: BTreeMap<u64, Vec<u8>> = (0..KEYS).map(|i| (i, inline(i))).collect();
    // Far after the first damage, so that the part before it would already be rewritten.
    let unreadable = places(&image, &inline(2500));
    let options = FaultOptions {
        order: CompletionOrder::Immediate,
        max_size: SIZE,
        record: false,
        ..FaultOptions::default()
    };
    let faulty = FaultDevice::with_options(image, options);
    let device: Arc<dyn Device> = faulty.clone();
    let store = Store::open(open_objects(&device), small()).unwrap();
    let space = store.keyspace("a", KeyspaceOptions::default()).unwrap();
    let corrupt = corrupt_keys(&space, &model, KEYS);
    assert!(corrupt.contains(&700) && corrupt.contains(&2900), "{corrupt:?}");
    let damaged = store.damaged_ranges();
    for at in unreadable {
        let (at, len) = (at / 4096 * 4096, 4096);
        faulty.inject(Fault::ReadError { at, len });
    }
    let failed = space.salvage(all()).unwrap_err();
    assert!(!failed.is_corruption(), "{failed}");
    faulty.heal();
    assert_eq!(corrupt_keys(&space, &model, KEYS), corrupt, "what was damaged still is");
    assert_eq!(store.damaged_ranges(), damaged);
    // After the device reads again.
    let report = space.salvage(all()).unwrap();
    assert_eq!(report.entries, KEYS - corrupt.len() as u64);
    for i in 0..KEYS {
        let found = space.get(&key(i)).unwrap();
        let kept = !corrupt.contains(&i);
        assert_eq!(found, kept.then(|| inline(i).into()), "{i}");
    }
    assert!(store.damaged_ranges().is_empty());
    assert_sound(&store, true);
}
