//! Group commit: many threads, one log.

use crate::support::*;
use copal_device::{
    Device, Image,
    fault::{CompletionOrder, FaultDevice, FaultOptions},
};
use copal_kv::{Durability, Store};
use std::sync::Arc;

#[test]
fn threads_that_write_at_once_lose_nothing_and_share_groups() {
    let fixture = Fixture::new(256 * MIB, small());
    let space = fixture.space("a", grouped());
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let space = space.clone();
            let store = fixture.store.clone();
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for i in 0..300u64 {
                    let key = [thread.to_be_bytes(), i.to_be_bytes()].concat();
                    let len = [20, 700, 5000][random.below(3) as usize];
                    let durability = [Durability::Device, Durability::Process, Durability::Deferred]
                        [random.below(3) as usize];
                    space.put(&key, &value(thread << 32 | i, len), durability).unwrap();
                    // An acknowledged write is visible to its writer at once.
                    assert_eq!(space.get(&key).unwrap().unwrap(), value(thread << 32 | i, len));
                    if i % 100 == 99 {
                        store.flush().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(space.iter(all()).count(), 8 * 300);
    let stats = fixture.store.stats();
    assert_eq!(stats.writes, 8 * 300);
    assert!(stats.groups <= stats.writes);
    drop(space);
    let fixture = fixture.reopen(small(), true);
    let space = fixture.space("a", grouped());
    for thread in 0..8u64 {
        let mut random = Random::new(thread);
        for i in 0..300u64 {
            let len = [20, 700, 5000][random.below(3) as usize];
            random.below(3);
            let key = [thread.to_be_bytes(), i.to_be_bytes()].concat();
            assert_eq!(space.get(&key).unwrap().unwrap(), value(thread << 32 | i, len));
        }
    }
    assert_sound(&fixture.store, true);
}

#[test]
fn readers_never_see_half_a_batch() {
    let fixture = Fixture::new(256 * MIB, small());
    let space = fixture.space("a", grouped());
    let keys: Vec<Vec<u8>> = (0..20u8).map(|i| vec![i]).collect();
    let write = |round: u64| {
        let mut batch = fixture.store.batch();
        for key in &keys {
            batch.put(&space, key, value(round, 900).into());
        }
        batch.commit(Durability::Process).unwrap();
    };
    write(0);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let snapshot = fixture.store.snapshot();
                    let first = snapshot.get(&space, &keys[0]).unwrap().unwrap();
                    let all: Vec<_> = snapshot.iter(&space, all()).map(Result::unwrap).collect();
                    assert_eq!(all.len(), keys.len());
                    assert!(all.iter().all(|(_, value)| *value == first));
                    let now: Vec<_> = space.iter(crate::support::all()).map(Result::unwrap).collect();
                    assert!(now.iter().all(|(_, value)| *value == now[0].1));
                }
            });
        }
        for round in 1..400 {
            write(round);
            if round % 50 == 0 {
                fixture.store.flush().unwrap();
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_sound(&fixture.store, true);
}

/// The object layer's promise holds here too: one small durable put is one durable write, and no further
/// flush.
#[test]
fn a_durable_put_costs_one_device_write_and_a_large_value_one_flush() {
    let options = FaultOptions {
        order: CompletionOrder::Immediate,
        max_size: 128 * MIB,
        record: false,
        ..Default::default()
    };
    let device: Arc<dyn Device> = FaultDevice::with_options(Image::zeroed(128 * MIB), options);
    format(&device);
    let store = Store::open(open_objects(&device), small()).unwrap();
    let space = store.keyspace("a", grouped()).unwrap();
    space.put(b"first", b"", DEVICE).unwrap();
    let before = device.counters();
    for i in 0..100u8 {
        space.put(&[i], &value(1, 200), DEVICE).unwrap();
    }
    let after = device.counters();
    let (writes, flushes) = (after.writes - before.writes, after.flushes - before.flushes);
    let durable = after.fua_writes - before.fua_writes + flushes;
    assert!(writes <= 104 && durable <= 104, "{writes} writes, {durable} flushes for 100 durable puts");
    let before = device.counters();
    for i in 0..20u8 {
        space.put(&[200, i], &value(1, 300_000), DEVICE).unwrap();
    }
    let after = device.counters();
    let durable = after.fua_writes - before.fua_writes + after.flushes - before.flushes;
    let bytes = after.write_bytes - before.write_bytes;
    assert!(bytes < 20 * (303_104 + 3 * 4096), "{bytes} bytes written for 20 values: written more than once");
    assert!(durable <= 2 * 20 + 4, "{durable} flushes for 20 durable large values");
}

/// Closing during writes: every acknowledged write is found later, including deferred ones.
///
/// A deferred write could be accepted between the last sync and the end of the worker, and was then never
/// logged: the closed flag was checked only before the queue. Now the last sync seals the writer.
#[test]
fn closing_while_others_write_loses_nothing_that_was_acknowledged() {
    let mut fixture = Fixture::new(256 * MIB, small());
    let mut expected = 0u64;
    for round in 0..30u64 {
        let space = fixture.space("a", grouped());
        let store = fixture.store.clone();
        let acknowledged: Vec<u64> = std::thread::scope(|scope| {
            let (started, starts) = std::sync::mpsc::channel();
            let writers: Vec<_> = (0..4u64)
                .map(|thread| {
                    let (space, store, started) = (space.clone(), store.clone(), started.clone());
                    scope.spawn(move || {
                        let mut count = 0u64;
                        loop {
                            let key =
                                [round.to_be_bytes(), thread.to_be_bytes(), count.to_be_bytes()].concat();
                            let mut batch = store.batch();
                            batch.put(&space, &key, value(count, 30).into());
                            let written = match thread {
                                1 => batch.commit(PROCESS),
                                _ => batch.commit(Durability::Deferred),
                            };
                            match written {
                                Ok(()) => count += 1,
                                Err(copal_kv::Error::Closed) => return count,
                                Err(other) => panic!("{other}"),
                            }
                            if count == 20 {
                                started.send(()).unwrap();
                            }
                        }
                    })
                })
                .collect();
            starts.recv().unwrap();
            store.close().unwrap();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        drop((space, store));
        fixture = fixture.reopen(small(), false);
        let space = fixture.space("a", grouped());
        for (thread, count) in acknowledged.iter().enumerate() {
            let prefix = [round.to_be_bytes(), (thread as u64).to_be_bytes()].concat();
            assert_eq!(space.prefix(&prefix).count() as u64, *count, "round {round}, thread {thread}");
        }
        expected += acknowledged.iter().sum::<u64>();
    }
    assert_eq!(fixture.space("a", grouped()).iter(all()).count() as u64, expected);
    assert_sound(&fixture.store, true);
}
