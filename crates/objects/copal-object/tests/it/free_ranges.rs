//! Free ranges: bytes beside the content of a store, which a killed process leaves free.

use crate::{
    basics::{bytes, plain},
    conformance::in_a_directory,
};
use copal_device::{AlignedBuf, Device, IoKind, MemoryDevice};
use copal_object::*;
use std::{ops::Range, sync::Arc};

const MIB: u64 = 1 << 20;

fn store_of(backend: BackendKind, size: u64) -> (Arc<dyn Device>, Store) {
    let device: Arc<dyn Device> = MemoryDevice::new(size);
    let segment_bytes = (backend == BackendKind::Log).then_some(1 << 20);
    Store::mkfs(&device, &MkfsOptions { backend, segment_bytes, ..MkfsOptions::default() }).unwrap();
    let store = open(&device);
    (device, store)
}

/// Opens a store that does not grow.
fn open(device: &Arc<dyn Device>) -> Store {
    let options = OpenOptions { max_size_bytes: Some(device.geometry().size), ..OpenOptions::default() };
    Store::open(Arc::clone(device), &options).unwrap().0
}

/// Writes objects of 300 KB until the store is full; returns their number.
fn fill(store: &Store, first: u64) -> u64 {
    let mut id = first;
    loop {
        let txn = Txn::new().create(ObjectId(id), plain(ReadCheck::Pages)).append(
            ObjectId(id),
            0,
            bytes(300_000, id),
        );
        match store.commit(txn, Ack::Written).wait() {
            Ok(_) => id += 1,
            Err(error) if error.is_no_space() => return id - first,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Fills all of a range with bytes that no layer below expects.
fn scribble(device: &Arc<dyn Device>, range: Range<u64>) {
    for at in range.step_by(MIB as usize) {
        let mut buf = AlignedBuf::zeroed(MIB as usize);
        buf.copy_from_slice(&bytes(MIB as usize, at));
        let io = copal_device::Io {
            at,
            kind: IoKind::Write { buf, fua: false },
            class: copal_device::IoClass::Foreground,
        };
        assert!(device.submit(vec![io]).wait().remove(0).result.is_ok());
    }
}

fn assert_intact(store: &Store) {
    let report = store.check(&CheckOptions { data: true, ..CheckOptions::default() }).unwrap();
    assert!(report.is_clean(), "{:?}", report.damages);
}

#[test]
fn a_free_range_holds_no_content_and_is_free_again_after_a_drop_or_a_kill() {
    for backend in [BackendKind::Cow, BackendKind::Log] {
        let (device, store) = store_of(backend, 128 * MIB);
        let txn = Txn::new().create(ObjectId(1), plain(ReadCheck::Pages)).append(
            ObjectId(1),
            0,
            bytes(5_000_000, 1),
        );
        store.commit(txn, Ack::Durable).wait().unwrap();
        let free = store.space().free_bytes;
        let range = store.free_range(32 * MIB..40 * MIB).unwrap();
        let place = range.bytes();
        assert_eq!(place.end - place.start, 40 * MIB, "{backend:?}");
        assert!(store.space().free_bytes <= free - 40 * MIB);
        scribble(&device, place.clone());
        let others = fill(&store, 100);
        assert!(others > 50, "{backend:?}: {others} objects beside it");
        scribble(&device, place);
        assert_intact(&store);
        // Killed: the range is free at the next opening.
        std::mem::forget(range);
        drop(store);
        let store = open(&device);
        assert_intact(&store);
        assert!(fill(&store, 10_000) > 100, "{backend:?}: its space is used again");
        for id in (100..100 + others).chain(10_000..10_000 + 100) {
            store.commit(Txn::new().delete(ObjectId(id)), Ack::Durable).wait().unwrap();
        }
        assert_intact(&store);
        store.close().unwrap();
        // Dropped: free at once.
        let store = open(&device);
        let free = store.space().free_bytes;
        let range = store.free_range(4 * MIB..8 * MIB).unwrap();
        scribble(&device, range.bytes());
        drop(range);
        assert_eq!(store.space().free_bytes, free, "{backend:?}");
        store.close().unwrap();
        assert_intact(&open(&device));
    }
}

#[test]
fn a_free_range_is_refused_where_there_is_none() {
    for backend in [BackendKind::Cow, BackendKind::Log] {
        let (device, store) = store_of(backend, 64 * MIB);
        let refused = store.free_range(64 * MIB..128 * MIB);
        assert!(
            matches!(refused, Err(StoreError::NoSpace { needed_bytes, free_bytes })
            if needed_bytes == 64 * MIB && free_bytes < needed_bytes),
            "{refused:?}"
        );
        fill(&store, 1);
        assert!(store.free_range(8 * MIB..16 * MIB).is_err_and(|error| error.is_no_space()));
        store.close().unwrap();
        drop(store);
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let (store, _) = Store::open(device, &options).unwrap();
        assert!(matches!(store.free_range(0..MIB), Err(StoreError::ReadOnly)));
    }
    let (_directory, store) = in_a_directory();
    assert!(matches!(store.free_range(0..MIB), Err(StoreError::Unsupported { .. })));
}
