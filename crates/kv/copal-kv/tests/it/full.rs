//! A full store: clean refusals, deletes that work, nothing lost, and all space back after deletes.

use crate::support::*;
use copal_device::{
    Device, Image, MemoryDevice,
    fault::{CompletionOrder, Fault, FaultDevice, FaultOptions},
};
use copal_kv::{Error, KeyspaceOptions, Options, Store};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

fn fill(fixture: &Fixture, options: &KeyspaceOptions, len: usize) -> (copal_kv::Keyspace, u32) {
    let space = fixture.space("a", options.clone());
    let (mut stored, mut refused) = (0u32, 0);
    // Merges in the background take some space for a moment, and free some: a store is full only if it
    // refuses repeatedly.
    while refused < 20 {
        match space.put(&stored.to_be_bytes(), &value(u64::from(stored), len), PROCESS) {
            Ok(()) => (stored, refused) = (stored + 1, 0),
            Err(Error::NoSpace) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    (space, stored)
}

fn check(space: &copal_kv::Keyspace, stored: u32, len: usize) {
    assert_eq!(space.iter(all()).keys_only().count() as u32, stored);
    for i in (0..stored).step_by(7) {
        assert_eq!(space.get(&i.to_be_bytes()).unwrap().unwrap(), value(u64::from(i), len), "value {i}");
    }
}

#[test]
fn direct_values_fill_the_store_and_deleting_empties_it() {
    large_values_fill_the_store_and_deleting_empties_it(64 << 10);
}

/// Symptom: a store that had refused a value accepted one of the same size right after it. Cause: the refused
/// put had met a running flush, during which a value takes space in both the log and its value object. Fix: a
/// put is refused only when no running flush will free its log.
#[test]
fn large_values_from_the_log_fill_the_store_and_deleting_empties_it() {
    large_values_fill_the_store_and_deleting_empties_it(1 << 20);
}

fn large_values_fill_the_store_and_deleting_empties_it(direct_from_bytes: u32) {
    const LEN: usize = 700_000;
    let options = KeyspaceOptions { direct_from_bytes, ..KeyspaceOptions::default() };
    let mut fixture = Fixture::new(64 * MIB, small());
    let (mut space, mut stored) = fill(&fixture, &options, LEN);
    assert!(stored > 40, "only {stored} values fit");
    check(&space, stored, LEN);
    assert_sound(&fixture.store, false);
    for round in 0..3 {
        // Merges that find more dead by then may make room for a few more.
        let refused = (0..20).find_map(|_| space.put(b"more", &value(0, LEN), DEVICE).err());
        assert!(matches!(refused, Some(Error::NoSpace)), "{refused:?}");
        for i in 0..stored {
            space.delete(&i.to_be_bytes(), DEVICE).unwrap();
        }
        space.delete(b"more", DEVICE).unwrap();
        space.compact_range(all()).unwrap();
        assert_eq!(space.iter(all()).count(), 0);
        let (again, count) = fill(&fixture, &options, LEN);
        assert!(count + 3 >= stored, "{stored} values fitted first, {count} in round {round}");
        (space, stored) = (again, count);
        drop(space);
        fixture = fixture.reopen(small(), round % 2 == 0);
        space = fixture.space("a", options.clone());
        check(&space, stored, LEN);
        assert_sound(&fixture.store, false);
    }
}

#[test]
fn small_values_fill_the_store_and_deleting_empties_it() {
    const LEN: usize = 3000;
    let fixture = Fixture::new(64 * MIB, small());
    let (space, stored) = fill(&fixture, &KeyspaceOptions::default(), LEN);
    assert!(stored > 8000, "only {stored} values fit");
    check(&space, stored, LEN);
    let mut batch = fixture.store.batch();
    for i in 0..stored / 2 {
        batch.delete(&space, &i.to_be_bytes());
        if batch.len() == 500 {
            std::mem::replace(&mut batch, fixture.store.batch()).commit(DEVICE).unwrap();
        }
    }
    batch.commit(DEVICE).unwrap();
    assert_eq!(space.iter(all()).keys_only().count() as u32, stored - stored / 2);
    space.compact_range(all()).unwrap();
    space.purge_prefix(b"", DEVICE).unwrap();
    space.compact_range(all()).unwrap();
    let (_, again) = fill(&fixture, &KeyspaceOptions::default(), LEN);
    assert!(again + again / 10 >= stored, "{stored} values fitted first, {again} after");
    assert_sound(&fixture.store, false);
}

/// Symptom: no test would have noticed large writes that leave no space for small ones. A program that filled
/// a store with files could not record their state any more.
#[test]
fn a_store_that_large_writes_filled_takes_small_ones() {
    let options = Options { threads: false, ..small() };
    let fixture = Fixture::new(64 * MIB, options);
    let (space, _) = fill(&fixture, &KeyspaceOptions::default(), 70_000);
    let small = (0..400u32).take_while(|i| {
        let key = (i | 1 << 30).to_be_bytes();
        space.put(&key, &value(1, 700), DEVICE).is_ok()
    });
    let count = small.count();
    assert!(count >= 200, "{count} small ones fit");
}

#[test]
fn a_value_that_does_not_fit_leaves_no_trace() {
    let fixture = Fixture::new(64 * MIB, small());
    let space = fixture.space("a", KeyspaceOptions::default());
    space.put(b"small", b"1", DEVICE).unwrap();
    let before = fixture.live_bytes();
    for _ in 0..3 {
        let mut batch = fixture.store.batch();
        batch.put(&space, b"a", value(1, 1 << 20).into()).put(&space, b"b", value(2, 100 << 20).into());
        assert!(matches!(batch.commit(DEVICE), Err(Error::NoSpace)));
    }
    fixture.store.objects().commit(Default::default(), copal_object::Ack::Durable).wait().unwrap();
    assert!(fixture.live_bytes() <= before + 256 * 1024, "{} bytes more", fixture.live_bytes() - before);
    assert_eq!(pairs(&space).len(), 1);
    space.put(b"a", &value(3, 1 << 20), DEVICE).unwrap();
    assert_eq!(space.get(b"a").unwrap().unwrap(), value(3, 1 << 20));
    assert_sound(&fixture.store, true);
}

/// A group logs the deferred writes before it. If it finds no space, all of them wait for the next group, in
/// their order.
#[test]
fn a_value_that_does_not_fit_takes_no_deferred_writes_with_it() {
    let deferred = copal_kv::Durability::Deferred;
    let mut fixture = Fixture::new(64 * MIB, small());
    let space = fixture.space("a", KeyspaceOptions::default());
    for round in 0..3u32 {
        // Prepared before, so that the deferred writes are still waiting when it is tried.
        let mut large = fixture.store.batch();
        large.put(&space, b"large", value(2, 100 << 20).into());
        space.put(&round.to_be_bytes(), b"early", deferred).unwrap();
        assert!(matches!(large.commit(DEVICE), Err(Error::NoSpace)));
        space.put(&(100 + round).to_be_bytes(), b"late", deferred).unwrap();
    }
    fixture.store.sync().unwrap();
    drop(space);
    fixture = fixture.reopen(small(), true);
    let space = fixture.space("a", KeyspaceOptions::default());
    for round in 0..3u32 {
        assert_eq!(space.get(&round.to_be_bytes()).unwrap().as_deref(), Some(&b"early"[..]));
        assert_eq!(space.get(&(100 + round).to_be_bytes()).unwrap().as_deref(), Some(&b"late"[..]));
    }
    assert_eq!(pairs(&space).len(), 6);
    assert_sound(&fixture.store, true);
}

/// Puts stop at the reserve without touching it; everything that frees space still works, without reopening.
#[test]
fn puts_stop_at_the_reserve_and_operations_that_free_space_continue() {
    const LEN: usize = 3000;
    let mut fixture = Fixture::new(64 * MIB, small());
    let second = fixture.space("b", KeyspaceOptions::default());
    for i in 0..2000u32 {
        second.put(&i.to_be_bytes(), &value(u64::from(i), LEN), PROCESS).unwrap();
    }
    let (space, stored) = fill(&fixture, &KeyspaceOptions::default(), LEN);
    let is_reserved = |fixture: &Fixture| {
        let found = fixture.objects.space();
        // max(5 %, four tables), for tables of 64 KiB: reserved, or in use by a flush or a merge that will
        // return more than it took.
        let left = found.free_bytes + found.reserved_bytes + found.quarantine_bytes + found.staged_bytes;
        assert!(left >= found.size_bytes / 20, "{found:?}");
    };
    is_reserved(&fixture);
    // A merge in the background may free a little between two puts; no put ever answers anything else.
    let answers: Vec<_> = (0..50).map(|_| space.put(&7u32.to_be_bytes(), &value(7, LEN), DEVICE)).collect();
    assert!(answers.iter().all(|put| matches!(put, Ok(()) | Err(Error::NoSpace))), "{answers:?}");
    is_reserved(&fixture);
    // A batch that deletes and puts more than a little counts as a put, however small the delete. Its puts
    // use present keys, since merges may have made room for some new ones.
    let refused = (0..20).find_map(|_| {
        let mut batch = fixture.store.batch();
        batch.delete(&space, b"more");
        for i in 0..450u32 {
            batch.put(&space, &i.to_be_bytes(), value(u64::from(i), LEN).into());
        }
        batch.commit(DEVICE).err()
    });
    assert!(matches!(refused, Some(Error::NoSpace)), "{refused:?}");
    // Refusals poison nothing, and reading, checking and reopening need no space.
    check(&space, stored, LEN);
    assert_sound(&fixture.store, false);
    drop((space, second));
    fixture = fixture.reopen(small(), true);
    let space = fixture.space("a", KeyspaceOptions::default());
    is_reserved(&fixture);
    // Closing and opening may have freed some space; then the store is soon full again.
    let refused =
        (0..4000u32).find_map(|i| space.put(&(i | 1 << 30).to_be_bytes(), &value(1, LEN), PROCESS).err());
    assert!(matches!(refused, Some(Error::NoSpace)), "{refused:?}");
    // Deletes one by one, a purge, a dropped keyspace, flush and merge.
    for i in 0..500u32 {
        space.delete(&i.to_be_bytes(), DEVICE).unwrap();
    }
    fixture.store.flush().unwrap();
    fixture.store.drop_keyspace("b").unwrap();
    space.purge_prefix(&[0, 0, 16], DEVICE).unwrap();
    space.compact_range(all()).unwrap();
    is_reserved(&fixture);
    // Freed space takes puts again.
    for i in 0..1000u32 {
        space.put(&i.to_be_bytes(), &value(u64::from(i), LEN), PROCESS).unwrap();
    }
    assert_eq!(space.get(&500u32.to_be_bytes()).unwrap().unwrap(), value(500, LEN));
    assert_sound(&fixture.store, true);
}

/// Symptom: after a prune had given the file's free space back, nothing could be forgotten once the file
/// system had filled up. Cause: the reserve for deletes was complete or empty, and without it only deletes
/// succeed. Fix: if the whole is not available, a quarter of it is kept, and as much stays in the store.
#[test]
fn a_store_that_gave_its_space_back_to_a_host_that_is_full_goes_on_deleting() {
    let options = FaultOptions {
        order: CompletionOrder::Immediate,
        record: false,
        full_host: true,
        ..FaultOptions::default()
    };
    let device = FaultDevice::with_options(Image::zeroed(64 * MIB), options);
    let dynamic: Arc<dyn Device> = device.clone();
    format(&dynamic);
    let objects = open_objects(&dynamic);
    let store = Store::open(objects.clone(), small()).unwrap();
    let space = store.keyspace("a", KeyspaceOptions::default()).unwrap();
    let values = 0..300u32;
    for i in values.clone() {
        space.put(&i.to_be_bytes(), &value(i.into(), 700_000), PROCESS).unwrap();
    }
    values.clone().filter(|i| i % 3 != 0).for_each(|i| space.delete(&i.to_be_bytes(), PROCESS).unwrap());
    space.compact_range(all()).unwrap();
    store.close().unwrap();
    let shrunk = objects.shrink().unwrap();
    assert!(shrunk.cut_bytes + shrunk.hollow_bytes > 80 * MIB, "{shrunk:?}");
    objects.close().unwrap();
    drop((space, store, objects));
    (0..5000).for_each(|_| device.inject(Fault::Grow { skip: 0 }));
    let objects = open_objects(&dynamic);
    let store = Store::open(objects.clone(), small()).unwrap();
    let space = store.keyspace("a", KeyspaceOptions::default()).unwrap();
    space.put(b"a little", b"1", DEVICE).unwrap();
    let refused = (0..200u32)
        .find_map(|i| space.put(&(1000 + i).to_be_bytes(), &value(i.into(), 700_000), DEVICE).err());
    assert!(matches!(refused, Some(Error::NoSpace)), "{refused:?}");
    let before = objects.space().live_bytes;
    for i in values {
        space.delete(&i.to_be_bytes(), DEVICE).unwrap();
    }
    space.compact_range(all()).unwrap();
    assert!(objects.space().live_bytes + 40 * MIB < before);
    space.put(b"more", &value(1, 700_000), DEVICE).unwrap();
    assert_sound(&store, false);
    store.close().unwrap();
}

/// Writes values of `len` bytes with eight threads until each of them is refused; returns the stored keys.
fn fill_with_eight(space: &copal_kv::Keyspace, round: u32, len: usize) -> Vec<[u8; 12]> {
    std::thread::scope(|scope| {
        let writer = |thread: u32| {
            scope.spawn(move || {
                let key = |n: u32| -> [u8; 12] {
                    let mut key = [0; 12];
                    key[..4].copy_from_slice(&round.to_be_bytes());
                    key[4..8].copy_from_slice(&thread.to_be_bytes());
                    key[8..].copy_from_slice(&n.to_be_bytes());
                    key
                };
                let mut stored = Vec::new();
                for n in 0.. {
                    match space.put(&key(n), &value(u64::from(n), len), DEVICE) {
                        Ok(()) => stored.push(key(n)),
                        Err(Error::NoSpace) => break,
                        Err(other) => panic!("{other}"),
                    }
                }
                stored
            })
        };
        let writers: Vec<_> = (0..8).map(writer).collect();
        writers.into_iter().flat_map(|writer| writer.join().expect("a writer")).collect()
    })
}

/// Symptom: a full store stayed full when half of it was deleted: nothing was known to be dead until a merge
/// came by chance, and a full store begins none. After an opening it accepted nothing at all, since it kept a
/// larger reserve than the session before, and had filled the rest.
/// Cause: deletions waited in memory for writes that would flush them. The reserve was an eighth of the
/// store's size at its first opening. The space for the flush of the memtables was given to other writes.
/// Fix: a refused put starts all flushes and merges that free space. The reserve follows the size of the
/// store, and has a part for the memtables.
#[test]
fn space_of_deleted_data_in_a_full_store_returns_by_itself() {
    for len in [20_000, 1_000_000] {
        let device = MemoryDevice::from_image(Image::zeroed(64 * MIB), 96 * MIB);
        let dynamic: Arc<dyn Device> = device;
        format(&dynamic);
        let mut kept: Vec<[u8; 12]> = Vec::new();
        let mut counts = Vec::new();
        for round in 0..3u32 {
            let objects = open_objects(&dynamic);
            let store = Store::open(objects.clone(), Options::default()).unwrap();
            let space = store.keyspace("a", KeyspaceOptions::default()).unwrap();
            if let Some(key) = kept.pop() {
                // Essential writes still work, and so do deletes.
                let mut batch = store.batch();
                batch.put(&space, b"boot", round.to_be_bytes().to_vec().into());
                batch.essential();
                batch.commit(DEVICE).unwrap();
                space.delete(&key, DEVICE).unwrap();
            }
            let mut stored = kept.split_off(0);
            let count = stored.len();
            // Deleted space comes back while other writes are refused.
            let limit = Instant::now() + Duration::from_secs(60);
            let mut more = 0;
            while round == 0 && more == 0 || round > 0 && stored.len() < counts[0] * 3 / 4 {
                let new = fill_with_eight(&space, round << 16 | more, len);
                stored.extend(new);
                more += 1;
                assert!(
                    Instant::now() < limit,
                    "round {round}: {count} were left of {counts:?}, {} fit again; {:?} {:?}",
                    stored.len(),
                    objects.space(),
                    store.stats()
                );
            }
            counts.push(stored.len());
            assert!(stored.len() * len > 30 << 20, "only {} values fit", stored.len());
            for (at, key) in stored.into_iter().enumerate() {
                match at % 2 {
                    0 => space.delete(&key, DEVICE).unwrap(),
                    _ => kept.push(key),
                }
            }
            for key in kept.iter().step_by(17) {
                let n = u32::from_be_bytes(key[8..].try_into().unwrap());
                assert_eq!(space.get(key).unwrap().unwrap(), value(u64::from(n), len));
            }
            assert_sound(&store, false);
            if round == 0 {
                store.close().unwrap();
                objects.close().unwrap();
            }
        }
    }
}

/// Symptom: a store without a limit was under pressure whenever less than an eighth of its present size was
/// free. A store whose host was full counted as full only for a moment. Cause: pressure used the present size
/// or the limit, never the host.
/// Fix: a store that can grow is not under pressure. A store whose growth was refused is full until a growth
/// succeeds, which it retries on its own.
#[test]
fn a_store_is_full_while_its_host_refuses_growth() {
    const LEN: usize = 100_000;
    let device = FaultDevice::with_options(
        Image::zeroed(64 * MIB),
        FaultOptions {
            order: CompletionOrder::Immediate,
            record: false,
            // Not reached: stores grow by whole mebibytes.
            max_size: 96 * MIB + MIB / 2,
            ..FaultOptions::default()
        },
    );
    let dynamic: Arc<dyn Device> = device.clone();
    format(&dynamic);
    let objects = open_objects(&dynamic);
    let fixture = Fixture { device: dynamic, store: Store::open(objects.clone(), small()).unwrap(), objects };
    assert_eq!(fixture.store.room_bytes(), None);
    let (space, stored) = fill(&fixture, &KeyspaceOptions::default(), LEN);
    assert!(fixture.store.is_full());
    assert!(fixture.store.room_bytes().unwrap() < 8 * MIB);
    device.limit_growth(u64::MAX);
    let end = Instant::now() + Duration::from_secs(60);
    while fixture.store.is_full() || fixture.store.room_bytes().is_some() {
        assert!(Instant::now() < end, "{:?}", fixture.objects.room());
        std::thread::park_timeout(Duration::from_millis(10));
    }
    check(&space, stored, LEN);
    space.put(b"more", &value(0, LEN), PROCESS).unwrap();
}
