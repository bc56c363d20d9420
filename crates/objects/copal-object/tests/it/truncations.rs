//! Streams that are cut at their end: the frames that are gone, and the ones that follow.

use crate::{
    basics::{bytes, commit, open, stream},
    conformance::Make,
};
use copal_device::{
    Device, MemoryDevice,
    fault::{Fault, FaultDevice},
};
use copal_object::*;
use std::sync::Arc;

const LOG: ObjectId = ObjectId(1);

fn cut(from: u64) -> Op {
    Op::TruncateStream { id: LOG, from: FramePos(from) }
}

fn append(store: &Store, number: u64, seed: u64, ack: Ack) {
    let payload = bytes(100 + 900 * (seed as usize % 7), seed);
    assert_eq!(store.append_frame(LOG, payload, None, ack).wait().unwrap(), FramePos(number));
}

/// Payloads of all frames, as the seeds of [`append`].
fn holds(store: &Store, seeds: &[u64]) {
    let mut reader = store.frames(LOG, FramePos(0)).unwrap();
    for (number, &seed) in seeds.iter().enumerate() {
        let (pos, payload) = reader.next_frame().unwrap().unwrap();
        assert_eq!((pos.0, payload), (number as u64, bytes(100 + 900 * (seed as usize % 7), seed)));
    }
    assert!(reader.next_frame().unwrap().is_none());
    let report = store.check(&CheckOptions { data: true, ..CheckOptions::default() }).unwrap();
    assert!(report.is_clean(), "{:?}", report.damages);
}

/// Part of the conformance suite: every place in a stream, with frames that wait for a flush, reopened or not.
pub(crate) fn a_stream_continues_where_it_was_cut(make: Make) {
    for from in [0, 1, 7, 19, 20] {
        let (backend, store) = make();
        commit(&store, vec![Op::Create { id: LOG, opts: stream() }]);
        let mut seeds: Vec<u64> = (0..20).collect();
        for &seed in &seeds {
            append(&store, seed, seed, [Ack::Durable, Ack::Ordered, Ack::Written][seed as usize % 3]);
        }
        commit(&store, vec![cut(from)]);
        seeds.truncate(from as usize);
        holds(&store, &seeds);
        for seed in 100..105 {
            append(&store, seeds.len() as u64, seed, Ack::Durable);
            seeds.push(seed);
        }
        holds(&store, &seeds);
        // Twice more, the second time the new frames too.
        commit(&store, vec![cut(from + 3), cut(from + 2)]);
        seeds.truncate(from as usize + 2);
        append(&store, from + 2, 200, Ack::Durable);
        seeds.push(200);
        drop(store);
        let store = backend.open();
        holds(&store, &seeds);
        store.close().unwrap();
        drop(store);
        let store = backend.open();
        holds(&store, &seeds);
        append(&store, from + 3, 201, Ack::Durable);
        let refused = |from, frames| {
            let error = store.commit(Txn::new().op(cut(from)), Ack::Durable).wait().unwrap_err();
            let is_it = matches!(&error, StoreError::FrameRange { frames: found, .. } if *found == frames);
            assert!(is_it, "{error}");
        };
        refused(from + 5, 0..from + 4);
        commit(&store, vec![Op::TrimStream { id: LOG, upto: FramePos(from + 2) }]);
        refused(from + 1, from + 2..from + 4);
        commit(&store, vec![cut(from + 2)]);
        append(&store, from + 2, 202, Ack::Durable);
    }
}

/// All space of a cut comes back: a stream of long pieces that is filled and cut again and again.
#[test]
fn cut_frames_give_their_space_back() {
    let device: Arc<dyn Device> = MemoryDevice::new(64 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let store = open(&device);
    commit(&store, vec![Op::Create { id: LOG, opts: stream() }]);
    append(&store, 0, 0, Ack::Durable);
    for _ in 0..40 {
        for number in 1..40 {
            let pos = store.append_frame(LOG, bytes(200_000, number), None, Ack::Written).wait().unwrap();
            assert_eq!(pos, FramePos(number));
        }
        commit(&store, vec![cut(1)]);
    }
    holds(&store, &[0]);
    assert!(store.stat(LOG).unwrap().allocated_bytes < 20 << 20);
}

/// A caller that waits for a frame learns that the frame is gone. One that wrote it durably at the same time does
/// too, and a commit that comes after the frame is acknowledged.
#[test]
fn callers_that_wait_for_a_cut_frame_are_answered() {
    let device = FaultDevice::new(64 << 20, 1);
    let dynamic: Arc<dyn Device> = device.clone();
    Store::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
    let store = open(&dynamic);
    commit(&store, vec![Op::Create { id: LOG, opts: stream() }]);
    append(&store, 0, 0, Ack::Durable);
    let frame = store.reserve_frame(LOG, &bytes(100, 1), None, Ack::Durable).unwrap();
    assert_eq!(frame.at(), FramePos(1));
    let after = Txn::new().create(ObjectId(2), CreateOptions::default()).after(LOG, FramePos(1));
    let after = store.commit(after, Ack::Durable);
    let queued = store.append_frame(LOG, bytes(100, 2), None, Ack::Durable);
    let cut = store.commit(Txn::new().op(cut(1)), Ack::Durable);
    let is_cut = |result: Result<FramePos, StoreError>, number| {
        let error = result.unwrap_err();
        assert!(matches!(error, StoreError::FrameCut { frame, .. } if frame.0 == number), "{error}");
    };
    is_cut(queued.wait(), 2);
    is_cut(frame.write().wait(), 1);
    after.wait().unwrap();
    cut.wait().unwrap();
    append(&store, 1, 3, Ack::Durable);
    holds(&store, &[0, 3]);
}

/// A stream with damaged frames is cut before them, and can then be copied again from elsewhere.
#[test]
fn a_damaged_stream_is_cut_and_takes_frames_again() {
    for from in [4, 5] {
        let device = FaultDevice::new(64 << 20, 1);
        let dynamic: Arc<dyn Device> = device.clone();
        Store::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
        let store = open(&dynamic);
        commit(&store, vec![Op::Create { id: LOG, opts: stream() }]);
        (0..10).for_each(|seed| append(&store, seed, seed, Ack::Durable));
        drop(store);
        let image = device.image();
        let wanted = bytes(100 + 900 * 5, 5).slice(..1000);
        let mut page = vec![0; 1064];
        let at = (0..image.size() / 4096).map(|page| page * 4096).find(|&at| {
            image.read(at, &mut page);
            page[64..] == wanted
        });
        let device = device.reopen();
        device.inject(Fault::BitFlip { at: at.expect("frame 5 is somewhere") + 200, bit: 1 });
        let dynamic: Arc<dyn Device> = device.clone();
        let (store, report) = Store::open(dynamic.clone(), &OpenOptions::default()).unwrap();
        assert_eq!(report.damaged_streams, [LOG]);
        commit(&store, vec![cut(from)]);
        let mut seeds: Vec<u64> = (0..from).collect();
        for seed in 50..53 {
            append(&store, seeds.len() as u64, seed, Ack::Durable);
            seeds.push(seed);
        }
        holds(&store, &seeds);
        drop(store);
        let dynamic: Arc<dyn Device> = device.reopen();
        let (store, report) = Store::open(dynamic, &OpenOptions::default()).unwrap();
        assert!(report.damaged_streams.is_empty());
        holds(&store, &seeds);
    }
}
