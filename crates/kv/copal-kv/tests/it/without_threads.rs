//! A store without threads: flushes and merges run inside the calls, and one seed gives one reproducible run.

use copal_device::{Device, fault::FaultDevice};
use copal_kv::{Durability, KeyspaceOptions, Options, Store};
use std::{ops::Bound, sync::Arc};

const KEYS: u32 = 20_000;

fn open(device: &Arc<dyn Device>) -> (copal_object::Store, Store) {
    let (objects, _) =
        copal_object::Store::open(Arc::clone(device), &copal_object::OpenOptions::default()).unwrap();
    let options = Options { memory_bytes: 4 << 20, threads: false, ..Options::default() };
    (objects.clone(), Store::open(objects, options).unwrap())
}

/// Fills several memtables, deletes every other key, reopens. Returns the number of device events, and counts
/// of flushes and merges.
fn run() -> (usize, u64, u64) {
    let fault = FaultDevice::new(64 << 20, 7);
    let device: Arc<dyn Device> = fault.clone();
    copal_object::Store::mkfs(&device, &copal_object::MkfsOptions::default()).unwrap();
    let (objects, store) = open(&device);
    let rows = store.keyspace("rows", KeyspaceOptions::default()).unwrap();
    let key = |number: u32| number.to_be_bytes();
    for number in 0..KEYS {
        let mut batch = store.batch();
        batch.put(&rows, &key(number), vec![number as u8; 100].into());
        match number % 3 {
            0 => batch.commit(Durability::Device).unwrap(),
            1 => batch.commit(Durability::Deferred).unwrap(),
            _ => batch.commit(Durability::Process).unwrap(),
        }
    }
    for number in (0..KEYS).step_by(2) {
        let mut batch = store.batch();
        batch.delete(&rows, &key(number));
        batch.commit(Durability::Deferred).unwrap();
    }
    store.flush().unwrap();
    rows.compact_range((Bound::Unbounded, Bound::Unbounded)).unwrap();
    assert!(store.scrub(1).unwrap().wait().unwrap().finished, "at any pace");
    let stats = store.stats();
    store.close().unwrap();
    objects.close().unwrap();
    let (_objects, store) = open(&device);
    let rows = store.keyspace("rows", KeyspaceOptions::default()).unwrap();
    for number in 0..KEYS {
        let found = rows.get(&key(number)).unwrap();
        let expected = (number % 2 == 1).then_some([number as u8; 100]);
        assert_eq!(found.as_deref(), expected.as_ref().map(|value| &value[..]), "{number}");
    }
    (fault.step(), stats.flushes, stats.merges)
}

#[test]
fn everything_is_done_in_the_calls_and_one_seed_is_one_run() {
    let (first, second) = (run(), run());
    assert!(first.1 > 3 && first.2 > 0, "{first:?}");
    assert_eq!(first, second);
}
