//! Cost of a frame, independent of the number of waiting frames; and the time when a frame counts as written.

use super::{PendingFrame, PendingFrames};
use crate::{
    Ack, CreateOptions, MkfsOptions, ObjectId, ObjectKind, ObjectLifetime, OpenOptions, ReadCheck, Store, Txn,
};
use bytes::Bytes;
use copal_device::{Completion, Device, MemoryDevice};
use std::sync::Arc;

/// Symptom: with a written frame per put a load took five times the processor time of one with grouped puts,
/// and ever more per frame.
/// Cause: each completed write walked over all frames that waited for the next flush, twice.
/// Fix: the answered frames at the front are counted and not visited again.
#[test]
fn the_cost_of_a_written_frame_does_not_grow_with_waiting_frames() {
    const FRAMES: u64 = 1000;
    let device: Arc<dyn Device> = MemoryDevice::new(64 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let (store, _) = Store::open(device, &OpenOptions::default()).unwrap();
    let id = ObjectId(7);
    let opts = CreateOptions {
        kind: ObjectKind::Stream,
        lifetime: ObjectLifetime::Short,
        expected_bytes: 0,
        check: ReadCheck::Caller,
        label: [0; 16],
    };
    let create = Txn::new().create(id, opts);
    store.commit(create, Ack::Durable).wait().unwrap();
    for _ in 0..FRAMES {
        let payload = Bytes::from_static(b"frame");
        store.append_frame(id, payload, None, Ack::Written).wait().unwrap();
    }
    let visited = store.inner.state.lock().streams.tail(id.0).unwrap().pending.visited.get();
    // One visit to answer it, and the visits of a binary search among a thousand.
    assert!(visited <= 16 * FRAMES, "{FRAMES} frames were visited {visited} times");
    // The flush they waited for makes all of them durable.
    store.append_frame(id, Bytes::new(), None, Ack::Durable).wait().unwrap();
    assert!(store.inner.state.lock().streams.tail(id.0).unwrap().pending.is_empty());
}

/// Symptom: rarely, a kill lost an acknowledged written frame. It followed a deferred write of a value in an
/// object of its own.
/// Cause: a frame was acknowledged as written as soon as its own commit was. A frame before it, without a
/// waiter, needed a later commit; without that commit the stream ends before both.
/// Fix: a waiter waits for the commits of all earlier frames.
#[test]
fn a_frame_is_written_when_the_commits_of_all_before_it_are() {
    let mut pending = PendingFrames::default();
    let (completer, _completion) = Completion::pair(None);
    for (frame, needs_lsn, waiter) in [(0, 9, None), (1, 3, Some((Ack::Written, completer)))] {
        pending.push(PendingFrame {
            ticket: frame + 1,
            frame,
            at: 0,
            epoch: Some(1),
            written: true,
            durable: false,
            needs_lsn,
            waiter,
            groups: Vec::new(),
        });
    }
    for (written_lsn, answered) in [(3, 0), (8, 0), (9, 1)] {
        let mut answers = Vec::new();
        pending.acknowledge_written(written_lsn, &mut answers);
        assert_eq!(answers.len(), answered, "with commits up to {written_lsn} written");
    }
}
