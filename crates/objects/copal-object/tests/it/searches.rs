//! Finding a frame in a stream: the number of reads does not depend on the number of frames.

use crate::basics::{commit, open, stream};
use copal_device::{Device, MemoryDevice};
use copal_object::*;
use std::sync::Arc;

const LOG: ObjectId = ObjectId(1);

/// Name, length by number, number of frames, and bounds for the most reads and for their mean in hundredths.
type SearchCase<'a> = (&'a str, &'a dyn Fn(u64) -> usize, u64, (u64, u64));

/// A store with a stream of `frames` frames, of lengths that `len` gives. Frames begin with their number.
fn frames(frames: u64, len: &dyn Fn(u64) -> usize) -> (Arc<dyn Device>, Store) {
    let device: Arc<dyn Device> = MemoryDevice::new(512 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let store = open(&device);
    commit(&store, vec![Op::Create { id: LOG, opts: stream() }]);
    for number in 0..frames {
        let mut payload = vec![0; len(number)];
        payload[..8].copy_from_slice(&number.to_le_bytes());
        store.append_frame(LOG, payload.into(), None, Ack::Written).wait().unwrap();
    }
    (device, store)
}

/// Most reads, and their mean in hundredths, to find and read one frame, over many frames.
fn reads_of_one(store: &Store, frames: u64) -> (u64, u64) {
    let (mut most, mut all, mut tried) = (0, 0, 0);
    for number in (0..frames).step_by((frames / 97).max(1) as usize).chain([frames - 1]) {
        let before = store.counters().reads;
        let (pos, payload) = store.frames(LOG, FramePos(number)).unwrap().next_frame().unwrap().unwrap();
        assert_eq!((pos.0, &payload[..8]), (number, &number.to_le_bytes()[..]));
        let reads = store.counters().reads - before;
        most = most.max(reads);
        all += reads;
        tried += 1;
    }
    (most, all * 100 / tried)
}

#[test]
#[expect(clippy::print_stdout, reason = "the counts are a result")]
fn a_frame_is_found_in_few_reads_however_many_there_are() {
    let one_page = |_| 100;
    let random = |number: u64| {
        let drawn = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        8 + [100, 3000, 20_000, 60_000][drawn as usize % 4]
    };
    let two_halves = |number: u64| if number < 1500 { 100 } else { 100_000 };
    let cases: [SearchCase<'_>; 5] = [
        ("1,000 of a page", &one_page, 1000, (1, 100)),
        ("30,000 of a page", &one_page, 30_000, (1, 100)),
        ("300 of 1 to 15 pages", &random, 300, (3, 200)),
        ("3,000 of 1 to 15 pages", &random, 3000, (3, 200)),
        ("1,500 of 1 page and 1,500 of 25", &two_halves, 3000, (7, 300)),
    ];
    for (name, len, count, (most, mean)) in cases {
        let (device, store) = frames(count, len);
        let written = reads_of_one(&store, count);
        drop(store);
        let store = open(&device);
        let reopened = reads_of_one(&store, count);
        println!("{name}: most and mean (hundredths) {written:?}, after a reopen {reopened:?}");
        assert!(written.0 <= most && reopened.0 <= most, "{name}: {written:?}, {reopened:?}");
        assert!(written.1 <= mean && reopened.1 <= mean, "{name}: {written:?}, {reopened:?}");
    }
}

/// Damage of earlier frames does not hide a frame, and each frame is still read in order behind it.
#[test]
fn a_frame_behind_damage_is_found() {
    let (device, store) = frames(2000, &|_| 100);
    store.close().unwrap();
    drop(store);
    let mut page = vec![0; 4096];
    let mut rotten = 0;
    for at in (0..(512u64 << 20) / 4096).map(|page| page * 4096) {
        page = device.read_now(at, copal_device::AlignedBuf::padded(&page, 1)).unwrap().to_vec();
        let number = u64::from_le_bytes(page[64..72].try_into().unwrap());
        if page[..4] == *b"CPFM" && number % 10 == 5 {
            page[100] ^= 1;
            device.write_through(at, copal_device::AlignedBuf::padded(&page, 1)).unwrap();
            rotten += 1;
        }
    }
    assert_eq!(rotten, 200);
    let store = open(&device);
    for number in 0..2000 {
        let read = store.frames(LOG, FramePos(number)).unwrap().next_frame();
        match number % 10 {
            5 => assert!(read.as_ref().is_err_and(StoreError::is_corruption), "{number}: {read:?}"),
            _ => assert_eq!(read.unwrap().unwrap().0, FramePos(number)),
        }
    }
}
