//! Data of small commits in records: one write for a commit, reads from memory, places later.

use crate::basics::{bytes, commit, plain, read};
use bytes::Bytes;
use copal_device::{AlignedBuf, Device, Image, MemoryDevice};
use copal_object::*;
use std::sync::Arc;

const BYTES: u64 = 64 << 20;
const MIB: u64 = 1 << 20;

fn open_as(device: &Arc<dyn Device>, options: &OpenOptions) -> Store {
    Store::open(Arc::clone(device), options).unwrap().0
}

fn open(device: &Arc<dyn Device>) -> Store {
    open_as(device, &OpenOptions { inline_data: Some(true), ..OpenOptions::default() })
}

fn fresh() -> (Arc<dyn Device>, Store) {
    let device: Arc<dyn Device> = MemoryDevice::new(BYTES);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let store = open(&device);
    (device, store)
}

fn create(store: &Store, id: u64, check: ReadCheck) {
    commit(store, vec![Op::Create { id: ObjectId(id), opts: plain(check) }]);
}

fn write(store: &Store, id: u64, at: u64, data: Bytes) {
    commit(store, vec![Op::Write { id: ObjectId(id), at, data }]);
}

/// The present bytes of the device, as after a kill.
fn killed(device: &Arc<dyn Device>) -> Arc<dyn Device> {
    let mut image = Image::zeroed(BYTES);
    for at in (0..BYTES).step_by(MIB as usize) {
        image.write(at, &device.read_now(at, AlignedBuf::zeroed(MIB as usize)).unwrap());
    }
    MemoryDevice::from_image(image, u64::MAX)
}

#[test]
fn a_small_commit_takes_one_write_and_its_data_is_read_from_memory() {
    let (_, store) = fresh();
    create(&store, 1, ReadCheck::Pages);
    create(&store, 2, ReadCheck::Caller);
    for (id, len) in [(1, 500), (2, 500), (1, 60_000), (2, 60_000)] {
        let before = store.counters();
        write(&store, id, 0, bytes(len, id));
        let done = store.counters() - before;
        assert_eq!((done.writes, done.flushes), (1, 1), "{len} bytes");
        let before = store.counters();
        assert_eq!(read(&store, id)[..len], bytes(len, id));
        assert_eq!((store.counters() - before).reads, 0);
    }
    let before = store.counters();
    write(&store, 1, 0, bytes(70_000, 1));
    assert!((store.counters() - before).writes >= 2, "more than 64 KiB lie apart");
}

#[test]
fn a_checkpoint_places_the_data() {
    let (device, store) = fresh();
    create(&store, 1, ReadCheck::Pages);
    write(&store, 1, 0, bytes(20_000, 3));
    store.checkpoint().unwrap();
    let before = store.counters();
    assert_eq!(read(&store, 1), bytes(20_000, 3));
    assert_eq!((store.counters() - before).reads, 1);
    let report = store.check(&CheckOptions { data: true, repair: false }).unwrap();
    assert!(report.damages.is_empty() && report.bytes_summed >= 20_000, "{report:?}");
    drop(store);
    // Another build of the options reads it too.
    assert_eq!(read(&open_as(&device, &OpenOptions::default()), 1), bytes(20_000, 3));
}

/// Pages that lose their owner before they are placed are never written there.
#[test]
fn an_object_that_grows_in_its_last_page_is_placed_once() {
    let (_, store) = fresh();
    create(&store, 1, ReadCheck::Pages);
    let before = store.counters();
    for n in 0..40 {
        write(&store, 1, n * 100, bytes(100, n));
    }
    let records = (store.counters() - before).write_bytes;
    store.checkpoint().unwrap();
    let all = (store.counters() - before).write_bytes;
    // The page, the checkpoint with its copy, two copies of the superblock.
    assert!(all - records <= 6 * 4096, "{} bytes", all - records);
    let wanted: Vec<u8> = (0..40).flat_map(|n| bytes(100, n)).collect();
    assert_eq!(read(&store, 1), wanted);
}

// Symptom: a store did not close. Cause: a page that its own transaction freed again was noted as waiting afterwards,
// so another object got it. Fix: pages are noted before later operations of their transaction.
#[test]
fn a_page_that_its_transaction_frees_again_is_not_placed() {
    let (device, store) = fresh();
    create(&store, 1, ReadCheck::Pages);
    for n in 0..200 {
        let twice = [n, n + 1].map(|seed| Op::Write { id: ObjectId(1), at: 0, data: bytes(9000, seed) });
        commit(&store, Vec::from(twice));
        if n % 50 == 49 {
            store.checkpoint().unwrap();
        }
    }
    assert_eq!(read(&store, 1), bytes(9000, 200));
    store.close().unwrap();
    drop(store);
    assert_eq!(read(&open(&device), 1), bytes(9000, 200));
}

#[test]
fn after_a_kill_the_data_is_in_the_records() {
    let (device, store) = fresh();
    for (id, check) in [(1, ReadCheck::Pages), (2, ReadCheck::Caller)] {
        create(&store, id, check);
        write(&store, id, 0, bytes(30_000, id));
        // Merged with a page that is in a record only.
        write(&store, id, 5000, bytes(10, 9));
    }
    write(&store, 1, 8192, bytes(4096, 7));
    commit(&store, vec![Op::Clone { from: ObjectId(2), to: ObjectId(3) }]);
    let wanted = [1, 2, 3].map(|id| read(&store, id));
    let killed = killed(&device);
    let before: Vec<u8> = killed.read_now(0, AlignedBuf::zeroed(BYTES as usize)).unwrap().to_vec();
    let store = open_as(&killed, &OpenOptions { read_only: true, ..OpenOptions::default() });
    assert_eq!([1, 2, 3].map(|id| read(&store, id)), wanted);
    drop(store);
    assert!(before[..] == killed.read_now(0, AlignedBuf::zeroed(BYTES as usize)).unwrap()[..], "it wrote");
    // A store opened without inline data places those of earlier commits.
    for _ in 0..3 {
        let store = open_as(&killed, &OpenOptions::default());
        assert_eq!([1, 2, 3].map(|id| read(&store, id)), wanted);
        let report = store.check(&CheckOptions { data: true, repair: false }).unwrap();
        assert!(report.damages.is_empty(), "{report:?}");
    }
}

/// Pages wait in memory up to a limit; they are placed in the order of their addresses, many with one command.
#[test]
fn many_commits_are_placed_in_few_commands() {
    let (device, store) = fresh();
    create(&store, 1, ReadCheck::Pages);
    let before = store.counters();
    let commits = 6000;
    for n in 0..commits {
        let txn = Txn::new().append(ObjectId(1), n * 4096, bytes(4096, n));
        store.commit(txn, if n % 16 == 15 { Ack::Durable } else { Ack::Ordered }).wait().unwrap();
    }
    let done = store.counters() - before;
    // A record for each commit, and long runs.
    assert!(done.writes < commits + commits / 50, "{} writes", done.writes);
    assert!(done.write_bytes > commits * 4096 * 3 / 2, "nothing was placed: {} bytes", done.write_bytes);
    drop(store);
    let store = open(&device);
    for n in [0, 1, 2047, 2048, 4095, commits - 1] {
        let range = n * 4096..(n + 1) * 4096;
        let found = store.read(ObjectId(1), range, copal_device::IoClass::Foreground).wait().unwrap();
        assert_eq!(found, bytes(4096, n), "{n}");
    }
}
