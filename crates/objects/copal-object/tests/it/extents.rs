//! Space of streams where free space is in pieces: how many appends change metadata.

use crate::basics::{bytes, commit, plain, stream};
use copal_device::{Device, MemoryDevice};
use copal_object::*;
use std::{ops::Range, sync::Arc};

const STORE_BYTES: u64 = 64 << 20;
const LOG: ObjectId = ObjectId(1);
/// A long object that is punched, and one in one run that is deleted.
const PUNCHED: ObjectId = ObjectId(2);
const DELETED: ObjectId = ObjectId(3);

/// A full store that cannot grow; all its data is in two objects.
fn full_store() -> (Arc<dyn Device>, Store) {
    let device = MemoryDevice::new(STORE_BYTES);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let options = OpenOptions { max_size_bytes: Some(STORE_BYTES), ..OpenOptions::default() };
    let store = Store::open(Arc::clone(&device), &options).unwrap().0;
    let create = |id| Op::Create { id, opts: plain(ReadCheck::Caller) };
    commit(&store, vec![create(DELETED), Op::Append { id: DELETED, at: 0, data: bytes(12 << 20, 1) }]);
    commit(&store, vec![create(PUNCHED), Op::Create { id: LOG, opts: stream() }]);
    let (mut at, mut len) = (0, 1 << 20);
    while len >= 4096 {
        let op = Op::Append { id: PUNCHED, at, data: bytes(len, 2) };
        match store.commit(Txn::new().op(op), Ack::Durable).wait() {
            Ok(_) => at += len as u64,
            Err(StoreError::NoSpace { .. }) => len /= 2,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(at > 20 << 20, "{at} bytes fit");
    (device, store)
}

/// Punches every second piece of 32 KiB.
fn punch(store: &Store) {
    let len = store.stat(PUNCHED).unwrap().len;
    let pieces = (0..len).step_by(64 << 10);
    let punch = |at| Op::Punch { id: PUNCHED, range: at..at + (32 << 10) };
    commit(store, pieces.map(punch).collect());
    // A record says that the punched space is reusable.
    store.checkpoint().unwrap();
}

/// Writes and flushes of each durable append of one page.
fn costs(store: &Store, appends: Range<u64>) -> Vec<(u64, u64)> {
    let cost = |number| {
        let before = store.counters();
        store.append_frame(LOG, bytes(512, number), None, Ack::Durable).wait().unwrap();
        let done = store.counters() - before;
        (done.writes, done.flushes)
    };
    appends.map(cost).collect()
}

fn with_metadata(costs: &[(u64, u64)]) -> usize {
    costs.iter().filter(|&&cost| cost != (1, 0)).count()
}

/// Symptom: in a store that was filled up and punched in pieces, each durable append took two writes and a
/// flush, also after space came free in one run.
/// Cause: an extent that found no run of its length in written space fell to the pages of one frame there,
/// before new space was prepared.
/// Fix: an extent is halved down to 64 KiB, then new space is prepared, and only then a shorter run is used.
#[test]
fn an_append_changes_no_metadata_where_written_space_is_in_pieces() {
    let (_device, store) = full_store();
    punch(&store);
    commit(&store, vec![Op::Delete { id: DELETED }]);
    store.checkpoint().unwrap();
    let costs = costs(&store, 0..1000);
    // 1,000 pages in extents of 1 MiB and longer ones.
    assert!(with_metadata(&costs) <= 4, "{} of 1,000 appends entered an extent", with_metadata(&costs));
}

/// If no free run anywhere is longer than 32 KiB, an extent has that length, and not that of one frame.
#[test]
fn an_extent_is_as_long_as_the_pieces_of_free_space() {
    let (_device, store) = full_store();
    punch(&store);
    let costs = costs(&store, 0..800);
    assert!(with_metadata(&costs) <= 110, "{} of 800 appends entered an extent", with_metadata(&costs));
}

/// A stream that is deleted and made again, as logs are, goes round in its own space, though others write and
/// delete all around it.
#[test]
fn a_stream_gets_the_extents_that_streams_gave_up() {
    const ROUNDS: u64 = 30;
    let (device, store) = full_store();
    commit(&store, vec![Op::Delete { id: DELETED }]);
    store.checkpoint().unwrap();
    costs(&store, 0..600);
    let before = device.counters();
    let (mut entered, mut data_pages) = (0, 0);
    for round in 0..ROUNDS {
        commit(&store, vec![Op::Delete { id: LOG }, Op::Create { id: LOG, opts: stream() }]);
        store.checkpoint().unwrap();
        for n in 0..30 {
            let (id, old) = (ObjectId(100 + round * 30 + n), ObjectId((40 + round * 30 + n).max(100)));
            let pages = 1 + n as usize;
            let mut ops = vec![Op::Create { id, opts: plain(ReadCheck::Caller) }];
            ops.push(Op::Append { id, at: 0, data: bytes(4096 * pages, n) });
            ops.extend((round >= 2).then_some(Op::Delete { id: old }));
            commit(&store, ops);
            data_pages += pages as u64;
        }
        entered += with_metadata(&costs(&store, 0..600));
    }
    let done = device.counters() - before;
    let pages = done.write_bytes / 4096 - data_pages - ROUNDS * 600;
    // Extents of 1 MiB, none of them cut by others; records and checkpoints, but no zeros.
    assert!(entered as u64 <= 3 * ROUNDS, "{entered} appends entered an extent");
    assert!(pages <= 50 * ROUNDS, "{pages} pages besides the data");
    // Kept extents are free for all: everything that was free can be written.
    commit(&store, vec![Op::Delete { id: LOG }]);
    store.checkpoint().unwrap();
    let report = store.check(&CheckOptions { data: true, repair: false }).unwrap();
    assert!(report.is_clean(), "{:?}", report.damages);
    let left = store.space().free_bytes as usize / 4096 * 4096;
    let (id, data) = (ObjectId(99), bytes(left - (64 << 10), 9));
    commit(&store, vec![Op::Create { id, opts: plain(ReadCheck::Caller) }, Op::Append { id, at: 0, data }]);
    assert!(store.space().free_bytes <= 64 << 10);
}
