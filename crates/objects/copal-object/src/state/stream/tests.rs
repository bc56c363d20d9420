//! Cost of one operation, independent of the number of streams beside it.

use crate::{
    Ack, CreateOptions, MkfsOptions, ObjectId, ObjectKind, Op, OpenOptions, Store, Txn,
    format::ops::DurableFrames, open::OpenOverrides,
};
use bytes::Bytes;
use copal_device::{Device, MemoryDevice};
use std::sync::Arc;

const LOG: ObjectId = ObjectId(1);
const PLAIN: ObjectId = ObjectId(2);

fn stream() -> CreateOptions {
    CreateOptions { kind: ObjectKind::Stream, ..CreateOptions::default() }
}

/// A store with a log, a plain object, and `others` more streams. Its stream extents have one page.
fn store_with_streams(others: u64) -> Store {
    let device: Arc<dyn Device> = MemoryDevice::new(256 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let tuning = OpenOverrides { stream_extent_pages: Some(1), ..OpenOverrides::default() };
    let (store, _) = Store::open_tuned(device, &OpenOptions::default(), tuning).unwrap();
    let ids: Vec<u64> = (100..100 + others).collect();
    for part in ids.chunks(1000) {
        let ops = part.iter().map(|&id| Op::Create { id: ObjectId(id), opts: stream() });
        store.commit(Txn::new().ops(ops), Ack::Durable).wait().unwrap();
    }
    let txn = Txn::new().create(LOG, stream()).create(PLAIN, CreateOptions::default());
    store.commit(txn, Ack::Durable).wait().unwrap();
    store
}

fn frame(store: &Store, stream: ObjectId, ack: Ack) {
    store.append_frame(stream, Bytes::from_static(b"frame"), None, ack).wait().unwrap();
}

/// Streams visited by a hundred ordered commits, durable commits and durable frames each, and a checkpoint.
fn visited_by_operations(store: &Store) -> u64 {
    let before = store.inner.state.lock().streams.visited;
    for _ in 0..100 {
        for ack in [Ack::Ordered, Ack::Durable] {
            store.commit(Txn::new().write(PLAIN, 0, vec![7; 4096]), ack).wait().unwrap();
        }
        frame(store, LOG, Ack::Durable);
    }
    store.checkpoint().unwrap();
    store.inner.state.lock().streams.visited - before
}

/// Symptom: with 10,000 idle streams, a commit or a durable frame took 15 to 37 times the processor time that
/// it took with none.
/// Cause: each step of the engine walked over the tails of all streams.
/// Fix: sets list the streams with frames in flight, and those where an answer may be due.
#[test]
fn the_cost_of_an_operation_does_not_grow_with_idle_streams() {
    let alone = visited_by_operations(&store_with_streams(0));
    let beside = visited_by_operations(&store_with_streams(10_000));
    assert_eq!(beside, alone, "streams visited beside 10,000 idle ones");
    assert!(alone <= 2 * 100, "{alone} visits for 100 frames");
}

/// See [`the_cost_of_an_operation_does_not_grow_with_idle_streams`]: streams whose frames wait for the next
/// flush are idle too.
#[test]
fn the_cost_of_an_operation_does_not_grow_with_streams_that_wait_for_a_flush() {
    const OTHERS: u64 = 500;
    let store = store_with_streams(OTHERS);
    for id in 100..100 + OTHERS {
        frame(&store, ObjectId(id), Ack::Written);
    }
    let before = store.inner.state.lock().streams.visited;
    for _ in 0..100 {
        store.commit(Txn::new().write(PLAIN, 0, vec![7; 4096]), Ack::Ordered).wait().unwrap();
        frame(&store, LOG, Ack::Written);
    }
    let visited = store.inner.state.lock().streams.visited - before;
    assert!(visited <= 2 * 100, "{visited} visits for 100 commits and 100 frames");
    assert!(store.inner.state.lock().streams.has_pending_frames());
    // The next flush makes all of them durable; the mark after it names each.
    frame(&store, LOG, Ack::Durable);
    assert!(!store.inner.state.lock().streams.has_pending_frames());
    assert_eq!(store.inner.state.lock().streams.unnamed_frames().count() as u64, OTHERS + 1);
    assert!(store.write_clean_mark().unwrap());
    assert_eq!(store.inner.state.lock().streams.unnamed_frames().count(), 0);
}

/// A checkpoint names durable frames when it is durable itself; until then a clean mark names them.
#[test]
fn a_checkpoint_names_the_durable_frames_of_streams() {
    let store = store_with_streams(3);
    frame(&store, LOG, Ack::Durable);
    frame(&store, ObjectId(101), Ack::Durable);
    let number = |(id, durable): (u64, DurableFrames)| (id, durable.next);
    let unnamed = || store.inner.state.lock().streams.unnamed_frames().map(number).collect::<Vec<_>>();
    assert_eq!(unnamed(), [(LOG.0, 1), (101, 1)]);
    let named = store.inner.state.lock().streams.begin_checkpoint();
    assert_eq!(named.into_iter().map(number).collect::<Vec<_>>(), [(LOG.0, 1), (101, 1)]);
    assert_eq!(unnamed(), [(LOG.0, 1), (101, 1)], "the checkpoint is not durable yet");
    frame(&store, LOG, Ack::Durable);
    store.inner.state.lock().streams.end_checkpoint();
    assert_eq!(unnamed(), [(LOG.0, 2)], "this frame is younger than the checkpoint");
    store.checkpoint().unwrap();
    assert_eq!(unnamed(), []);
    let state = store.inner.state.lock();
    let durable = DurableFrames { next: 2, last: Some(0) };
    assert_eq!(state.tables.stream(LOG.0).unwrap().durable, durable);
}
