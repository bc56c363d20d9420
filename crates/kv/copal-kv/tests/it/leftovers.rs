//! Leftovers of a kill are distinguished from leaks, also when nothing may be swept.
//!
//! Symptom: after a kill `check` sometimes called the store damaged. Later the names of a read-only store
//! were not checked at all, and an unowned table, log or value object went unnoticed forever.
//! Cause: a read-only opening sweeps nothing, and no check distinguished leftovers of a kill from leaks.
//! Fix: the manifest records the id below which nothing was without a name. A younger object, or one that an
//! edit dropped, is a leftover; any other is a problem. Sweep and verification share this decision.

use crate::support::*;
use copal_device::{
    Device, Image, MemoryDevice,
    fault::{CompletionOrder, FaultDevice, FaultOptions},
};
use copal_kv::{Keyspace, Options, Store, VerifyReport};
use copal_object::{Ack, CreateOptions, ObjectId, ObjectKind, ObjectLifetime, ReadCheck, Txn};
use std::sync::Arc;

fn device() -> (Arc<FaultDevice>, Arc<dyn Device>) {
    let options = FaultOptions {
        order: CompletionOrder::Immediate,
        max_size: 64 * MIB,
        record: false,
        ..FaultOptions::default()
    };
    let device = FaultDevice::with_options(Image::zeroed(64 * MIB), options);
    format(&(device.clone() as Arc<dyn Device>));
    (device.clone(), device)
}

fn fill(space: &Keyspace, tag: u64) {
    for i in 0..300u64 {
        let len = [100, 700, 9000][(i % 3) as usize];
        space.put(&i.to_be_bytes(), &value(tag << 32 | i, len), PROCESS).unwrap();
    }
}

fn read_only(image: Image) -> VerifyReport {
    let device = MemoryDevice::from_image(image, 64 * MIB);
    let options = Options { read_only: true, ..small() };
    let store = Store::open(open_objects(&device), options).unwrap();
    let report = store.verify(true).unwrap();
    // The next opening frees the reported objects: then nothing is left over.
    drop(store);
    let store = Store::open(open_objects(&device), small()).unwrap();
    assert_sound(&store, true);
    drop(store);
    let options = Options { read_only: true, ..small() };
    let swept = Store::open(open_objects(&device), options).unwrap();
    let again = swept.verify(true).unwrap();
    assert!(again.is_sound(), "{:#?}", again.problems);
    assert_eq!((again.leftovers, again.leftover_bytes), (0, 0));
    report
}

#[test]
fn a_kill_before_garbage_is_freed_leaves_leftovers_and_no_damage() {
    let (faulty, dynamic) = device();
    let store = Store::open(open_objects(&dynamic), small()).unwrap();
    let space = store.keyspace("a", grouped()).unwrap();
    fill(&space, 1);
    space.compact_range(all()).unwrap();
    store.close().unwrap();
    drop((space, store));
    let store = Store::open(open_objects(&dynamic), small()).unwrap();
    let space = store.keyspace("a", grouped()).unwrap();
    // A reader of the old version keeps tables and value objects of both sessions from being freed ...
    let reader = space.iter(all());
    fill(&space, 2);
    store.flush().unwrap();
    let second = space.iter(all());
    space.compact_range(all()).unwrap();
    space.purge_prefix(b"", PROCESS).unwrap();
    space.compact_range(all()).unwrap();
    // ... and a kill comes first.
    let image = faulty.image();
    assert!(store.verify(true).unwrap().is_sound());
    let report = read_only(image);
    assert!(report.is_sound(), "{:#?}", report.problems);
    assert!(report.leftovers >= 2, "{report:?}");
    assert!(report.leftover_bytes > 100_000, "{report:?}");
    drop((reader, second));
}

#[test]
fn a_clean_close_leaves_nothing() {
    let (faulty, dynamic) = device();
    for round in 0..3 {
        let store = Store::open(open_objects(&dynamic), small()).unwrap();
        let space = store.keyspace("a", grouped()).unwrap();
        let reader = space.iter(all());
        fill(&space, round);
        space.compact_range(all()).unwrap();
        drop(reader);
        store.close().unwrap();
        store.objects().close().unwrap();
        let report = read_only(faulty.image());
        assert!(report.is_sound(), "{:#?}", report.problems);
        assert_eq!((report.leftovers, report.leftover_bytes), (0, 0));
    }
}

#[test]
fn an_object_of_no_one_after_a_clean_close_is_a_leak() {
    for (kind, label) in [
        (ObjectKind::Plain, b"kv table\0\0\0\0\0\0\0\0"),
        (ObjectKind::Plain, b"kv value\0\0\0\0\0\0\0\0"),
        (ObjectKind::Stream, b"kv log\0\0\0\0\0\0\0\0\0\0"),
    ] {
        let (faulty, dynamic) = device();
        let store = Store::open(open_objects(&dynamic), small()).unwrap();
        let space = store.keyspace("a", grouped()).unwrap();
        fill(&space, 1);
        space.compact_range(all()).unwrap();
        fill(&space, 2);
        space.compact_range(all()).unwrap();
        store.close().unwrap();
        store.objects().close().unwrap();
        drop((space, store));
        let objects = open_objects(&dynamic);
        // An id that the engine used and that is free again.
        let free = (2..).map(ObjectId).find(|id| objects.stat(*id).is_none()).unwrap();
        assert!(objects.list(free, 1)[0].id > free, "the id is below one in use");
        let opts = CreateOptions {
            kind,
            lifetime: ObjectLifetime::Long,
            expected_bytes: 0,
            check: ReadCheck::Caller,
            label: *label,
        };
        objects.commit(Txn::new().create(free, opts), Ack::Durable).wait().unwrap();
        objects.close().unwrap();
        drop(objects);
        let report = read_only(faulty.image());
        assert_eq!(report.problems.len(), 1, "{:#?}", report.problems);
        assert!(report.problems[0].contains(&format!(" {} has no owner", free.0)), "{}", report.problems[0]);
        assert_eq!(report.leftovers, 0);
    }
}
