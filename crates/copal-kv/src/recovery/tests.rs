//! Opening a store whose logs are more than its budget has room for: they become tables while it is opened.
//!
//! Invariants
//! - Nothing is lost, nothing comes back and no object is left without an owner, wherever such an opening is cut short;
//!   the next one goes on.
//! - A store that is only read refuses what it has no room for.

use crate::support::*;
use bytes::Bytes;
use copal_device::{
    Device, Image,
    crash::{self, Limits},
    fault::{FaultDevice, FaultOptions},
};
use copal_kv::{Error, Keyspace, Options, Store};
use std::{collections::BTreeMap, sync::Arc};

const SIZE: u64 = 64 * MIB;

/// The load's budget: one memtable holds all of it.
fn large() -> Options {
    Options {
        memory_bytes: 64 * MIB,
        ..options()
    }
}

/// The budget it is opened with: its logs are eight of these memtables.
fn options() -> Options {
    Options {
        memory_bytes: 4 * MIB,
        table_bytes: 256 << 10,
        ..Options::default()
    }
}

fn fault(image: Image, record: bool) -> Arc<FaultDevice> {
    let options = FaultOptions {
        max_size: SIZE,
        record,
        ..FaultOptions::default()
    };
    FaultDevice::with_options(image, options)
}

fn space(store: &Store) -> Keyspace {
    store.keyspace("a", grouped()).unwrap()
}

/// A killed store with all kinds of operations in two logs, and what it holds.
fn loaded() -> (Image, BTreeMap<Vec<u8>, Vec<u8>>) {
    let device = fault(Image::zeroed(SIZE), false);
    let dynamic: Arc<dyn Device> = device.clone();
    format(&dynamic);
    let store = Store::open(open_objects(&dynamic), large()).unwrap();
    let space = space(&store);
    let mut content = BTreeMap::new();
    let key = |number: u64| [&b"xyz"[(number % 3) as usize..][..1], &number.to_be_bytes()].concat();
    let mut put = |numbers: std::ops::Range<u64>, len: usize| {
        let mut batch = store.batch();
        for number in numbers {
            let (key, value) = (key(number), value(number * 8 + len as u64, len));
            batch.put(&space, &key, Bytes::from(value.clone()));
            content.insert(key, value);
        }
        batch.commit(PROCESS).unwrap();
    };
    // Inline, separated by the flush, written directly; then some of them again.
    for first in (0..4000).step_by(20) {
        put(first..first + 20, 500);
    }
    for first in (4000..5000).step_by(20) {
        put(first..first + 20, 900);
    }
    put(5000..5040, 5000);
    for first in (0..5000).step_by(500) {
        put(first..first + 30, 520);
    }
    space.delete(&key(7), PROCESS).unwrap();
    content.remove(&key(7));
    space.purge_prefix(&key(8)[..8], PROCESS).unwrap();
    content.retain(|held, _| !held.starts_with(&key(8)[..8]));
    space.put(&key(9), b"last", DEVICE).unwrap();
    content.insert(key(9), b"last".to_vec());
    assert_eq!(store.stats().flushes, 0, "all of it is in the log");
    let image = device.image();
    (image, content)
}

fn judge(device: &Arc<dyn Device>, content: &BTreeMap<Vec<u8>, Vec<u8>>, what: &str) {
    let store =
        Store::open(open_objects(device), options()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found: BTreeMap<_, _> = pairs(&space(&store)).into_iter().collect();
    assert!(
        found == *content,
        "{what}: {} keys, not {}",
        found.len(),
        content.len()
    );
    let report = store.verify(true).unwrap();
    assert!(report.is_sound(), "{what}: {:#?}", report.problems);
    space(&store).put(b"after", b"it goes on", DEVICE).unwrap();
    store.flush().unwrap();
}

#[test]
fn logs_beyond_the_budget_become_tables_wherever_the_opening_is_cut_short() {
    let (image, content) = loaded();
    assert!(content.len() > 4000);
    let device = fault(image.clone(), true);
    let dynamic: Arc<dyn Device> = device.clone();
    let objects = open_objects(&dynamic);
    let looked = Store::open(
        objects.clone(),
        Options {
            read_only: true,
            ..options()
        },
    );
    assert!(
        matches!(looked, Err(Error::OverBudget { .. })),
        "a look has no room"
    );
    let store = Store::open(objects, options()).unwrap();
    let flushes = store.stats().flushes;
    assert!(flushes > 4, "{flushes} memtables became tables");
    drop(store);
    let mut random = Random::new(3);
    let cuts: Vec<_> = crash::all_cuts(&device.history()).collect();
    let every = cuts.len().div_ceil(24);
    for cut in cuts.iter().step_by(every).chain(cuts.last()) {
        let states = cut.states(&Limits {
            exhaustive: 4,
            samples: 4,
            seed: 3,
        });
        let index = random.below(states.count_all());
        let state = states.get(index).unwrap();
        judge(
            &state.device(),
            &content,
            &format!("step {} state {index}", cut.step()),
        );
    }
}
