//! Several durable frames of one stream in flight at the same time.

use crate::basics::{bytes, commit, open, stream};
use copal_device::{Device, MemoryDevice};
use copal_object::*;
use copal_testkit::GatedDevice;
use std::sync::{Arc, mpsc};

const LOG: ObjectId = ObjectId(7);

type Answer = (usize, Result<FramePos, StoreError>);

/// Three frames at the gate, numbered in append order; answers carry the number of the append.
fn three_on_their_way(
    device: &Arc<GatedDevice>,
    body: impl FnOnce(&Arc<GatedDevice>, &mpsc::Receiver<Answer>, &Store),
) -> Arc<dyn Device> {
    let dynamic: Arc<dyn Device> = device.clone();
    Store::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
    let store = open(&dynamic);
    commit(&store, vec![Op::Create { id: LOG, opts: stream() }]);
    // The first frame enters space and waits for that; from then on a single frame is one durable write.
    let append = |i: u64, placed: &mut dyn FnMut(FramePos)| {
        let frame = store.reserve_frame(LOG, &bytes(100, i), None, Ack::Durable)?;
        placed(frame.at());
        frame.write().wait()
    };
    append(0, &mut |_| {}).unwrap();
    device.change(|gate| gate.shut = true);
    std::thread::scope(|scope| {
        let _opens = device.open_at_end();
        let (answer, answers) = mpsc::channel();
        for i in 0..3 {
            let (answer, append) = (answer.clone(), &append);
            let (placed, placed_at) = mpsc::channel();
            scope.spawn(move || {
                let result = append(i as u64 + 1, &mut |at| placed.send(at).unwrap());
                answer.send((i, result)).unwrap();
            });
            // The number is assigned while the write still waits at the gate.
            assert_eq!(placed_at.recv().unwrap(), FramePos(i as u64 + 1));
            device.wait(|gate| gate.came == i + 1);
        }
        body(device, &answers, &store);
    });
    dynamic
}

#[test]
fn durable_frames_overlap_and_are_acknowledged_in_their_order() {
    let device = GatedDevice::new(MemoryDevice::new(64 << 20));
    let dynamic = three_on_their_way(&device, |device, answers, _| {
        device.let_through(2);
        device.let_through(1);
        // Both are on the medium once their threads have checked the first one; neither may be acknowledged
        // before the first is written.
        device.wait(|gate| gate.done == 2);
        assert!(answers.try_recv().is_err(), "acknowledged before an earlier frame");
        device.let_through(0);
        let mut told: Vec<_> = answers.iter().take(3).map(|(i, r)| (i, r.unwrap())).collect();
        told.sort_unstable_by_key(|(i, _)| *i);
        assert_eq!(told, [(0, FramePos(1)), (1, FramePos(2)), (2, FramePos(3))]);
    });
    let store = open(&dynamic);
    let mut reader = store.frames(LOG, FramePos(0)).unwrap();
    for i in 0..4 {
        assert_eq!(reader.next_frame().unwrap(), Some((FramePos(i), bytes(100, i))));
    }
    assert_eq!(reader.next_frame().unwrap(), None);
}

#[test]
fn a_frame_behind_one_that_failed_is_never_acknowledged_and_never_read() {
    let device = GatedDevice::new(MemoryDevice::new(64 << 20));
    device.change(|gate| gate.fails = Some(0));
    let dynamic = three_on_their_way(&device, |device, answers, store| {
        device.let_through(1);
        device.let_through(2);
        device.wait(|gate| gate.done == 2);
        device.let_through(0);
        for (i, result) in answers.iter().take(3) {
            assert!(matches!(result, Err(StoreError::Device(_))), "{i}: {result:?}");
        }
        assert!(matches!(
            store.append_frame(LOG, bytes(1, 9), None, Ack::Durable).wait(),
            Err(StoreError::Fenced)
        ));
    });
    let store = open(&dynamic);
    let mut reader = store.frames(LOG, FramePos(0)).unwrap();
    assert_eq!(reader.next_frame().unwrap(), Some((FramePos(0), bytes(100, 0))));
    assert_eq!(reader.next_frame().unwrap(), None, "the hole ends the log");
}

#[test]
fn a_frame_that_was_reserved_and_dropped_is_written_as_any_other() {
    let device: Arc<dyn Device> = MemoryDevice::new(64 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let store = open(&device);
    let ops = vec![Op::Create { id: LOG, opts: stream() }];
    commit(&store, ops);
    let append = |i: u64, ack: Ack| store.append_frame(LOG, bytes(100, i), None, ack).wait().unwrap();
    append(0, Ack::Durable);
    // One is a separate write, the other waits for a flush with others.
    drop(store.reserve_frame(LOG, &bytes(100, 1), None, Ack::Durable).unwrap());
    append(2, Ack::Ordered);
    drop(store.reserve_frame(LOG, &bytes(100, 3), None, Ack::Durable).unwrap());
    assert_eq!(append(4, Ack::Durable), FramePos(4), "behind a hole nothing is durable");
    drop(store);
    let store = open(&device);
    let mut reader = store.frames(LOG, FramePos(0)).unwrap();
    for i in 0..5 {
        assert_eq!(reader.next_frame().unwrap(), Some((FramePos(i), bytes(100, i))));
    }
}
