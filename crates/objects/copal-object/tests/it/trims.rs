//! Trimmed frames: damaged or lost, they affect no frame that is kept or appended later.

use crate::basics::{bytes, commit, open, stream};
use copal_device::{
    Device,
    fault::{Fault, FaultDevice},
};
use copal_object::*;
use std::sync::Arc;

const LOG: ObjectId = ObjectId(1);

/// A store with a stream of ten frames, the last one acknowledged with `last`.
fn ten_frames(last: Ack) -> (Arc<FaultDevice>, Store) {
    let device = FaultDevice::new(64 << 20, 1);
    let dynamic: Arc<dyn Device> = device.clone();
    Store::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
    let store = open(&dynamic);
    let opts = stream();
    commit(&store, vec![Op::Create { id: LOG, opts }]);
    for n in 0..10u8 {
        let ack = if n == 9 { last } else { Ack::Durable };
        let payload = vec![0xa0 + n; 200].into();
        store.append_frame(LOG, payload, None, ack).wait().unwrap();
    }
    (device, store)
}

fn trim(upto: u64) -> Op {
    let upto = FramePos(upto);
    Op::TrimStream { id: LOG, upto }
}

/// Position of frame `n` of [`ten_frames`].
fn place_of(device: &FaultDevice, n: u8) -> u64 {
    let image = device.image();
    let mut pages = (0..image.size() / 4096).map(|page| page * 4096);
    let found = pages.find(|&at| {
        let mut page = [0; 264];
        image.read(at, &mut page);
        page[64..].iter().all(|&byte| byte == 0xa0 + n)
    });
    found.expect("the frame is somewhere")
}

/// Numbers of the readable frames, from the first kept one on.
fn kept(store: &Store) -> Vec<u64> {
    let mut frames = store.frames(LOG, FramePos(0)).unwrap();
    std::iter::from_fn(|| frames.next_frame().unwrap()).map(|(pos, _)| pos.0).collect()
}

/// Two more frames get the next numbers, and are readable at once and after two reopens.
fn continues_at_ten(device: &Arc<dyn Device>) {
    let (store, report) = Store::open(device.clone(), &OpenOptions::default()).unwrap();
    assert!(report.damaged_streams.is_empty(), "{report:?}");
    assert_eq!(kept(&store), []);
    for number in [10, 11] {
        let next = store.append_frame(LOG, bytes(9, number), None, Ack::Durable).wait();
        assert_eq!(next.unwrap(), FramePos(number));
    }
    assert_eq!(kept(&store), [10, 11]);
    drop(store);
    for _ in 0..2 {
        let (store, report) = Store::open(device.clone(), &OpenOptions::default()).unwrap();
        assert!(report.damaged_streams.is_empty(), "{report:?}");
        assert_eq!(kept(&store), [10, 11]);
        let report = store.check(&CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{:?}", report.damages);
        store.close().unwrap();
    }
}

/// Symptom: a frame acknowledged as durable was never read.
/// Cause: a power cut kept the trim and lost the last trimmed frame, which was not durable yet. The stream
/// continued with that frame's number, and readers begin at the trim.
/// Fix: a stream ends at its trim or later, and continues there in newly used space.
#[test]
fn a_stream_whose_last_trimmed_frame_was_lost_goes_on_at_its_trim() {
    let (device, store) = ten_frames(Ack::Ordered);
    let txn = Txn::new().op(trim(10));
    store.commit(txn, Ack::Written).wait().unwrap();
    // Frame and trim belong to one epoch, which was not flushed: any part of it may be lost.
    let mut crashed = device.image();
    crashed.write(place_of(&device, 9), &[0; 4096]);
    drop(store);
    let device: Arc<dyn Device> = FaultDevice::from_image(crashed, 2);
    continues_at_ten(&device);
}

/// See [`a_stream_whose_last_trimmed_frame_was_lost_goes_on_at_its_trim`].
/// Symptom: with bit rot there instead, a closed stream was damaged for good, although no caller needed the
/// frame.
#[test]
fn a_stream_whose_trimmed_frames_rot_goes_on_at_its_trim() {
    for rotten in [vec![9], vec![8, 9], vec![0, 3, 9], (0..10).collect()] {
        for (closed, reopened) in [(false, false), (true, false), (false, true), (true, true)] {
            let (device, store) = ten_frames(Ack::Durable);
            commit(&store, vec![trim(10)]);
            let places: Vec<u64> = rotten.iter().map(|&n| place_of(&device, n)).collect();
            if closed {
                store.close().unwrap();
            }
            drop(store);
            if reopened {
                // The frames are then in a separate piece.
                drop(open(&(device.reopen() as Arc<dyn Device>)));
            }
            let device = device.reopen();
            for at in places {
                device.inject(Fault::BitFlip { at: at + 100, bit: 1 });
            }
            let device: Arc<dyn Device> = device;
            continues_at_ten(&device);
        }
    }
}

/// Bit rot at the trim and before it: the kept frames are damaged, and that is reported after any kind of
/// close.
#[test]
fn rot_across_the_trim_is_damage_of_the_first_kept_frame() {
    let (device, store) = ten_frames(Ack::Durable);
    commit(&store, vec![trim(8)]);
    let places: Vec<u64> = (5..9).map(|n| place_of(&device, n)).collect();
    drop(store);
    let device = device.reopen();
    for at in places {
        device.inject(Fault::BitFlip { at: at + 100, bit: 1 });
    }
    for _ in 0..2 {
        let device: Arc<dyn Device> = device.reopen();
        let (store, report) = Store::open(device, &OpenOptions::default()).unwrap();
        assert_eq!(report.damaged_streams, [LOG]);
        let next = store.append_frame(LOG, bytes(9, 9), None, Ack::Durable).wait();
        let at_the_trim =
            |error: &StoreError| matches!(error, StoreError::Corrupt { range, .. } if *range == (8..9));
        assert!(next.as_ref().is_err_and(at_the_trim), "{next:?}");
        let mut frames = store.frames(LOG, FramePos(0)).unwrap();
        let read = frames.next_frame();
        assert!(read.as_ref().is_err_and(at_the_trim), "{read:?}");
    }
}

/// A trim beyond the end trims up to the end: it hides no later frame.
#[test]
fn a_trim_beyond_the_end_hides_no_later_frame() {
    let (device, store) = ten_frames(Ack::Durable);
    commit(&store, vec![trim(u64::MAX)]);
    drop(store);
    let device: Arc<dyn Device> = device.reopen();
    continues_at_ten(&device);
}
