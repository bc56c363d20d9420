//! Segments of records in a file are filled with zeros once, before they hold records: the first write to a block of a
//! file would change metadata of the file system.

use crate::basics::{bytes, stream};
use copal_device::*;
use copal_object::*;
use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

const STORE_BYTES: u64 = 64 << 20;
const SEGMENT_BYTES: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;

/// A device that notes the zeros and the writes of commits.
struct NotedWrites {
    below: Arc<dyn Device>,
    is_file: bool,
    zeros: Mutex<Vec<Range<u64>>>,
    commits: Mutex<Vec<Range<u64>>>,
}

impl NotedWrites {
    fn new(is_file: bool) -> Arc<NotedWrites> {
        Arc::new(NotedWrites {
            below: MemoryDevice::new(STORE_BYTES),
            is_file,
            zeros: Mutex::default(),
            commits: Mutex::default(),
        })
    }

    /// Makes a store in segments, and a stream in it.
    fn with_store(is_file: bool) -> (Arc<NotedWrites>, Store) {
        let noted = NotedWrites::new(is_file);
        let options = MkfsOptions {
            backend: BackendKind::Log,
            segment_bytes: Some(SEGMENT_BYTES as u32),
            ..MkfsOptions::default()
        };
        let device: Arc<dyn Device> = noted.clone();
        Store::mkfs(&device, &options).unwrap();
        // Superblocks of an earlier store are removed.
        noted.zeros.lock().unwrap().retain(|zeros| zeros.end - zeros.start > 64 << 10);
        let store = noted.open();
        store.commit(Txn::new().create(STREAM, stream()), Ack::Durable).wait().unwrap();
        (noted, store)
    }

    fn open(self: &Arc<NotedWrites>) -> Store {
        let device: Arc<dyn Device> = self.clone();
        Store::open(device, &OpenOptions::default()).unwrap().0
    }

    fn zeros(&self) -> Vec<Range<u64>> {
        self.zeros.lock().unwrap().clone()
    }
}

impl Device for NotedWrites {
    fn geometry(&self) -> Geometry {
        Geometry { gives_back: self.is_file, ..self.below.geometry() }
    }

    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        for io in &ios {
            let range = io.at..io.at + io.kind.len_bytes();
            match (&io.kind, io.class) {
                (IoKind::WriteZeroes(_), _) => self.zeros.lock().unwrap().push(range),
                (IoKind::Write { .. }, IoClass::Commit) => self.commits.lock().unwrap().push(range),
                _ => {}
            }
        }
        self.below.submit(ios)
    }

    fn read_now(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.below.read_now(at, buf)
    }

    fn write_through(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.commits.lock().unwrap().push(at..at + buf.len() as u64);
        self.below.write_through(at, buf)
    }

    fn grow(&self, size: u64) -> Result<u64, DeviceError> {
        self.below.grow(size)
    }

    fn can_grow(&self) -> bool {
        false
    }

    fn counters(&self) -> DeviceCounters {
        self.below.counters()
    }

    fn drive(&self) -> bool {
        false
    }
}

const STREAM: ObjectId = ObjectId(1);

/// Appends frames of three pages, and trims the stream now and then.
fn append(store: &Store, frames: Range<u64>) {
    for frame in frames {
        store.append_frame(STREAM, bytes(10_000, frame), None, Ack::Durable).wait().unwrap();
        if frame % 64 == 63 {
            store.commit(Txn::new().trim_stream(STREAM, FramePos(frame)), Ack::Durable).wait().unwrap();
        }
    }
}

/// Frames whose groups fill so many segments, or a little less.
const fn frames_of(segments: u64) -> u64 {
    segments * (SEGMENT_BYTES / PAGE_BYTES) / 4
}

/// Segments that zeros cover, each with its bytes of zeros.
fn zeroed_segments(zeros: &[Range<u64>]) -> Vec<(u64, u64)> {
    let mut bytes = std::collections::BTreeMap::new();
    for range in zeros {
        let segment = range.start / SEGMENT_BYTES;
        assert!(range.end <= (segment + 1) * SEGMENT_BYTES, "zeros {range:?} lie in one segment");
        *bytes.entry(segment).or_default() += range.end - range.start;
    }
    bytes.into_iter().collect()
}

/// Symptom: in a file whose blocks the file system only reserved, a durable append cost three writes and two flushes.
/// Cause: the first write to each block of a segment changed metadata of the file system.
/// Fix: a segment is filled with zeros before it holds records, once: also over reuse and another opening.
#[test]
fn segments_of_records_in_a_file_are_filled_once_before_their_first_record() {
    let (noted, store) = NotedWrites::with_store(true);
    append(&store, 0..frames_of(100));
    let filled = zeroed_segments(&noted.zeros());
    // Chains of records, reused in turn after checkpoints: far fewer segments than were passed.
    assert!((4..40).contains(&filled.len()), "{} segments were filled", filled.len());
    // The format writes headers itself.
    let whole = |bytes: u64| bytes == SEGMENT_BYTES || bytes == SEGMENT_BYTES - PAGE_BYTES;
    assert!(filled.iter().all(|&(_, bytes)| whole(bytes)), "each segment is filled once: {filled:?}");
    store.close().unwrap();

    let store = noted.open();
    append(&store, frames_of(100)..frames_of(200));
    let later = zeroed_segments(&noted.zeros());
    assert!(later.iter().all(|&(_, bytes)| whole(bytes)), "not again after another opening: {later:?}");
    let commits = noted.commits.lock().unwrap().clone();
    assert!(commits.len() as u64 >= frames_of(200));
    for commit in commits {
        let segment = commit.start / SEGMENT_BYTES;
        let is_filled = later.iter().any(|&(filled, _)| filled == segment);
        assert!(is_filled, "the record at {commit:?} lies in a segment that was never written");
    }
}

#[test]
fn a_block_device_gets_no_zeros() {
    let (noted, store) = NotedWrites::with_store(false);
    append(&store, 0..frames_of(10));
    store.close().unwrap();
    append(&noted.open(), frames_of(10)..frames_of(12));
    assert_eq!(noted.zeros(), []);
}

/// Short openings must not begin with the same zeros again.
#[test]
fn filled_parts_stay_known_although_each_opening_writes_little() {
    let (noted, store) = NotedWrites::with_store(true);
    store.close().unwrap();
    for opening in 0..20 {
        let store = noted.open();
        append(&store, opening * frames_of(1)..(opening + 1) * frames_of(1));
        store.close().unwrap();
    }
    let filled = zeroed_segments(&noted.zeros());
    assert!(filled.iter().all(|&(_, bytes)| bytes <= SEGMENT_BYTES), "{filled:?}");
}

/// A new segment is not written in one go: the parts keep pace with the records.
#[test]
fn zeros_follow_the_records_in_parts() {
    let noted = NotedWrites::new(true);
    let options = MkfsOptions {
        backend: BackendKind::Log,
        segment_bytes: Some(4 * SEGMENT_BYTES as u32),
        ..MkfsOptions::default()
    };
    let device: Arc<dyn Device> = noted.clone();
    // Sixteen segments, besides those with superblocks.
    device.grow(128 << 20).unwrap();
    Store::mkfs(&device, &options).unwrap();
    noted.zeros.lock().unwrap().clear();
    let store = noted.open();
    store.commit(Txn::new().create(STREAM, stream()), Ack::Durable).wait().unwrap();
    assert_eq!(noted.zeros(), [], "nothing is needed yet");
    let mut parts = Vec::new();
    for frame in 0..frames_of(4) {
        append(&store, frame..frame + 1);
        let zeros = noted.zeros();
        if zeros.len() > parts.len() {
            parts = zeros;
            let bytes: u64 = parts.iter().map(|part| part.end - part.start).sum();
            let records = (frame + 4) * 4 * PAGE_BYTES;
            assert!(bytes <= records * 4 / 3 + PAGE_BYTES, "{bytes} bytes of zeros, {records} of records");
        }
    }
    let lengths: Vec<u64> = parts.iter().map(|part| part.end - part.start).collect();
    assert_eq!(lengths, [SEGMENT_BYTES; 4]);
}
