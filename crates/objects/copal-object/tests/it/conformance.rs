//! Conformance of every backend: a device in memory, a directory of files.

use crate::{
    basics::{bytes, commit, fresh, open, plain, read, stream},
    model, truncations,
};
use copal_device::{Device, IoClass, MemoryDevice};
use copal_object::*;
use std::sync::Arc;

/// Storage below a store, so that it can be opened again.
pub(crate) enum Backend {
    Memory(Arc<dyn Device>),
    /// Data of small commits lies in records.
    Inline(Arc<dyn Device>),
    Directory(tempfile::TempDir),
}

impl Backend {
    pub(crate) fn open(&self) -> Store {
        match self {
            Backend::Memory(device) => open(device),
            Backend::Inline(device) => {
                let options = OpenOptions { inline_data: Some(true), ..OpenOptions::default() };
                Store::open(Arc::clone(device), &options).unwrap().0
            }
            Backend::Directory(dir) => Store::open_dir(dir.path(), &OpenOptions::default()).unwrap().0,
        }
    }
}

/// Makes a new store.
pub(crate) type Make = fn() -> (Backend, Store);

pub(crate) fn in_memory() -> (Backend, Store) {
    let (device, store) = fresh();
    (Backend::Memory(device), store)
}

pub(crate) fn with_inline_data() -> (Backend, Store) {
    let (device, store) = fresh();
    drop(store);
    let backend = Backend::Inline(device);
    let store = backend.open();
    (backend, store)
}

pub(crate) fn in_a_directory() -> (Backend, Store) {
    let dir = tempfile::tempdir().unwrap();
    Store::mkfs_dir(dir.path(), &MkfsOptions::default()).unwrap();
    let backend = Backend::Directory(dir);
    let store = backend.open();
    (backend, store)
}

#[test]
fn the_cow_backend_conforms() {
    conforms(in_memory);
    model::a_random_history_reads_like_the_model(in_memory, 6);
}

#[test]
fn the_cow_backend_with_inline_data_conforms() {
    conforms(with_inline_data);
    model::a_random_history_reads_like_the_model(with_inline_data, 6);
}

pub(crate) fn in_segments() -> (Backend, Store) {
    in_segments_of(1 << 20, 4096)
}

fn in_segments_of_large_pages() -> (Backend, Store) {
    in_segments_of(1 << 20, 8192)
}

fn in_segments_of(segment_bytes: u32, page_bytes: u32) -> (Backend, Store) {
    let device: Arc<dyn Device> = MemoryDevice::new(64 << 20);
    let options = MkfsOptions {
        backend: BackendKind::Log,
        segment_bytes: Some(segment_bytes),
        page_bytes: Some(page_bytes),
        ..MkfsOptions::default()
    };
    Store::mkfs(&device, &options).unwrap();
    let store = open(&device);
    (Backend::Memory(device), store)
}

#[test]
fn the_log_backend_conforms() {
    conforms(in_segments);
    conforms(in_segments_of_large_pages);
    model::a_random_history_reads_like_the_model(in_segments, 6);
}

#[test]
fn the_hostfs_backend_conforms() {
    conforms(in_a_directory);
    model::a_random_history_reads_like_the_model(in_a_directory, 3);
}

fn conforms(make: Make) {
    written_bytes_are_read_before_and_after_a_reopen(make);
    frames_come_back_in_order(make);
    truncations::a_stream_continues_where_it_was_cut(make);
    a_published_object_is_read_and_deleted(make);
}

const A: ObjectId = ObjectId(1);
const B: ObjectId = ObjectId(2);

fn written_bytes_are_read_before_and_after_a_reopen(make: Make) {
    for check in [ReadCheck::Pages, ReadCheck::Caller] {
        let (backend, store) = make();
        let data = bytes(300_000, 1);
        commit(
            &store,
            vec![
                Op::Create { id: A, opts: plain(check) },
                Op::Append { id: A, at: 0, data: data.slice(..100_000) },
                Op::Append { id: A, at: 100_000, data: data.slice(100_000..100_500) },
            ],
        );
        commit(&store, vec![Op::Append { id: A, at: 100_500, data: data.slice(100_500..) }]);
        assert_eq!(read(&store, 1), data);
        drop(store);
        let store = backend.open();
        assert_eq!(read(&store, 1), data);
        store.close().unwrap();
        assert_eq!(
            store.commit(Txn::new(), Ack::Durable).wait().unwrap_err().to_string(),
            StoreError::Fenced.to_string()
        );
        drop(store);
        let store = backend.open();
        assert_eq!(read(&store, 1), data);
        let part = store.read(A, 99_000..101_000, IoClass::Foreground).wait().unwrap();
        assert_eq!(part, data.slice(99_000..101_000));
    }
}

fn frames_come_back_in_order(make: Make) {
    let (backend, store) = make();
    commit(&store, vec![Op::Create { id: A, opts: stream() }]);
    for frame in 0..50u64 {
        let ack = [Ack::Durable, Ack::Written, Ack::Ordered][frame as usize % 3];
        let pos = store.append_frame(A, bytes(1 + 300 * frame as usize, frame), None, ack).wait().unwrap();
        assert_eq!(pos, FramePos(frame));
    }
    for _ in 0..3 {
        drop(store.clone());
    }
    let check = |store: &Store| {
        let mut reader = store.frames(A, FramePos(7)).unwrap();
        for frame in 7..50u64 {
            let (pos, payload) = reader.next_frame().unwrap().unwrap();
            assert_eq!(pos, FramePos(frame));
            assert_eq!(payload, bytes(1 + 300 * frame as usize, frame));
        }
        assert!(reader.next_frame().unwrap().is_none());
    };
    check(&store);
    drop(store);
    let store = backend.open();
    check(&store);
    store.append_frame(A, bytes(10, 99), None, Ack::Durable).wait().unwrap();
    store.close().unwrap();
    drop(store);
    let store = backend.open();
    let mut reader = store.frames(A, FramePos(50)).unwrap();
    assert_eq!(reader.next_frame().unwrap().unwrap().1, bytes(10, 99));
}

fn a_published_object_is_read_and_deleted(make: Make) {
    for check in [ReadCheck::Pages, ReadCheck::Caller] {
        let (backend, store) = make();
        let data = bytes(5_000_123, 4);
        let live = store.space().live_bytes;
        let mut writer = store.writer(A, plain(check)).unwrap();
        for part in data.chunks(77_777) {
            writer.append(part).unwrap();
        }
        let staged = writer.finish().unwrap();
        commit(&store, vec![Op::Publish(staged)]);
        assert_eq!(read(&store, 1), data);
        drop(store);
        let store = backend.open();
        assert_eq!(read(&store, 1), data);
        let part = store.read(A, 3_000_000..3_001_000, IoClass::Foreground).wait().unwrap();
        assert_eq!(part, data.slice(3_000_000..3_001_000));
        commit(&store, vec![Op::Clone { from: A, to: B }, Op::Delete { id: A }]);
        assert_eq!(read(&store, 2), data);
        assert!(store.stat(A).is_none());
        commit(&store, vec![Op::Delete { id: B }]);
        drop(store);
        assert!(backend.open().space().live_bytes <= live + (64 << 10));
    }
}
