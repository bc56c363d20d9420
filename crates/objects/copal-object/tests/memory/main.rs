//! Memory of an open store by its number of objects, counted by the allocator.

mod counting;

use copal_device::{Device, FileOptions, open_file};
use copal_object::*;
use counting::{live_bytes, peak_bytes_of};
use std::sync::Arc;

/// A store in a file, so that its content takes no memory.
fn fresh(dir: &std::path::Path) -> Store {
    let options = FileOptions {
        create_size: Some(512 << 20),
        force_pread: true,
        unsafe_volatile: true,
        allow_cow: true,
        ..FileOptions::default()
    };
    let device: Arc<dyn Device> = open_file(&dir.join("store"), &options).unwrap();
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    Store::open(device, &OpenOptions::default()).unwrap().0
}

/// A store with `count` empty objects; `id` derives their ids from their numbers.
fn store_with(dir: &std::path::Path, count: u64, id: impl Fn(u64) -> u64) -> Store {
    let store = fresh(dir);
    let numbers: Vec<u64> = (0..count).collect();
    for part in numbers.chunks(4000) {
        let opts = CreateOptions::default();
        let ops = part.iter().map(|&number| Op::Create { id: ObjectId(id(number)), opts: opts.clone() });
        store.commit(Txn::new().ops(ops), Ack::Written).wait().unwrap();
    }
    store
}

/// A store with `count` objects of one page.
fn store_of_pages(dir: &std::path::Path, count: u64) -> Store {
    let store = fresh(dir);
    let page = bytes::Bytes::from(vec![7; 4096]);
    let numbers: Vec<u64> = (10..10 + count).collect();
    for part in numbers.chunks(1000) {
        let put = |txn: Txn, &number: &u64| {
            let id = ObjectId(number);
            txn.create(id, CreateOptions::default()).append(id, 0, page.clone())
        };
        store.commit(part.iter().fold(Txn::new(), put), Ack::Written).wait().unwrap();
    }
    store
}

/// Bytes that become free when a store with `count` empty objects is dropped.
fn bytes_of_store(count: u64, id: impl Fn(u64) -> u64) -> u64 {
    bytes_freed_by(|dir| store_with(dir, count, id))
}

/// Bytes that become free when the store is dropped.
fn bytes_freed_by(make: impl FnOnce(&std::path::Path) -> Store) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let store = make(dir.path());
    // Afterwards no thread of the device holds the store.
    store.close().unwrap();
    let open = live_bytes();
    drop(store);
    open - live_bytes()
}

/// Symptom: an empty object took 224 bytes, since ids that ascend left the leaves of a tree half empty.
/// Fix: entries stand in chunks that stay full, and all objects without pages share one map.
fn an_empty_object_takes_less_than_96_bytes() {
    let none = bytes_of_store(0, |number| number);
    let ascending = |number| 10 + number;
    // Any order: chunks are split in halves.
    let scattered = |number| 10 + (number * 7919) % 1_000_003;
    for (count, id, most) in [
        (100_000, &ascending as &dyn Fn(u64) -> u64, 64.0),
        (1_000_000, &ascending, 64.0),
        (100_000, &scattered, 96.0),
    ] {
        let each = (bytes_of_store(count, id) - none) as f64 / count as f64;
        assert!(each <= most, "{each} bytes for each of {count} empty objects");
    }
}

/// Symptom: an object of one page took 214 bytes.
/// Cause: the vectors of its extents and sums began with room for four.
/// Fix: they begin with room for one extent and its sums. That is still above the target of 96 bytes and 16 for each
/// extent; docs/measurements/objects.md names the change that would reach it.
fn an_object_of_one_page_takes_less_than_155_bytes() {
    const COUNT: u64 = 100_000;
    let none = bytes_freed_by(|dir| store_of_pages(dir, 0));
    let each = (bytes_freed_by(|dir| store_of_pages(dir, COUNT)) - none) as f64 / COUNT as f64;
    assert!(each <= 155.0, "{each} bytes for each of {COUNT} objects of one page");
}

/// Symptom: a checkpoint of 10^6 objects took 89 MiB of memory: its body and its pages, at the same time.
/// Fix: a page is written as soon as the part of the body for it is encoded.
fn a_checkpoint_takes_little_memory_beside_the_tables() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), 1_000_000, |number| number);
    store.checkpoint().unwrap();
    let peak = peak_bytes_of(|| store.checkpoint().unwrap());
    assert!(peak <= 4 << 20, "{peak} bytes at a time");
}

/// One test: the allocator counts for the whole process.
#[test]
fn memory_of_a_store() {
    an_empty_object_takes_less_than_96_bytes();
    an_object_of_one_page_takes_less_than_155_bytes();
    a_checkpoint_takes_little_memory_beside_the_tables();
}
