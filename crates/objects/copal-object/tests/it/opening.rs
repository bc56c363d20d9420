//! Reads of an opening, in commands and bytes: the cost of every command of the program.

use crate::basics::{commit, open, plain, stream};
use bytes::Bytes;
use copal_device::{Device, DeviceCounters, MemoryDevice};
use copal_object::*;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// An empty store. Zeros that are written take no memory.
fn store(size: u64) -> (Arc<dyn Device>, Store) {
    store_with(size, &MkfsOptions::default())
}

fn store_of(backend: BackendKind, size: u64) -> (Arc<dyn Device>, Store) {
    store_with(size, &MkfsOptions { backend, ..MkfsOptions::default() })
}

fn store_with(size: u64, options: &MkfsOptions) -> (Arc<dyn Device>, Store) {
    let device = MemoryDevice::new(size);
    Store::mkfs(&device, options).unwrap();
    let store = open(&device);
    (device, store)
}

const BACKENDS: [BackendKind; 2] = [BackendKind::Cow, BackendKind::Log];

/// Opens the store; returns the reads of the opening.
fn reopen(device: &Arc<dyn Device>) -> (Store, DeviceCounters) {
    let before = device.counters();
    let (store, report) = Store::open(Arc::clone(device), &OpenOptions::default()).unwrap();
    assert!(report.damaged_streams.is_empty() && report.tail_lost.is_none(), "{report:?}");
    (store, device.counters() - before)
}

fn zeros(len: u64) -> Bytes {
    Bytes::from(vec![0; len as usize])
}

/// Symptom: an empty store took 2,057 single reads: 17 s on a disk of 120 commands a second.
/// Cause: the walk, and twice the search behind its end, read the journal page by page.
/// Fix: one window of 1 MiB, which is read only where a record may lie.
#[test]
fn an_empty_store_opens_in_24_reads() {
    for size in [64 * MIB, 1 << 30, 1 << 40] {
        let (device, store) = store(size);
        store.close().unwrap();
        drop(store);
        for _ in 0..3 {
            let (store, done) = reopen(&device);
            assert!(done.reads <= 24 && done.read_bytes <= 9 * MIB, "{size}: {done:?}");
            store.close().unwrap();
        }
    }
}

/// Symptom: an opening of a closed store read 4 to 10 MiB of its journal, in which nothing lay.
/// Cause: it searched behind the longest record for one that calls the missing one durable.
/// Fix: the last checkpoint before a close says that the record of a mount follows, and how long that may be.
#[test]
fn the_journal_of_a_closed_store_is_not_searched() {
    for backend in BACKENDS {
        let (device, store) = store_of(backend, 1 << 30);
        commit(&store, (1..=200).map(|id| Op::Create { id: ObjectId(id), opts: stream() }).collect());
        store.close().unwrap();
        drop(store);
        for _ in 0..3 {
            let (store, done) = reopen(&device);
            assert!(done.reads <= 24 && done.read_bytes <= MIB, "{backend:?}: {done:?}");
            store.close().unwrap();
        }
    }
}

/// Symptom: 200 MiB of frames were read again by every opening: 2,863 reads.
/// Cause: the end of a stream was searched from its first kept frame on.
/// Fix: a checkpoint names the last durable frame of each stream, and the search begins there.
#[test]
fn frames_of_a_closed_store_are_not_read_again() {
    for backend in BACKENDS {
        let (device, store) = store_of(backend, 512 * MIB);
        let log = ObjectId(1);
        commit(&store, vec![Op::Create { id: log, opts: stream() }]);
        for _ in 0..800 {
            store.append_frame(log, zeros(256 << 10), None, Ack::Ordered).wait().unwrap();
        }
        store.close().unwrap();
        drop(store);
        for _ in 0..3 {
            let (store, done) = reopen(&device);
            assert!(done.reads <= 24 && done.read_bytes <= MIB, "{backend:?}: {done:?}");
            assert_eq!(store.append_frame(log, zeros(0), None, Ack::Ordered).wait().unwrap().0 / 10, 80);
            store.close().unwrap();
        }
    }
}

/// See [`frames_of_a_closed_store_are_not_read_again`]: each of many streams took 7 reads of 1.2 MiB.
#[test]
fn each_of_many_streams_takes_one_read_of_64_kib() {
    const STREAMS: u64 = 1000;
    for closes in [true, false] {
        let (device, store) = store(4 << 30);
        commit(&store, (1..=STREAMS).map(|id| Op::Create { id: ObjectId(id), opts: stream() }).collect());
        for frame in 0..5 {
            for id in 1..=STREAMS {
                store.append_frame(ObjectId(id), zeros(5000 * frame), None, Ack::Ordered).wait().unwrap();
            }
        }
        match closes {
            true => store.close().unwrap(),
            // The mount names the places too.
            false => drop(open(&device)),
        }
        drop(store);
        let (store, done) = reopen(&device);
        // Besides the journal, which is longer after a kill.
        let journal = if closes { 5 } else { 16 };
        assert!(done.reads <= STREAMS + 24, "{done:?}");
        assert!(done.read_bytes <= STREAMS * (64 << 10) + journal * MIB, "{done:?}");
        assert_eq!(
            store.append_frame(ObjectId(7), zeros(9), None, Ack::Durable).wait().unwrap(),
            FramePos(5)
        );
    }
}

/// Streams of segments have their places in the checkpoint: an opening reads none of them.
#[test]
fn streams_of_segments_take_no_reads_of_their_own() {
    let (device, store) = store_of(BackendKind::Log, 4 << 30);
    let log = |id| Op::Create { id: ObjectId(id), opts: stream() };
    commit(&store, (1..=1000).map(log).collect());
    for frame in 0..5 {
        for id in 1..=1000 {
            store.append_frame(ObjectId(id), zeros(5000 * frame), None, Ack::Ordered).wait().unwrap();
        }
    }
    store.close().unwrap();
    drop(store);
    let (store, done) = reopen(&device);
    assert!(done.reads <= 12 && done.read_bytes <= 260 << 10, "{done:?}");
    assert_eq!(store.append_frame(ObjectId(7), zeros(9), None, Ack::Durable).wait().unwrap(), FramePos(5));
}

/// Symptom: 55 MiB of journal took 16,279 reads after a kill.
/// Cause: see [`an_empty_store_opens_in_24_reads`]; the replay read the journal once more.
/// Fix: the window, and up to 8 MiB of operations are kept for the replay.
#[test]
fn a_journal_of_14_000_records_is_read_once() {
    let options = MkfsOptions { journal_bytes: Some(128 * MIB), ..MkfsOptions::default() };
    read_14_000_records(&options, 72);
    let options = MkfsOptions { backend: BackendKind::Log, ..MkfsOptions::default() };
    read_14_000_records(&options, 77);
}

fn read_14_000_records(options: &MkfsOptions, most_reads: u64) {
    let (device, store) = store_with(1 << 30, options);
    let id = ObjectId(1);
    commit(&store, vec![Op::Create { id, opts: plain(ReadCheck::Pages) }]);
    for round in 0..14_000u64 {
        let op = match round % 2 {
            0 => Op::Create { id: ObjectId(2), opts: plain(ReadCheck::Pages) },
            _ => Op::Delete { id: ObjectId(2) },
        };
        commit(&store, vec![op]);
    }
    drop(store);
    let (_, done) = reopen(&device);
    assert!(done.reads <= most_reads && done.read_bytes <= 64 * MIB, "{:?}: {done:?}", options.backend);
}

/// Symptom: 4 GiB that were published without a flush were all read by the next opening, in 68,111 reads.
/// Cause: staged bytes did not count towards the flush after 128 MiB, and each 64 KiB was a read of its own.
/// Fix: they count, and published data is verified in runs of 1 MiB. With the journal, less than 128 MiB are read.
#[test]
fn published_data_is_read_up_to_the_last_flush_of_128_mib() {
    for backend in BACKENDS {
        read_up_to_the_last_flush(backend);
    }
}

fn read_up_to_the_last_flush(backend: BackendKind) {
    let (device, store) = store_of(backend, 3 << 30);
    let flushes = store.counters().flushes;
    let part = zeros(MIB);
    for id in 1..=64 {
        let mut writer = store.writer(ObjectId(id), plain(ReadCheck::Caller)).unwrap();
        (0..16).for_each(|_| writer.append(&part).unwrap());
        let publish = Txn::new().op(Op::Publish(writer.finish().unwrap()));
        store.commit(publish, Ack::Ordered).wait().unwrap();
    }
    let flushes = store.counters().flushes - flushes;
    assert!((7..=9).contains(&flushes), "{flushes} flushes");
    drop(store);
    let (store, done) = reopen(&device);
    assert!(done.reads <= 300 && done.read_bytes <= 128 * MIB, "{done:?}");
    assert_eq!(store.list(ObjectId(0), usize::MAX).len(), 64);
    // One object that is longer than that.
    let mut writer = store.writer(ObjectId(65), plain(ReadCheck::Caller)).unwrap();
    (0..192).for_each(|_| writer.append(&part).unwrap());
    let publish = Txn::new().op(Op::Publish(writer.finish().unwrap()));
    store.commit(publish, Ack::Ordered).wait().unwrap();
    drop(store);
    let (_, done) = reopen(&device);
    assert!(done.reads <= 24 && done.read_bytes <= 9 * MIB, "{done:?}");
}

/// The headers of the segments with records are read, and no others.
#[test]
fn a_store_in_segments_opens_without_a_search_for_headers() {
    for is_closed in [true, false] {
        let device: Arc<dyn Device> = MemoryDevice::new(256 << 20);
        let options = MkfsOptions { backend: BackendKind::Log, ..MkfsOptions::default() };
        Store::mkfs(&device, &options).unwrap();
        let store = open(&device);
        for id in 1..400 {
            let txn = Txn::new().create(ObjectId(id), plain(ReadCheck::Pages)).append(
                ObjectId(id),
                0,
                zeros(16_000),
            );
            store.commit(txn, Ack::Durable).wait().unwrap();
        }
        let segments = store.segments().unwrap();
        assert!(segments.usable > 100 && segments.commit_head < 12, "{segments:?}");
        if is_closed {
            store.close().unwrap();
        }
        drop(store);
        let (_, done) = reopen(&device);
        assert!(done.reads <= 40, "{} reads", done.reads);
    }
}
