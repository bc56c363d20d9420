//! Space that goes back to the file system, and is requested again.

use crate::basics::{bytes, commit, open, plain, read, stream};
use copal_device::{Device, FileOptions, Image, fault::*, open_file};
use copal_object::*;
use std::{os::unix::fs::MetadataExt, path::Path, sync::Arc};

const MIB: u64 = 1 << 20;

/// On a full host, which has only the space that it was asked to reserve.
fn full_host(image: Image) -> Arc<FaultDevice> {
    let options = FaultOptions {
        order: CompletionOrder::Immediate,
        record: false,
        full_host: true,
        ..FaultOptions::default()
    };
    FaultDevice::with_options(image, options)
}

fn fresh() -> (Arc<FaultDevice>, Store) {
    let device = full_host(Image::zeroed(64 * MIB));
    let dynamic: Arc<dyn Device> = device.clone();
    Store::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
    (device, open(&dynamic))
}

fn reopen(device: &Arc<FaultDevice>) -> (Arc<FaultDevice>, Store) {
    let device = device.reopen();
    let dynamic: Arc<dyn Device> = device.clone();
    (device, open(&dynamic))
}

fn put(store: &Store, id: u64, len: u64) {
    let id = ObjectId(id);
    let data = bytes(len as usize, id.0);
    let opts = plain(ReadCheck::Caller);
    commit(store, vec![Op::Create { id, opts }, Op::Append { id, at: 0, data }]);
}

fn delete(store: &Store, ids: impl Iterator<Item = u64>) {
    commit(store, ids.map(|id| Op::Delete { id: ObjectId(id) }).collect());
}

fn expect_clean(store: &Store) {
    let looked = CheckOptions { data: true, repair: false };
    let report = store.check(&looked).unwrap();
    assert!(report.is_clean(), "{:?}", report.damages);
    let space = store.space();
    let owned = space.live_bytes + space.staged_bytes + space.quarantine_bytes;
    let rest = space.reserved_bytes + space.free_bytes + space.hollow_bytes;
    assert_eq!(owned + rest, space.size_bytes);
}

/// Symptom: a store never became smaller: deleted data kept its space in the file.
/// Cause: freed pages were only reused.
/// Fix: the end of the file is cut off, and runs inside are punched out.
#[test]
fn a_store_gives_back_its_end_and_free_runs_and_requests_them_again() {
    let (device, store) = fresh();
    (0..100).for_each(|id| put(&store, id, 2 * MIB));
    let grown = device.geometry().size;
    assert!(grown > 200 * MIB);
    // Every fourth of the lower ones stays.
    delete(&store, (0..60).filter(|id| id % 4 != 0).chain(60..100));
    let before = store.space();
    let shrunk = store.shrink().unwrap();
    let size = device.geometry().size;
    let after = store.space();
    assert_eq!(shrunk.cut_bytes, grown - size);
    assert_eq!((after.size_bytes, after.hollow_bytes), (size, shrunk.hollow_bytes));
    assert!(size <= 160 * MIB, "{size} bytes are left");
    assert!(shrunk.hollow_bytes > 50 * MIB, "{shrunk:?}");
    assert!(after.live_bytes <= before.live_bytes + MIB);
    let discarded = device.counters().discard_bytes;
    assert_eq!(discarded, shrunk.hollow_bytes);
    expect_clean(&store);
    let again = store.shrink().unwrap();
    assert!(again.cut_bytes == 0 && again.hollow_bytes < MIB, "all was given back: {again:?}");
    let hollow = store.space().hollow_bytes;
    drop(store);
    // After a kill the state is the same, and the store takes as much as before: no write meets a hole.
    let (device, store) = reopen(&device);
    assert_eq!(store.space().hollow_bytes, hollow);
    (200..280).for_each(|id| put(&store, id, 2 * MIB));
    assert_eq!(store.space().hollow_bytes, 0, "holes are filled before the file grows");
    assert!(device.geometry().size > size);
    let kept = (0..60).filter(|id| id % 4 == 0);
    let all = || kept.clone().chain(200..280);
    all().for_each(|id| assert!(read(&store, id) == bytes(2 << 20, id)));
    drop(store);
    let (_device, store) = reopen(&device);
    all().for_each(|id| assert!(read(&store, id) == bytes(2 << 20, id)));
    expect_clean(&store);
}

/// The returned space may be in use elsewhere. Deletes, checkpoints and closing still have the space that
/// they need, and so do reservations.
#[test]
fn a_store_that_gave_its_space_back_lives_on_a_full_host() {
    let (device, store) = fresh();
    (0..40).for_each(|id| put(&store, id, 2 * MIB));
    delete(&store, 10..40);
    let reserved = store.reserve(3 * MIB).unwrap();
    store.shrink().unwrap();
    let no_room = || {
        (0..50).for_each(|_| device.inject(Fault::Grow { skip: 0 }));
    };
    no_room();
    let id = ObjectId(50);
    let too_much = Op::Append { id, at: 0, data: bytes(40 << 20, 1) };
    let opts = plain(ReadCheck::Caller);
    let txn = Txn::new().create(id, opts).op(too_much);
    let refused = store.commit(txn, Ack::Durable).wait();
    assert!(matches!(refused, Err(StoreError::NoSpace { .. })), "{refused:?}");
    drop(reserved);
    put(&store, 60, 3 * MIB);
    delete(&store, 0..10);
    store.checkpoint().unwrap();
    expect_clean(&store);
    store.close().unwrap();
    drop(store);
    let (device, store) = reopen(&device);
    // The host has space again: all of it comes back.
    device.heal();
    let taken = store.reserve(40 * MIB).unwrap();
    drop(taken);
    put(&store, 61, 40 * MIB);
    expect_clean(&store);
}

#[test]
fn pinned_pages_are_not_given_back() {
    let (_device, store) = fresh();
    let (log, opts) = (ObjectId(7), stream());
    commit(&store, vec![Op::Create { id: log, opts }]);
    let extent = store.raw_extent(log, 20 * MIB).unwrap().unwrap();
    delete(&store, [7].into_iter());
    store.shrink().unwrap();
    assert!(store.space().quarantine_bytes >= 20 * MIB);
    expect_clean(&store);
    drop(extent);
    let given = store.shrink().unwrap();
    assert!(given.hollow_bytes > 19 * MIB, "{given:?}");
    assert_eq!(store.space().quarantine_bytes, 0);
    expect_clean(&store);
}

fn file(path: &Path, create: bool) -> Arc<dyn Device> {
    let options = FileOptions {
        create_size: create.then_some(64 << 20),
        unsafe_volatile: true,
        allow_cow: true,
        punch_holes: true,
        ..FileOptions::default()
    };
    open_file(path, &options).unwrap()
}

#[test]
fn the_file_system_has_the_blocks_again_while_threads_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let device = file(&path, true);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let store = open(&device);
    (0..30).for_each(|id| put(&store, id, 4 * MIB));
    std::thread::scope(|scope| {
        for thread in 1..4 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..6 {
                    let ids = (0..4).map(|nth| thread * 1000 + round * 10 + nth);
                    ids.clone().for_each(|id| put(store, id, 3 * MIB));
                    ids.clone().for_each(|id| assert!(read(store, id) == bytes(3 << 20, id)));
                    delete(store, ids.skip(1));
                }
            });
        }
        let store = &store;
        scope.spawn(move || (0..12).for_each(|_| assert!(store.shrink().is_ok())));
    });
    delete(&store, (0..30).filter(|id| id % 3 != 0));
    expect_clean(&store);
    let before = std::fs::metadata(&path).unwrap().blocks() * 512;
    store.shrink().unwrap();
    store.close().unwrap();
    drop(store);
    let (metadata, after) =
        (std::fs::metadata(&path).unwrap(), |meta: &std::fs::Metadata| meta.blocks() * 512);
    let store = open(&device);
    let space = store.space();
    assert_eq!(metadata.len(), space.size_bytes);
    let used = space.live_bytes;
    let allocated = after(&metadata);
    assert!(allocated < before && allocated >= used, "{before}, {allocated}, {used}");
    assert!(allocated <= used + used / 10 + 16 * MIB, "{allocated} of {used} used");
    expect_clean(&store);
}
