//! A check of a store that is open for reading only leaves out bytes that readers have verified, and no other ones.

use crate::basics::{bytes, commit, open, plain};
use copal_device::{Device, Image, MemoryDevice, fault::*};
use copal_object::*;
use std::{ops::Range, slice::from_ref, sync::Arc};

const SIZE: u64 = 64 << 20;
const UNIT: u64 = 64 << 10;
const CALLER: ObjectId = ObjectId(1);
/// Bytes of its last page.
const REST: u64 = 1000;

/// A store with an object of four units and a few bytes that its owner verifies, and one of pages.
fn image() -> Image {
    let options =
        FaultOptions { order: CompletionOrder::Immediate, record: false, ..FaultOptions::default() };
    let device = FaultDevice::with_options(Image::zeroed(SIZE), options);
    let dyn_device: Arc<dyn Device> = device.clone();
    let options = MkfsOptions { journal_bytes: Some(32 * 4096), ..MkfsOptions::default() };
    Store::mkfs(&dyn_device, &options).unwrap();
    let store = open(&dyn_device);
    commit(
        &store,
        vec![
            Op::Create { id: CALLER, opts: plain(ReadCheck::Caller) },
            Op::Append { id: CALLER, at: 0, data: bytes((4 * UNIT + REST) as usize, 1) },
            Op::Create { id: ObjectId(2), opts: plain(ReadCheck::Pages) },
            Op::Append { id: ObjectId(2), at: 0, data: bytes(9000, 2) },
        ],
    );
    store.close().unwrap();
    device.image()
}

fn place_of(image: &Image, wanted: &[u8]) -> u64 {
    let mut page = vec![0; wanted.len()];
    let found = (0..SIZE / 4096).map(|number| number * 4096).find(|at| {
        image.read(*at, &mut page);
        page == wanted
    });
    found.expect("the object lies on whole pages")
}

/// Damaged ranges that a check finds after `noted` were verified, and the bytes that it read.
fn checked(image: &Image, read_only: bool, noted: &[Range<u64>]) -> (Vec<Range<u64>>, u64) {
    let device: Arc<dyn Device> = MemoryDevice::from_image(image.clone(), SIZE);
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    let (store, _) = Store::open(Arc::clone(&device), &options).unwrap();
    store.note_verified(CALLER, &(0..u64::MAX));
    store.note_verified_ranges();
    noted.iter().for_each(|range| store.note_verified(CALLER, range));
    let before = device.counters().read_bytes;
    let report = store.check(&CheckOptions { data: true, repair: false }).unwrap();
    let read = device.counters().read_bytes - before;
    let damaged = report.damages.into_iter().map(|damage| match damage {
        StoreDamage::Object { id, range } => {
            assert_eq!(id, CALLER);
            range
        }
        other => panic!("{other}"),
    });
    (damaged.collect(), read)
}

#[test]
fn a_check_reads_no_unit_all_of_whose_bytes_are_verified() {
    let image = image();
    let (damaged, all) = checked(&image, true, &[]);
    assert!(damaged.is_empty() && all > 4 * UNIT);
    let (_, read) = checked(&image, true, from_ref(&(0..UNIT)));
    assert_eq!(read, all - UNIT);
    let (_, read) = checked(&image, true, &[UNIT..2 * UNIT, 0..UNIT, 3 * UNIT..4 * UNIT + 1]);
    assert_eq!(read, all - 3 * UNIT);
    // Two halves of a unit are all of it; all but one byte is not.
    let (_, read) = checked(&image, true, &[100..UNIT, 0..200]);
    assert_eq!(read, all - UNIT);
    let (_, read) = checked(&image, true, &[0..UNIT - 1, UNIT + 1..2 * UNIT]);
    assert_eq!(read, all);
    // The padding behind the last byte has a sum, too.
    let (_, read) = checked(&image, true, from_ref(&(4 * UNIT..4 * UNIT + REST)));
    assert_eq!(read, all);
}

#[test]
fn a_store_that_may_be_written_is_read_as_a_whole() {
    let image = image();
    let (_, all) = checked(&image, false, &[]);
    let (_, read) = checked(&image, false, from_ref(&(0..4 * UNIT)));
    assert_eq!(read, all);
}

/// A bit is flipped in each page of the object in turn: the check finds it unless a reader has compared its whole unit.
#[test]
fn a_flip_in_bytes_that_no_reader_has_verified_is_found() {
    let image = image();
    let content = bytes((4 * UNIT + REST) as usize, 1);
    let (first, last) = (place_of(&image, &content[..4096]), place_of(&image, &content[4 * UNIT as usize..]));
    let noted = [0..UNIT, 2 * UNIT..3 * UNIT - 4096, 4 * UNIT..4 * UNIT + REST];
    let places = (0..4 * UNIT).step_by(4093).map(|at| (at, first + at));
    // Bytes of the last page, and its padding.
    let last = [0, REST - 1, REST, 4095].map(|at| (4 * UNIT + at, last + at));
    for (at, place) in places.chain(last) {
        let mut flipped = image.clone();
        let mut byte = [0];
        flipped.read(place, &mut byte);
        flipped.write(place, &[byte[0] ^ 0x10]);
        let (damaged, _) = checked(&flipped, true, &noted);
        let is_left_out = at < UNIT;
        assert_eq!(damaged.len(), usize::from(!is_left_out), "byte {at}: {damaged:?}");
    }
}
