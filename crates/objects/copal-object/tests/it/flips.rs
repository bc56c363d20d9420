//! T5: a flipped byte anywhere in the file is repaired, reported by the opening, a read or the check, or lies
//! in free space. It never causes a panic or wrong data.

use crate::basics::{bytes, commit, open, plain, stream};
use bytes::Bytes;
use copal_device::{Device, Image, IoClass, MemoryDevice, fault::*};
use copal_object::*;
use std::{ops::Range, sync::Arc};

const PAGE: u64 = 4096;

/// State in which the store was left.
#[derive(Clone, Copy, PartialEq)]
enum Left {
    /// Closed.
    Closed,
    /// Killed, and reopened since.
    Opened,
    /// Killed after it had been idle.
    Marked,
}

/// A small store with one entry of each kind.
fn image(left: Left) -> Image {
    let device = FaultDevice::with_options(
        Image::zeroed(64 << 20),
        FaultOptions { order: CompletionOrder::Immediate, record: false, ..FaultOptions::default() },
    );
    let dyn_device: Arc<dyn Device> = device.clone();
    let options = MkfsOptions { journal_bytes: Some(32 * PAGE), ..MkfsOptions::default() };
    Store::mkfs(&dyn_device, &options).unwrap();
    let store = open(&dyn_device);
    commit(
        &store,
        vec![
            Op::Create { id: ObjectId(1), opts: plain(ReadCheck::Pages) },
            Op::Append { id: ObjectId(1), at: 0, data: bytes(5000, 1) },
            Op::Create { id: ObjectId(2), opts: plain(ReadCheck::Caller) },
            Op::Append { id: ObjectId(2), at: 0, data: bytes(9000, 2) },
            Op::Create { id: ObjectId(3), opts: stream() },
        ],
    );
    for frame in 0..3 {
        store.append_frame(ObjectId(3), bytes(100 + 3000 * frame, 3), None, Ack::Durable).wait().unwrap();
    }
    let mut writer = store.writer(ObjectId(4), plain(ReadCheck::Caller)).unwrap();
    writer.append(&bytes(4000, 4)).unwrap();
    commit(&store, vec![Op::Publish(writer.finish().unwrap())]);
    commit(&store, vec![Op::Clone { from: ObjectId(1), to: ObjectId(5) }]);
    match left {
        Left::Closed => store.close().unwrap(),
        Left::Opened => {
            drop(store);
            drop(open(&dyn_device));
        }
        Left::Marked => {
            assert!(store.write_clean_mark().unwrap());
            assert!(!store.write_clean_mark().unwrap(), "nothing happened since");
            drop(store);
        }
    }
    device.image()
}

/// Objects, frames, and whether the stream ends without damage.
type Contents = (Vec<(u64, Option<Bytes>)>, Vec<Option<Bytes>>, bool);

/// All content of the store; nothing for parts that it reports as damaged.
fn contents(store: &Store) -> Contents {
    let mut objects = Vec::new();
    for id in [1, 2, 4, 5] {
        match store.read(ObjectId(id), 0..u64::MAX, IoClass::Foreground).wait() {
            Ok(found) => objects.push((id, Some(found))),
            Err(error) => {
                assert!(error.is_corruption(), "{error}");
                objects.push((id, None));
            }
        }
    }
    let mut frames = Vec::new();
    let mut reader = store.frames(ObjectId(3), FramePos(0)).unwrap();
    let intact = loop {
        match reader.next_frame() {
            Ok(Some((_, payload))) => frames.push(Some(payload)),
            Ok(None) => break true,
            Err(error) => {
                assert!(error.is_corruption(), "{error}");
                break false;
            }
        }
    };
    (objects, frames, intact)
}

/// Outcome of a flip.
#[derive(Debug, PartialEq, Clone, Copy)]
enum Fate {
    OpenRefused,
    Repaired,
    Reported,
    Free,
}

fn fate(image: &Image, at: u64, expected: &Contents) -> Fate {
    let mut flipped = image.clone();
    let mut byte = [0];
    flipped.read(at, &mut byte);
    flipped.write(at, &[byte[0] ^ (1 << (at % 8))]);
    let device = MemoryDevice::from_image(flipped, u64::MAX);
    let (store, recovery) = match Store::open(Arc::clone(&device), &OpenOptions::default()) {
        Ok(opened) => opened,
        Err(StoreOpenError::NotAStore) => panic!("byte {at}: the store is not recognised any more"),
        Err(_) => return Fate::OpenRefused,
    };
    let report = store.check(&CheckOptions { data: true, repair: false }).unwrap();
    let found = contents(&store);
    for ((id, found), (_, expected)) in found.0.iter().zip(&expected.0) {
        match found {
            Some(found) if Some(found) != expected.as_ref() => {
                // The caller verifies; the check must report the damage too.
                let named = report.damages.iter().any(
                    |damage| matches!(damage, StoreDamage::Object { id: damaged, .. } if damaged.0 == *id),
                );
                assert!(named && [2, 4].contains(id), "byte {at}: object {id} reads wrong data unnoticed");
            }
            Some(_) => {}
            None => assert!(!report.is_clean(), "byte {at}: a read fails and the check reports nothing"),
        }
    }
    let frames = found.1.iter().zip(&expected.1).all(|(found, expected)| found == expected);
    assert!(frames, "byte {at}: a frame reads wrong");
    if !report.is_clean() || !found.2 {
        assert!(!report.is_clean(), "byte {at}: a stream is damaged and the check reports nothing");
        return Fate::Reported;
    }
    assert_eq!(found.1.len(), expected.1.len(), "byte {at}: frames are lost unnoticed");
    if recovery.superblock_copies_repaired + recovery.checkpoint_pages_repaired > 0 {
        Fate::Repaired
    } else {
        Fate::Free
    }
}

/// Pages that are not all zeros.
fn used_pages(image: &Image) -> Vec<u64> {
    let mut page = [0; PAGE as usize];
    (0..image.size() / PAGE)
        .filter(|index| {
            image.read(index * PAGE, &mut page);
            page.iter().any(|&byte| byte != 0)
        })
        .collect()
}

fn flip_everything(left: Left, stride: u64) -> [usize; 4] {
    let image = image(left);
    let device = MemoryDevice::from_image(image.clone(), u64::MAX);
    let store = open(&device);
    let expected = contents(&store);
    assert!(store.check(&CheckOptions { data: true, repair: false }).unwrap().damages.is_empty());
    drop(store);
    let mut fates = [0; 4];
    for page in used_pages(&image) {
        let superblock = [0, 256, 8192, 12_288].contains(&page);
        for at in (page * PAGE..(page + 1) * PAGE).step_by(stride as usize) {
            let fate = fate(&image, at, &expected);
            if superblock {
                assert_eq!(fate, Fate::Repaired, "byte {at}");
            }
            fates[fate as usize] += 1;
        }
    }
    fates
}

/// Distance of the flipped bytes in `make test`; `COPAL_FLIP_STRIDE=1` flips every byte.
fn stride(usual: u64) -> u64 {
    std::env::var("COPAL_FLIP_STRIDE").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Symptom: 20 of 350 flipped bits in a store of 25 MB prevented its opening.
/// Cause: each page of the checkpoint was stored once.
/// Fix: it is stored twice, half a store apart. A reader takes the intact copy, and the damaged one is
/// rewritten.
#[test]
fn every_flipped_byte_of_a_closed_store_is_repaired_or_reported() {
    let [refused, repaired, reported, _] = flip_everything(Left::Closed, stride(17));
    assert!(repaired > 1000 && reported > 1400, "{repaired}, {reported}");
    assert_eq!(refused, 0, "no single byte keeps a closed store from opening");
}

#[test]
fn every_flipped_byte_behind_a_crash_is_repaired_or_reported() {
    let [refused, repaired, reported, _] = flip_everything(Left::Opened, stride(29));
    assert!(refused > 3 && repaired > 550 && reported > 650, "{refused}, {repaired}, {reported}");
}

/// Every granule, so every sum and the gaps between. One byte in each is enough: a CRC32C differs for any
/// change within 32 bits. The 128-bit hashes of checkpoint and sums miss a change with a chance of 2^-128.
fn map_of(image: &Image) -> Vec<(Range<u64>, RangeCoverage)> {
    let device = MemoryDevice::from_image(image.clone(), u64::MAX);
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let (store, _) = Store::open(device, &options).unwrap();
    let mut map = Vec::new();
    let options = CheckOptions { data: true, repair: false };
    let report = store.check_coverage(&options, &mut |range, covered| map.push((range, covered))).unwrap();
    assert!(report.damages.is_empty(), "{:?}", report.damages);
    map
}

#[test]
fn each_byte_is_under_a_sum_or_in_space_that_holds_nothing() {
    for left in [Left::Closed, Left::Opened, Left::Marked] {
        let image = image(left);
        let mut map = map_of(&image);
        map.sort_by_key(|(range, _)| (range.start, range.end));
        let mut end = 0;
        let mut last: Option<(Range<u64>, RangeCoverage)> = None;
        for (range, covered) in map {
            assert!(range.start <= end, "bytes {end} to {} are in no range", range.start);
            // Only the clone's pages are under two sums.
            if range.start < end {
                let both = (last, covered);
                let clones = matches!(
                    both,
                    (Some((_, RangeCoverage::Summed(SummedData::Object(one)))), RangeCoverage::Summed(SummedData::Object(other)))
                        if [one.0, other.0] == [1, 5] || [one.0, other.0] == [5, 1]
                );
                assert!(clones, "{range:?}: {both:?}");
            }
            end = end.max(range.end);
            last = Some((range, covered));
        }
        assert_eq!(end, image.size());
    }
}

/// After the clean mark of an idle store no acknowledged data can be damaged unnoticed, although the store
/// was never closed. Only the mark itself, which holds no data, looks like a crash when it rots.
#[test]
fn each_sum_of_a_marked_store_that_was_killed_is_reported() {
    let image = image(Left::Marked);
    let device = MemoryDevice::from_image(image.clone(), u64::MAX);
    let expected = contents(&open(&device));
    let map = map_of(&image);
    let mark = map
        .iter()
        .filter_map(|(_, covered)| match covered {
            RangeCoverage::Summed(SummedData::Record { seq }) => Some(*seq),
            _ => None,
        })
        .max()
        .unwrap();
    let mut kinds = [0; 6];
    for (range, covered) in map {
        for at in [range.start, range.start + (range.end - range.start) / 2, range.end - 1] {
            let fate = fate(&image, at, &expected);
            match covered {
                RangeCoverage::Summed(SummedData::Superblock { .. }) => {
                    assert_eq!(fate, Fate::Repaired, "byte {at}")
                }
                RangeCoverage::Summed(SummedData::Checkpoint) => {
                    // The check reads the second copy, the opening already reads the first.
                    assert!([Fate::Repaired, Fate::Reported].contains(&fate), "byte {at}: {fate:?}");
                }
                RangeCoverage::Summed(SummedData::Record { seq }) if seq == mark => {
                    assert_eq!(fate, Fate::Free, "byte {at}");
                }
                RangeCoverage::Summed(what) => {
                    assert!(
                        [Fate::Reported, Fate::OpenRefused].contains(&fate),
                        "byte {at}, {what:?}: {fate:?}"
                    );
                }
                RangeCoverage::Unused(why) => assert_eq!(fate, Fate::Free, "byte {at}, {why:?}"),
            }
        }
        if let RangeCoverage::Summed(what) = covered {
            let kind = match what {
                SummedData::Superblock { .. } => 0,
                SummedData::Checkpoint => 1,
                SummedData::Record { .. } => 2,
                SummedData::Object(_) => 3,
                SummedData::Sums(_) => 4,
                _ => 5,
            };
            kinds[kind] += 1;
        }
    }
    assert!(kinds.iter().all(|&count| count > 0), "{kinds:?}");
}

#[test]
fn damaged_metadata_of_an_open_store_is_repaired() {
    let image = image(Left::Opened);
    let device = FaultDevice::with_options(
        image,
        FaultOptions { order: CompletionOrder::Immediate, record: false, ..FaultOptions::default() },
    );
    let dyn_device: Arc<dyn Device> = device.clone();
    let store = open(&dyn_device);
    // Copy 0 of the superblock, the checkpoint behind the journal, and a record of the journal.
    for at in [100, (272 + 32) * PAGE + 40, 272 * PAGE + 8] {
        device.inject(Fault::BitFlip { at, bit: 3 });
    }
    let report = store.check(&CheckOptions { data: true, repair: true }).unwrap();
    assert!(report.damages.len() >= 2 && report.is_clean(), "{report:?}");
    assert!(store.check(&CheckOptions { data: true, repair: false }).unwrap().damages.is_empty());
    drop(store);
    assert!(contents(&open(&dyn_device)).2);
}

fn cut(image: &Image, len: u64) -> Arc<dyn Device> {
    let mut bytes = vec![0; len as usize];
    image.read(0, &mut bytes);
    let mut short = Image::zeroed(len);
    short.write(0, &bytes);
    MemoryDevice::from_image(short, u64::MAX)
}

/// Symptom: a store whose unused last byte was cut off did not open.
/// Cause: its length was compared with the superblock before anything else was checked.
/// Fix: a store opens as long as all owned pages are present, reports the loss, and restores its length.
#[test]
fn a_store_that_lost_free_space_opens_and_has_its_length_again() {
    let image = image(Left::Closed);
    let whole = open(&MemoryDevice::from_image(image.clone(), u64::MAX));
    let expected = contents(&whole);
    drop(whole);
    let mut outcomes = [0; 2];
    for missing in (1..=56).map(|part| part * (1 << 20) - 4096 * (part % 2)) {
        let device = cut(&image, image.size() - missing);
        let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
        match Store::open(Arc::clone(&device), &read_only) {
            Ok((store, report)) => {
                assert_eq!(report.cut_bytes, missing);
                assert_eq!(contents(&store), expected);
                drop(store);
                let (store, report) = Store::open(Arc::clone(&device), &OpenOptions::default()).unwrap();
                assert_eq!(report.cut_bytes, missing);
                assert_eq!(store.device_bytes(), image.size());
                assert_eq!(contents(&store), expected);
                let all = CheckOptions { data: true, repair: false };
                assert!(store.check(&all).unwrap().is_clean());
                store.close().unwrap();
                drop(store);
                let (_, report) = Store::open(device, &OpenOptions::default()).unwrap();
                assert_eq!(report.cut_bytes, 0);
                outcomes[0] += 1;
            }
            Err(error) => {
                assert!(matches!(error, StoreOpenError::Truncated { .. }), "{error}");
                outcomes[1] += 1;
            }
        }
    }
    assert!(outcomes.iter().all(|&count| count > 3), "{outcomes:?}");
}

const STREAM_STORE_BYTES: u64 = 64 << 20;

/// A store whose last pages belong to a stream, with and without a close, and with or without a trim of its
/// first frames.
fn stream_at_the_end(is_closed: bool, is_trimmed: bool) -> Image {
    let device = MemoryDevice::new(STREAM_STORE_BYTES);
    let options = MkfsOptions { journal_bytes: Some(32 * PAGE), ..MkfsOptions::default() };
    Store::mkfs(&device, &options).unwrap();
    let store = open(&device);
    // A store is not opened if less than a quarter of it is left, so another stream comes first.
    for id in [2, 3] {
        let (id, opts) = (ObjectId(id), stream());
        commit(&store, vec![Op::Create { id, opts }]);
        for part in 0..90 * (3 - id.0) {
            let frame = store.append_frame(id, bytes(200_000, part), None, Ack::Durable);
            frame.wait().unwrap();
        }
    }
    for frame in 0..7 {
        append(&store, frame);
    }
    if is_trimmed {
        let op = Op::TrimStream { id: ObjectId(3), upto: FramePos(4) };
        commit(&store, vec![op]);
    }
    if is_closed {
        store.close().unwrap();
    }
    drop(store);
    let mut all = vec![0; STREAM_STORE_BYTES as usize];
    let read = device.read_now(0, copal_device::AlignedBuf::zeroed(all.len())).unwrap();
    all.copy_from_slice(&read);
    let mut image = Image::zeroed(STREAM_STORE_BYTES);
    image.write(0, &all);
    image
}

fn append(store: &Store, frame: usize) {
    let frame = store.append_frame(ObjectId(3), bytes(100 + 3000 * (frame % 4), 3), None, Ack::Durable);
    frame.wait().unwrap();
}

fn frames(store: &Store) -> Vec<Bytes> {
    let mut reader = store.frames(ObjectId(3), FramePos(0)).unwrap();
    let frames = std::iter::from_fn(|| reader.next_frame().unwrap());
    frames.map(|(_, payload)| payload).collect()
}

/// Symptom: a cut that took only a stream's reserve behind its last frame prevented the opening.
/// Cause: the whole extent counted as owned.
/// Fix: a stream owns the pages before the end of its frames, and the page of the next frame, which shows
/// that there is none. A cut that took that page, or more, is refused: an acknowledged frame that is recorded
/// nowhere else may have been there.
#[test]
fn a_store_that_lost_the_reserve_of_a_stream_opens_and_goes_on() {
    for (is_closed, is_trimmed) in [(false, false), (false, true), (true, false), (true, true)] {
        let image = stream_at_the_end(is_closed, is_trimmed);
        let whole = open(&MemoryDevice::from_image(image.clone(), u64::MAX));
        let expected = frames(&whole);
        assert_eq!(expected.len(), if is_trimmed { 3 } else { 7 });
        drop(whole);
        let map = map_of(&image);
        let reserves =
            map.iter().filter(|(_, covered)| *covered == RangeCoverage::Unused(UnusedSpace::Stream));
        let end = reserves.map(|(range, _)| range.end).max().unwrap();
        let frames_at = map
            .iter()
            .filter(|(_, covered)| *covered == RangeCoverage::Summed(SummedData::Frame(ObjectId(3))))
            .map(|(range, _)| range.clone());
        let start = frames_at.clone().map(|range| range.start).min().unwrap();
        let written = frames_at.map(|range| range.end).max().unwrap();
        assert!(start >= STREAM_STORE_BYTES / 4 && written + 4 * PAGE < end, "{start}, {written}, {end}");
        let near = |len: u64| len < written + 4 * PAGE || len + 2 * PAGE > end;
        for len in (start..end + 3 * PAGE).step_by(PAGE as usize) {
            if !near(len) && !(len / PAGE).is_multiple_of(16) {
                continue;
            }
            let device = cut(&image, len);
            let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
            if len < written + PAGE {
                for options in [read_only, OpenOptions::default()] {
                    let error = Store::open(Arc::clone(&device), &options).map(drop).unwrap_err();
                    assert!(matches!(error, StoreOpenError::Truncated { .. }), "{len}: {error}");
                }
                continue;
            }
            let (store, report) = Store::open(Arc::clone(&device), &read_only)
                .unwrap_or_else(|error| panic!("{len} of {written}..{end}: {error}"));
            assert_eq!(report.cut_bytes, image.size() - len);
            assert_eq!(frames(&store), expected);
            drop(store);
            let (store, report) = Store::open(Arc::clone(&device), &OpenOptions::default()).unwrap();
            assert_eq!(report.cut_bytes, image.size() - len);
            assert_eq!(store.device_bytes(), image.size());
            assert_eq!(frames(&store), expected);
            // Into the part that was cut off, and beyond it.
            let more = if len % (16 * PAGE) == 0 { 200 } else { 5 };
            for frame in 0..more {
                append(&store, frame);
            }
            drop(store);
            let (store, report) = Store::open(device, &OpenOptions::default()).unwrap();
            assert_eq!(report.cut_bytes, 0);
            let found = frames(&store);
            assert_eq!(found.len(), expected.len() + more);
            assert_eq!(found[..expected.len()], expected);
            let all = CheckOptions { data: true, repair: false };
            assert!(store.check(&all).unwrap().is_clean());
        }
    }
}
