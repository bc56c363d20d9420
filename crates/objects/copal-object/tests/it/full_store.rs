//! A store without free space: operations that free space, close and open take few commands, on every backend of a
//! device. So does the cleaning that makes the freed space usable.
//!
//! Not here: which operations are refused (`space`), operations that would never return (`stuck`).

use crate::basics::{bytes, commit, plain, read, stream};
use copal_device::{Device, DeviceCounters, MemoryDevice};
use copal_object::*;
use std::sync::Arc;

const STORE_BYTES: u64 = 64 << 20;
const OBJECT_BYTES: usize = 64 << 10;
const STREAM: ObjectId = ObjectId(1);

fn open(device: &Arc<dyn Device>, inline_data: bool) -> Store {
    let options = OpenOptions {
        max_size_bytes: Some(STORE_BYTES),
        inline_data: Some(inline_data),
        ..OpenOptions::default()
    };
    Store::open(Arc::clone(device), &options).unwrap().0
}

/// Makes objects of `len` bytes until one is refused; returns them.
fn fill(store: &Store, first: u64, len: usize) -> Vec<ObjectId> {
    let put = |id: &u64| {
        let txn = Txn::new().create(ObjectId(*id), plain(ReadCheck::Pages)).append(
            ObjectId(*id),
            0,
            bytes(len, *id),
        );
        match store.commit(txn, Ack::Ordered).wait() {
            Ok(_) => true,
            Err(StoreError::NoSpace { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    };
    (first..).take_while(put).map(ObjectId).collect()
}

/// Makes objects of three sizes until none fits; returns the longest.
fn fill_all(store: &Store, first: u64) -> Vec<ObjectId> {
    let long = fill(store, first, OBJECT_BYTES);
    fill(store, first + 10_000, 4096);
    fill(store, first + 20_000, 1);
    store.sync(Lsn(u64::MAX)).wait().unwrap();
    long
}

/// A full store with objects, and a stream of 20 frames.
fn full(backend: BackendKind, inline_data: bool) -> (Arc<dyn Device>, Store, Vec<ObjectId>) {
    let device: Arc<dyn Device> = MemoryDevice::new(STORE_BYTES);
    let segment_bytes = (backend == BackendKind::Log).then_some(256 << 10);
    Store::mkfs(&device, &MkfsOptions { backend, segment_bytes, ..MkfsOptions::default() }).unwrap();
    let store = open(&device, inline_data);
    commit(&store, vec![Op::Create { id: STREAM, opts: stream() }]);
    for number in 0..20 {
        store.append_frame(STREAM, bytes(100_000, number), None, Ack::Durable).wait().unwrap();
    }
    let long = fill_all(&store, 1000);
    assert!(long.len() > 600, "{} objects", long.len());
    (device, store, long)
}

fn commands(done: DeviceCounters) -> u64 {
    done.reads + done.writes + done.fua_writes + done.flushes
}

/// Commands of `work`, which may be at most `most`.
fn costs<T>(store: &Store, what: &str, most: u64, work: impl FnOnce() -> T) -> T {
    let before = store.counters();
    let result = work();
    let spent = commands(store.counters() - before);
    assert!(spent <= most, "{:?}: {what} takes {spent} commands", store.backend());
    result
}

#[test]
fn a_full_store_frees_space_in_few_commands() {
    let layouts = [(BackendKind::Cow, false), (BackendKind::Cow, true), (BackendKind::Log, false)];
    for (backend, inline_data) in layouts {
        let (device, store, ids) = full(backend, inline_data);
        let before_bytes = store.space().live_bytes;
        let mut ids = ids.into_iter();
        let mut next = || ids.next().unwrap();
        for _ in 0..20 {
            let id = next();
            costs(&store, "punch", 40, || commit(&store, vec![Op::Punch { id, range: 4096..40_960 }]));
            costs(&store, "truncate", 40, || commit(&store, vec![Op::Truncate { id: next(), len: 100 }]));
            costs(&store, "delete", 40, || commit(&store, vec![Op::Delete { id: next() }]));
        }
        for upto in 1..=20 {
            let op = Op::TrimStream { id: STREAM, upto: FramePos(upto) };
            costs(&store, "trim", 40, || commit(&store, vec![op]));
        }
        costs(&store, "close", 40, || store.close().unwrap());
        drop(store);
        let before = device.counters();
        let store = open(&device, inline_data);
        assert!(commands(device.counters() - before) <= 60);
        // Every other one dies, so that segments must be cleaned before their space is usable.
        let rest: Vec<ObjectId> = ids.collect();
        let (dead, kept): (Vec<_>, Vec<_>) = rest.into_iter().partition(|id| id.0 % 2 == 0);
        for pair in dead.chunks(2) {
            let ops = pair.iter().map(|&id| Op::Delete { id }).collect();
            costs(&store, "delete", 40, || commit(&store, ops));
        }
        costs(&store, "fill", 6000, || fill_all(&store, 100_000));
        let live = store.space().live_bytes;
        assert!(live * 100 >= before_bytes * 97, "{backend:?}: {live} of {before_bytes} bytes");
        for id in kept {
            assert!(read(&store, id.0) == bytes(OBJECT_BYTES, id.0));
        }
        assert!(store.check(&CheckOptions { data: true, repair: false }).unwrap().is_clean());
        store.close().unwrap();
    }
}
