//! Opening a store whose logs exceed the budget: they are flushed while it is opened.
//!
//! Invariants
//! - Wherever such an opening is interrupted, nothing is lost, nothing deleted comes back, and no object is
//!   left without an owner; the next opening continues.
//! - A read-only store refuses logs that do not fit.

use super::*;
use crate::{
    Durability, Keyspace, KeyspaceOptions, Store,
    crashes::value,
    format::entry::LAST_SEQ,
    write::{admission, log, reserve::ReservePart},
};
use bytes::Bytes;
use copal_device::{
    Device, Image,
    crash::{self, StateLimits},
    fault::{FaultDevice, FaultOptions},
};
use copal_object::{CreateOptions, MkfsOptions, ObjectKind, ObjectLifetime, OpenOptions, ReadCheck, Txn};
use std::{collections::BTreeMap, ops::Bound};

const MIB: u64 = 1 << 20;
const DEVICE: Durability = Durability::Device;
const PROCESS: Durability = Durability::Process;
const SIZE: u64 = 64 * MIB;

/// The budget of the load: one memtable holds all of it.
fn large() -> Options {
    Options { memory_bytes: 64 * MIB, ..options() }
}

/// The budget of the opening: the logs are eight of its memtables, and more than its total.
fn options() -> Options {
    Options { memory_bytes: 4 * MIB, table_bytes: 256 << 10, ..Options::default() }
}

fn fault(image: Image, record: bool) -> Arc<FaultDevice> {
    let options = FaultOptions { max_size: SIZE, record, ..FaultOptions::default() };
    FaultDevice::with_options(image, options)
}

/// An empty store with the budget of the load.
fn new_store() -> (Arc<FaultDevice>, Store) {
    let device = fault(Image::zeroed(SIZE), false);
    let dynamic: Arc<dyn Device> = device.clone();
    Objects::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
    let store = Store::open(open_objects(&dynamic), large()).unwrap();
    (device, store)
}

fn open_objects(device: &Arc<dyn Device>) -> Objects {
    Objects::open(device.clone(), &OpenOptions::default()).unwrap().0
}

/// Separates early, and groups by the first byte.
fn space(store: &Store) -> Keyspace {
    let options = KeyspaceOptions {
        group_prefix_len: 1,
        separate_from_bytes: 600,
        direct_from_bytes: 3000,
        ..KeyspaceOptions::default()
    };
    store.keyspace("a", options).unwrap()
}

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

fn content_of(store: &Store) -> Content {
    let pairs = space(store)
        .iter((Bound::Unbounded, Bound::Unbounded))
        .map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())));
    pairs.collect::<Result<_, _>>().unwrap()
}

fn logs(objects: &Objects) -> usize {
    FoundObjects::list(objects).logs.len()
}

/// Continues in a new log. The caller must prevent flushes.
fn rotate(store: &Store) {
    let engine = store.engine();
    admission::rotate(engine, &mut engine.writes.writer.lock()).unwrap();
}

/// A killed store with all kinds of operations in two logs, and its expected contents.
fn loaded() -> (Image, Content) {
    let (device, store) = new_store();
    let space = space(&store);
    // Work requested from the worker runs only after the load.
    let still = store.engine().compactor.stand_still();
    let mut content = BTreeMap::new();
    let key = |number: u64| [&b"xyz"[(number % 3) as usize..][..1], &number.to_be_bytes()].concat();
    let mut put = |numbers: Range<u64>, len: usize| {
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
        put(first..first + 20, 590);
    }
    for first in (4000..5000).step_by(20) {
        put(first..first + 20, 1100);
    }
    put(5000..5040, 5000);
    for first in (0..5000).step_by(500) {
        put(first..first + 30, 520);
    }
    space.delete(&key(7), PROCESS).unwrap();
    content.remove(&key(7));
    space.purge_prefix(&key(8)[..8], PROCESS).unwrap();
    content.retain(|held, _| !held.starts_with(&key(8)[..8]));
    rotate(&store);
    space.put(&key(9), b"last", DEVICE).unwrap();
    content.insert(key(9), b"last".to_vec());
    assert_eq!(store.stats().flushes, 0, "all of it is in the log");
    assert_eq!(logs(store.objects()), 2);
    let image = device.image();
    drop(still);
    (image, content)
}

fn judge(device: &Arc<dyn Device>, content: &Content, what: &str) {
    let store =
        Store::open(open_objects(device), options()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = content_of(&store);
    assert!(found == *content, "{what}: {} keys, not {}", found.len(), content.len());
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
    let looked = Store::open(objects.clone(), Options { read_only: true, ..options() });
    assert!(matches!(looked, Err(Error::OverBudget { .. })), "a look has no room");
    let store = Store::open(objects, options()).unwrap();
    let flushes = store.stats().flushes;
    assert!(flushes > 4, "{flushes} memtables became tables");
    drop(store);
    let cuts: Vec<_> = crash::all_cuts(&device.history()).collect();
    let every = cuts.len().div_ceil(24);
    for (number, cut) in cuts.iter().step_by(every).chain(cuts.last()).enumerate() {
        let states = cut.states(&StateLimits { exhaustive: 4, samples: 4, seed: 3 });
        let index = number as u64 * 7 % states.count_all();
        let state = states.get(index).unwrap();
        judge(&state.device(), &content, &format!("step {} state {index}", cut.step()));
    }
}

/// A killed store of three logs, with `bytes` of memtables together, on a device with hardly any space left.
fn full(bytes: u64) -> (Image, Content) {
    const LEFT: u64 = 200 << 10;
    let (device, store) = new_store();
    let space = space(&store);
    let engine = store.engine();
    let still = engine.compactor.stand_still();
    let mut content = BTreeMap::new();
    let mut number = 0;
    for log in 1..=3 {
        while engine.budget.count_memtables() < log * bytes / 3 {
            let (key, value) = (u64::to_be_bytes(number).to_vec(), value(number, 500));
            // One frame each, so that replaying one takes little memory besides the contents of the logs.
            space.put(&key, &value, DEVICE).unwrap();
            content.insert(key, value);
            number += 1;
        }
        if log < 3 {
            rotate(&store);
        }
    }
    store.sync().unwrap();
    let objects = store.objects();
    let opened = engine.writes.reserve.open(objects, ReservePart::Everything);
    let opts = CreateOptions {
        kind: ObjectKind::Plain,
        lifetime: ObjectLifetime::Long,
        expected_bytes: 0,
        check: ReadCheck::Pages,
        label: [0; 16],
    };
    let mut ops = vec![Op::Create { id: FILLER, opts }];
    let mut at = 0;
    loop {
        let piece = objects.space().free_bytes.saturating_sub(LEFT).min(MIB) >> 12 << 12;
        if piece > 0 {
            let data = Bytes::from(value(at, piece as usize));
            ops.push(Op::Append { id: FILLER, at, data });
            at += piece;
        }
        let txn = Txn::new().ops(std::mem::take(&mut ops));
        objects.commit(txn, Ack::Durable).wait().unwrap();
        if piece == 0 {
            break;
        }
    }
    assert_eq!((store.stats().flushes, logs(objects)), (0, 3));
    let image = device.image();
    drop((opened, still));
    (image, content)
}

const FILLER: ObjectId = ObjectId(1 << 30);

/// Symptom: a full store that was killed while its flush found no space did not open any more, and each
/// attempt left an empty log.
/// Cause: its logs fitted the memory, but not beside one more memtable; so they had to be flushed, and there
/// was no space for tables.
/// Fix: everything that can be freed without a flush is freed. If that is not enough, the logs stay in memory
/// as long as they fit at all.
#[test]
fn a_full_store_opens_with_its_logs_in_memory() {
    let (image, mut content) = full(2600 << 10);
    let device: Arc<dyn Device> = fault(image, false);
    let objects = open_objects(&device);
    let store = Store::open(objects.clone(), options()).unwrap();
    assert!(content_of(&store) == content);
    assert_eq!(logs(&objects), 3);
    let (key, _) = content.pop_first().unwrap();
    space(&store).delete(&key, DEVICE).unwrap();
    // The store works with less space than the reserve that it would keep.
    let refused = space(&store).put(b"new", &value(1, 5000), DEVICE);
    assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
    let mut batch = store.batch();
    batch.essential().put(&space(&store), b"essential", value(1, 100).into());
    batch.commit(DEVICE).unwrap();
    content.insert(b"essential".to_vec(), value(1, 100));
    let txn = Txn::new().delete(FILLER);
    objects.commit(txn, Ack::Durable).wait().unwrap();
    drop((store, objects));
    judge(&device, &content, "when there is space again");
}

#[test]
fn a_full_store_whose_logs_do_not_fit_is_refused_without_a_trace() {
    let (image, content) = full(3300 << 10);
    let device: Arc<dyn Device> = fault(image, false);
    for _ in 0..2 {
        let objects = open_objects(&device);
        let opened = Store::open(objects.clone(), options());
        assert!(matches!(opened, Err(Error::NoSpace)), "{:?}", opened.err());
        assert_eq!(logs(&objects), 3);
    }
    let store = Store::open(open_objects(&device), large()).unwrap();
    assert!(content_of(&store) == content);
}

/// A killed store of one flushed and one logged operation, with one more group after them.
fn opens_with(first_seq: u64) -> Result<Store, Error> {
    let (device, store) = new_store();
    let space = space(&store);
    space.put(b"flushed", b"1", DEVICE).unwrap();
    store.flush().unwrap();
    space.put(b"logged", b"2", DEVICE).unwrap();
    let mut ops = Vec::new();
    log::LogOp::Delete { key: &b"\0\0\0\x01logged"[..] }.encode(&mut ops);
    let stream = {
        let writer = store.engine().writes.writer.lock();
        let frames = log::frames(writer.log.generation, 1, first_seq, 1, &ops);
        let appended = store.objects().append_frame(writer.log.stream, frames[0].clone(), None, Ack::Durable);
        appended.wait().unwrap();
        writer.log.stream
    };
    assert!(store.objects().stat(stream).is_some());
    let device: Arc<dyn Device> = fault(device.image(), false);
    Store::open(open_objects(&device), large())
}

/// Symptom: a log frame with a valid checksum and a sequence close to 2^64 panicked at open, or was left out
/// silently.
/// Cause: the end of a group was computed before its beginning was bounded; and a group from before the
/// flushed sequence was skipped at any place.
/// Fix: a sequence is bounded where a frame is parsed, and groups are skipped only before all others.
#[test]
fn a_group_out_of_its_place_is_damage() {
    for first_seq in [u64::MAX, u64::MAX - 1, crate::format::entry::MAX_SEQ, 1, 2, 4] {
        let opened = opens_with(first_seq);
        let is_damage = opened.as_ref().is_err_and(Error::is_corruption);
        assert!(is_damage, "{first_seq}: {:?}", opened.err());
    }
    opens_with(3).unwrap();
}

/// A store closed with two entries, whose manifest has the extra `records`, opened again.
fn opened_after(records: &[ManifestRecord]) -> (Arc<dyn Device>, Result<Store, Error>) {
    let (device, store) = new_store();
    space(&store).put(b"a", b"1", DEVICE).unwrap();
    store.flush().unwrap();
    let budget = store.engine().budget.clone();
    store.close().unwrap();
    let objects = store.objects().clone();
    drop(store);
    let (mut manifest, _charge) = Manifest::open(&objects, &budget).unwrap().unwrap();
    let poison = PoisonFlag::default();
    manifest.commit(&objects, &poison, Vec::new(), records, Ack::Durable).unwrap();
    drop(manifest);
    objects.close().unwrap();
    drop(objects);
    let device: Arc<dyn Device> = device;
    let opened = Store::open(open_objects(&device), options());
    (device, opened)
}

/// The acknowledged of six puts are there before and after the store is reopened.
fn assert_acknowledged_survive(device: &Arc<dyn Device>, store: Store, refusal: fn(&Error) -> bool) {
    let mut acknowledged = Vec::new();
    for n in 0..6u8 {
        match space(&store).put(&[b'k', n], &[n; 10], DEVICE) {
            Ok(()) => acknowledged.push(n),
            Err(error) => assert!(refusal(&error), "{error}"),
        }
        if let Err(error) = store.flush() {
            assert!(refusal(&error), "{error}");
        }
    }
    assert!(!acknowledged.contains(&5), "never refused");
    let read = |store: &Store| {
        for n in &acknowledged {
            let found = space(store).get(&[b'k', *n]).unwrap();
            assert_eq!(found.as_deref(), Some(&[*n; 10][..]), "{n}");
        }
        assert_eq!(space(store).get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
    };
    read(&store);
    let _ = store.close();
    drop(store);
    let again = Store::open(open_objects(device), options()).unwrap();
    read(&again);
}

/// Symptom: a store whose manifest names a sequence close to the last one acknowledged writes that no later
/// opening accepted. Cause: sequences up to 2^63 were read, sequences of any size were allocated, and logs
/// and tables hold 56 bits. Fix: allocation and reading have the same limit; a write beyond it is refused.
#[test]
fn sequences_that_end_end_writes_and_lose_none() {
    let flushed = |last_seq| ManifestRecord::Flushed { generation: 1, last_seq };
    let (device, store) = opened_after(&[flushed(LAST_SEQ - 2)]);
    let refusal = |error: &Error| matches!(error, Error::NumbersUsedUp);
    assert_acknowledged_survive(&device, store.unwrap(), refusal);
}

/// The same for runs and ids of objects: a record that the reader would refuse is not written.
#[test]
fn runs_and_ids_that_end_end_writes_and_lose_none() {
    let counters =
        |next_object, next_run| ManifestRecord::Counters { next_object, next_run, next_keyspace: 2 };
    let last = u64::MAX >> 1;
    let (device, store) = opened_after(&[counters(0, last - 1)]);
    let refusal = |error: &Error| matches!(error, Error::NumbersUsedUp | Error::Poisoned { .. });
    assert_acknowledged_survive(&device, store.unwrap(), refusal);
}
