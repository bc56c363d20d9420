//! Hints of a checkpoint: wrong places of frames cost reads, and damage behind a hint is found. The record of a mount
//! is missed behind the last checkpoint of a closed store.

use super::{ChainCopies, JournalWindow, RecoverySource, newest_superblock, read_checkpoint};
use crate::{
    Ack, BackendKind, CreateOptions, FramePos, MkfsOptions, ObjectId, ObjectKind, OpenOptions,
    RecoveryReport, Store, StoreOpenError, Txn,
    flaw::{BrokenRule, StoreFlaw},
    format::ops::DurableFrames,
    open::OpenOverrides,
};
use copal_device::{
    Device,
    fault::{Fault, FaultDevice},
};
use std::sync::Arc;

const LOG: ObjectId = ObjectId(1);

fn open(device: &Arc<FaultDevice>, flaw: Option<StoreFlaw>) -> (Store, RecoveryReport) {
    let device: Arc<dyn Device> = device.clone();
    let tuning = OpenOverrides { broken: BrokenRule { flaw }, ..OpenOverrides::default() };
    Store::open_tuned(device, &OpenOptions::default(), tuning).unwrap()
}

fn store_with_a_stream(flaw: Option<StoreFlaw>) -> (Arc<FaultDevice>, Store) {
    let device = FaultDevice::new(64 << 20, 3);
    let dynamic: Arc<dyn Device> = device.clone();
    Store::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
    let (store, _) = open(&device, flaw);
    let opts = CreateOptions { kind: ObjectKind::Stream, ..CreateOptions::default() };
    store.commit(Txn::new().create(LOG, opts), Ack::Durable).wait().unwrap();
    (device, store)
}

fn append(store: &Store, len: usize) {
    let payload = vec![7; len].into();
    store.append_frame(LOG, payload, None, Ack::Durable).wait().unwrap();
}

fn frames(store: &Store) -> u64 {
    let mut frames = store.frames(LOG, FramePos(0)).unwrap();
    std::iter::from_fn(|| frames.next_frame().unwrap()).count() as u64
}

/// Device byte of page `at` of the stream's last piece.
fn byte_of(store: &Store, at: u32) -> u64 {
    let state = store.inner.state.lock();
    let piece = state.tables.stream(LOG.0).unwrap().pieces.last().copied().unwrap();
    store.inner.shape.byte(piece.run.at + u64::from(at))
}

/// Frames of one to three pages, then a checkpoint with `hint` about them, then a kill. Every frame is found,
/// and the stream continues behind the last one.
fn survives(hint: impl Fn(&mut DurableFrames, &mut u32)) -> u64 {
    let (device, store) = store_with_a_stream(None);
    for n in 0..12 {
        append(&store, n % 3 * 4096);
    }
    let mut state = store.inner.state.lock();
    let mut durable = state.streams.tail(LOG.0).unwrap().durable;
    assert_eq!(durable, DurableFrames { next: 12, last: Some(21) });
    let stream = state.tables.stream_mut(LOG.0).unwrap();
    hint(&mut durable, &mut stream.frame_pages_max);
    stream.durable = durable;
    state.streams.spoil_durable(LOG.0, durable);
    drop(state);
    store.checkpoint().unwrap();
    drop(store);
    let device = device.reopen();
    let before = device.counters();
    let (store, report) = open(&device, None);
    let read = (device.counters() - before).read_bytes;
    assert!(report.damaged_streams.is_empty(), "{report:?}");
    assert_eq!(frames(&store), 12);
    append(&store, 9);
    drop(store);
    let (store, report) = open(&device.reopen(), None);
    assert!(report.damaged_streams.is_empty(), "{report:?}");
    assert_eq!(frames(&store), 13);
    read
}

#[test]
fn a_wrong_place_costs_reads_and_no_frame() {
    let right = survives(|_, _| {});
    let hints: [(u64, Option<u32>); 12] = [
        // Inside a frame, at another frame, behind the end, outside the piece, unknown.
        (12, Some(22)),
        (12, Some(0)),
        (12, Some(18)),
        (12, Some(24)),
        (12, Some(200)),
        (12, Some(256)),
        (12, Some(u32::MAX - 1)),
        (12, None),
        // The number of another frame.
        (11, Some(21)),
        (5, Some(21)),
        (0, Some(21)),
        (0, None),
    ];
    for (next, last) in hints {
        for pages_max in [7, 0, 1, 256, u32::MAX] {
            let read = survives(|durable, most| {
                *durable = DurableFrames { next, last };
                *most = pages_max;
            });
            assert!(read < right + (3 << 20), "{next}, {last:?}, {pages_max}: {read} bytes");
        }
    }
}

/// A number beyond the last frame calls frames durable that are missing.
#[test]
fn a_number_beyond_the_frames_is_damage_of_the_first_missing_one() {
    for (next, last) in [
        (14, None),
        (14, Some(21)),
        (13, Some(24)),
        (14, Some(u32::MAX - 1)),
        (1 << 62, Some(21)),
        (u64::MAX, Some(21)),
        (u64::MAX, None),
    ] {
        let (device, store) = store_with_a_stream(None);
        for n in 0..12 {
            append(&store, n % 3 * 4096);
        }
        store.inner.state.lock().streams.spoil_durable(LOG.0, DurableFrames { next, last });
        store.checkpoint().unwrap();
        drop(store);
        let (store, report) = open(&device.reopen(), None);
        assert_eq!(report.damaged_streams, [LOG]);
        let mut frames = store.frames(LOG, FramePos(0)).unwrap();
        for n in 0..12 {
            assert_eq!(frames.next_frame().unwrap().unwrap().0, FramePos(n));
        }
        assert!(frames.next_frame().is_err());
    }
}

/// Frames behind a checkpoint, the first of them `len` bytes long. A bit of its header rots; a later frame
/// calls it durable. Whether the opening reports that.
fn rot_is_found(len: usize, flaw: Option<StoreFlaw>) -> bool {
    let (device, store) = store_with_a_stream(flaw);
    append(&store, 9);
    append(&store, 9);
    store.checkpoint().unwrap();
    let at = byte_of(&store, 2);
    append(&store, len);
    append(&store, 9);
    append(&store, 9);
    drop(store);
    let device = device.reopen();
    device.inject(Fault::BitFlip { at: at + 20, bit: 1 });
    let (_, report) = open(&device, flaw);
    report.damaged_streams == [LOG]
}

/// Symptom: a long frame rotted, and the opening took it for a crash: all later frames were overwritten.
/// Cause: a search behind the end only as far as the longest frame at the time of the checkpoint.
/// Fix: a frame that is longer than its stream promised needs a record that promises more (OBJ-34).
#[test]
fn rot_of_a_frame_longer_than_all_before_the_checkpoint_is_damage() {
    for len in [9, 28_000, 30_000, 100_000, 500_000, 1_000_000] {
        assert!(rot_is_found(len, None), "{len} bytes");
    }
    assert!(rot_is_found(28_000, Some(StoreFlaw::LongFramesUnsaid)));
    assert!(!rot_is_found(100_000, Some(StoreFlaw::LongFramesUnsaid)), "the rule is broken");
}

/// A promise is one record for each doubling, and none for shorter frames.
#[test]
fn a_longer_frame_costs_one_record_until_it_doubles() {
    let (_, store) = store_with_a_stream(None);
    append(&store, 9);
    let mut records = Vec::new();
    for len in [20_000, 30_000, 30_000, 60_000, 9, 70_000, 100_000, 1_000_000, 1_000_000] {
        let before = store.inner.state.lock().commit.last_lsn();
        let extents = store.inner.state.lock().tables.stream(LOG.0).unwrap().pieces.len();
        append(&store, len);
        let state = store.inner.state.lock();
        let extents = state.tables.stream(LOG.0).unwrap().pieces.len() - extents;
        records.push(state.commit.last_lsn() - before - extents as u64);
    }
    assert_eq!(records, [0, 1, 0, 1, 0, 1, 0, 1, 0]);
}

/// The first page of the record behind the checkpoint, which is not in it.
fn without_the_next_record(device: &FaultDevice) -> Arc<dyn Device> {
    let (superblock, _) = newest_superblock(device).unwrap();
    let page_bytes = superblock.page_bytes as usize;
    let source = RecoverySource { device, page_bytes, salvage: false, broken: BrokenRule::default() };
    let position = read_checkpoint(&source, &superblock, ChainCopies::AsNeeded).unwrap().position;
    assert!(position.mount_pages > 1, "the store was closed: {position:?}");
    let run =
        JournalWindow::new(&source, &superblock, &position).places.run(position.journal_head, 1).unwrap();
    let mut image = device.image();
    image.write(run.at * page_bytes as u64, &vec![0x55; page_bytes]);
    FaultDevice::from_image(image, 7)
}

/// Symptom to prevent: a store opens without acknowledged commits, because the first record behind the checkpoint of its
/// close is damaged. Only the pages that this record can have are searched for a later one.
#[test]
fn a_lost_record_of_a_mount_behind_a_close_is_missed() {
    // In segments, a checkpoint replaces a longer record.
    for (backend, streams) in [(BackendKind::Cow, 400), (BackendKind::Log, 50)] {
        let device = FaultDevice::new(1 << 30, 3);
        let dynamic: Arc<dyn Device> = device.clone();
        Store::mkfs(&dynamic, &MkfsOptions { backend, ..MkfsOptions::default() }).unwrap();
        let (store, _) = open(&device, None);
        let opts = CreateOptions { kind: ObjectKind::Stream, ..CreateOptions::default() };
        for id in (1..=streams).map(ObjectId) {
            store.commit(Txn::new().create(id, opts.clone()), Ack::Ordered).wait().unwrap();
            store.append_frame(id, vec![1; 10].into(), None, Ack::Ordered).wait().unwrap();
        }
        store.close().unwrap();
        drop(store);
        let device = device.reopen();
        let (store, _) = open(&device, None);
        for id in [500, 501] {
            let txn = Txn::new().create(ObjectId(id), CreateOptions::default());
            store.commit(txn, Ack::Durable).wait().unwrap();
        }
        drop(store);
        let damaged = without_the_next_record(&device);
        let opened = Store::open(damaged, &OpenOptions::default()).map(drop);
        assert!(matches!(opened, Err(StoreOpenError::TailLoss { .. })), "{}: {opened:?}", backend.name());
    }
}

/// Symptom: a store in segments that was closed did not open, because the header of the segment with its next record
/// was damaged. Cause: the chain of segments was only in those headers.
/// Fix: the checkpoint has the number of that segment, and the one after it.
#[test]
fn a_damaged_header_of_its_last_segment_keeps_no_closed_store_from_opening() {
    let device = FaultDevice::new(256 << 20, 3);
    let dynamic: Arc<dyn Device> = device.clone();
    Store::mkfs(&dynamic, &MkfsOptions { backend: BackendKind::Log, ..MkfsOptions::default() }).unwrap();
    let (mut store, _) = open(&device, None);
    let mut device = device.clone();
    for round in 0..30 {
        let id = ObjectId(round);
        let txn = Txn::new().create(id, CreateOptions::default()).append(id, 0, vec![9; 300_000]);
        store.commit(txn, Ack::Durable).wait().unwrap();
        for small in 0..40 {
            let id = ObjectId(1000 + round * 100 + small);
            let txn = Txn::new().create(id, CreateOptions::default()).append(id, 0, vec![7; 9000]);
            store.commit(txn, Ack::Ordered).wait().unwrap();
        }
        let head = store.inner.state.lock().space.placement().journal().head();
        store.close().unwrap();
        drop(store);
        let mut image = device.image();
        let segment_bytes = 2 << 20;
        image.write((head >> 32) * segment_bytes, &[0x55; 4096]);
        device = FaultDevice::from_image(image, round);
        let report;
        (store, report) = open(&device, None);
        assert!(report.tail_lost.is_none() && report.tail_dropped.is_none(), "{report:?}");
        assert_eq!(store.list(ObjectId(0), usize::MAX).len(), (round as usize + 1) * 41);
        let report = store.check(&crate::CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{:?}", report.damages);
    }
}
