//! Stores of older builds: they open with all their content, are written to, and open again.

use crate::basics::{commit, plain, read, stream};
use bytes::Bytes;
use copal_device::{Device, Image, MemoryDevice};
use copal_object::*;
use std::{fs::File, io::Read, path::Path, process::Command, sync::Arc};

/// Stores with a checkpoint of version 3: objects 1 and 2 with two kinds of sums, 6 published, 7 a clone of 1.
/// Streams 3 and 4 have frames of up to three pages, 4 is trimmed, 5 is empty. `killed.img` has a clean mark
/// behind its checkpoint, and two frames behind the mark.
fn device(name: &str) -> Arc<dyn Device> {
    image_of("checkpoint-3.tar.gz", name)
}

fn image_of(archive: &str, name: &str) -> Arc<dyn Device> {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(archive);
    let dir = tempfile::tempdir().unwrap();
    let status = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(dir.path()).status();
    assert!(status.unwrap().success());
    let mut file = File::open(dir.path().join(name)).unwrap();
    let mut image = Image::zeroed(file.metadata().unwrap().len());
    let mut part = vec![0; 1 << 20];
    for at in (0..image.size()).step_by(part.len()) {
        file.read_exact(&mut part).unwrap();
        image.write(at, &part);
    }
    MemoryDevice::from_image(image, u64::MAX)
}

fn bytes(len: usize, n: u64) -> Bytes {
    vec![n as u8 + 1; len].into()
}

fn frame(n: u64) -> Bytes {
    bytes((n * 1777 % 9000) as usize, n)
}

fn append(store: &Store, id: u64, n: u64) {
    let appended = store.append_frame(ObjectId(id), frame(n), None, Ack::Durable).wait().unwrap();
    assert_eq!(appended, FramePos(n));
}

/// Checks all content; the streams end behind frame `ends[0]` and `ends[1]`.
fn check(store: &Store, ends: [u64; 2]) {
    assert_eq!(read(store, 1), bytes(5000, 1));
    assert_eq!(read(store, 7), bytes(5000, 1));
    assert_eq!(read(store, 2), bytes(9000, 2));
    assert_eq!(read(store, 6), bytes(4000, 6));
    for (id, from, end) in [(3, 0, ends[0]), (4, 7, ends[1]), (5, 0, 0)] {
        let mut frames = store.frames(ObjectId(id), FramePos(0)).unwrap();
        for n in from..end {
            assert_eq!(frames.next_frame().unwrap(), Some((FramePos(n), frame(n))), "stream {id}");
        }
        assert_eq!(frames.next_frame().unwrap(), None, "stream {id}");
    }
    let report = store.check(&CheckOptions { data: true, repair: false }).unwrap();
    assert!(report.damages.is_empty(), "{:?}", report.damages);
}

#[test]
fn a_store_with_a_checkpoint_of_version_3_opens_and_gets_the_newest() {
    for name in ["closed.img", "killed.img"] {
        let device = device(name);
        let mut ends = [17, 15];
        for round in 0..4 {
            let (store, report) = Store::open(Arc::clone(&device), &OpenOptions::default()).unwrap();
            assert!(report.damaged_streams.is_empty() && report.tail_dropped.is_none(), "{report:?}");
            check(&store, ends);
            append(&store, 3, ends[0]);
            append(&store, 4, ends[1]);
            ends = ends.map(|end| end + 1);
            // A mark, a checkpoint, and a kill.
            match round {
                0 => assert!(store.write_clean_mark().unwrap()),
                1 => store.checkpoint().unwrap(),
                _ => {}
            }
        }
    }
}

/// See `docs/formats/object-record.md`: a clean mark before the first new checkpoint is one that the older
/// build reads, so nothing before the mark is lost when the older build opens the store again.
#[test]
fn new_operations_are_written_behind_a_new_checkpoint_only() {
    let device = device("closed.img");
    let (store, _) = Store::open(Arc::clone(&device), &OpenOptions::default()).unwrap();
    commit(&store, vec![Op::Create { id: ObjectId(9), opts: stream() }]);
    // Longer than a new stream promises, and then marked.
    let long = |store: &Store| {
        let long = store.append_frame(ObjectId(9), bytes(100_000, 0), None, Ack::Durable);
        long.wait().unwrap();
        commit(
            store,
            vec![Op::Create {
                id: ObjectId(store.list(ObjectId(0), 99).len() as u64 + 99),
                opts: plain(ReadCheck::Pages),
            }],
        );
        store.write_clean_mark().unwrap();
    };
    let new_ops = |store: &Store| {
        let mut kinds = Vec::new();
        store
            .check_coverage(&CheckOptions::default(), &mut |range, covered| {
                if let RangeCoverage::Summed(SummedData::Record { .. }) = covered {
                    let buf = copal_device::AlignedBuf::zeroed((range.end - range.start) as usize);
                    let record = device.read_now(range.start, buf).unwrap();
                    // The first operation's kind follows the header.
                    kinds.push(record[80]);
                }
            })
            .unwrap();
        kinds.iter().filter(|&&kind| kind == 16).count()
    };
    long(&store);
    assert_eq!(new_ops(&store), 0);
    store.checkpoint().unwrap();
    long(&store);
    assert!(new_ops(&store) > 0);
}

/// A build that reads checkpoints of version 3 knows no cut of a stream, so a cut first writes a newer checkpoint.
#[test]
fn a_stream_is_cut_behind_a_new_checkpoint_only() {
    let device = device("closed.img");
    let new_checkpoints = || {
        let mut pages = (0..device.geometry().size / 4096).map(|page| page * 4096);
        pages.any(|at| {
            let page = device.read_now(at, copal_device::AlignedBuf::zeroed(4096)).unwrap();
            page[..10] == *b"COPALCKP\x05\x00"
        })
    };
    let (store, _) = Store::open(Arc::clone(&device), &OpenOptions::default()).unwrap();
    append(&store, 3, 17);
    assert!(!new_checkpoints());
    commit(&store, vec![Op::TruncateStream { id: ObjectId(3), from: FramePos(12) }]);
    assert!(new_checkpoints());
    append(&store, 3, 12);
    drop(store);
    let (store, _) = Store::open(device, &OpenOptions::default()).unwrap();
    check(&store, [13, 15]);
}

/// First operation of each record behind the checkpoint.
fn first_ops(store: &Store, device: &dyn Device) -> Vec<u8> {
    let mut kinds = Vec::new();
    store
        .check_coverage(&CheckOptions::default(), &mut |range, covered| {
            if let RangeCoverage::Summed(SummedData::Record { .. }) = covered {
                let buf = copal_device::AlignedBuf::zeroed((range.end - range.start) as usize);
                kinds.push(device.read_now(range.start, buf).unwrap()[80]);
            }
        })
        .unwrap();
    kinds
}

/// Version 4: as version 3, and object 8 with sums of bytes behind the checkpoint. Its objects keep those sums. Sums
/// over hashes are written behind a checkpoint of version 5 only, which the older build refuses.
#[test]
fn objects_of_a_store_with_a_checkpoint_of_version_4_keep_their_sums() {
    const MAP: u8 = 2;
    const MAP_HASHED: u8 = 20;
    let write = |store: &Store, id: u64, at: u64, data: Bytes| {
        commit(store, vec![Op::Write { id: ObjectId(id), at, data }]);
    };
    for name in ["closed.img", "killed.img"] {
        let device = image_of("checkpoint-4.tar.gz", name);
        let (store, report) = Store::open(Arc::clone(&device), &OpenOptions::default()).unwrap();
        assert!(report.damaged_streams.is_empty() && report.tail_dropped.is_none(), "{report:?}");
        check(&store, [19, 16]);
        assert_eq!(read(&store, 8), bytes(9000, 8));
        commit(&store, vec![Op::Create { id: ObjectId(9), opts: plain(ReadCheck::Caller) }]);
        write(&store, 9, 0, bytes(200_000, 9));
        let ops = first_ops(&store, &*device);
        assert!(ops.contains(&MAP) && !ops.contains(&MAP_HASHED), "{name}: {ops:?}");
        store.checkpoint().unwrap();
        commit(&store, vec![Op::Create { id: ObjectId(10), opts: plain(ReadCheck::Pages) }]);
        // Both rules beside each other; a partial page of an old object is merged.
        write(&store, 10, 0, bytes(9000, 10));
        write(&store, 8, 9000, bytes(100, 8));
        append(&store, 3, 19);
        let ops = first_ops(&store, &*device);
        assert!(ops.contains(&MAP) && ops.contains(&MAP_HASHED), "{name}: {ops:?}");
        drop(store);
        let (store, _) = Store::open(device, &OpenOptions::default()).unwrap();
        check(&store, [20, 16]);
        assert_eq!(read(&store, 8), bytes(9100, 8));
        assert_eq!(read(&store, 9), bytes(200_000, 9));
        assert_eq!(read(&store, 10), bytes(9000, 10));
    }
}
