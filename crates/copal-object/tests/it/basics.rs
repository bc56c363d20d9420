//! What each operation does, seen before and after a reopen.

use bytes::Bytes;
use copal_device::{Class, Device, MemoryDevice};
use copal_object::*;
use std::sync::Arc;

pub(crate) fn fresh() -> (Arc<dyn Device>, Store) {
    let device = MemoryDevice::new(64 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let store = open(&device);
    (device, store)
}

pub(crate) fn open(device: &Arc<dyn Device>) -> Store {
    Store::open(Arc::clone(device), &OpenOptions::default())
        .unwrap()
        .0
}

pub(crate) fn plain(check: Check) -> CreateOptions {
    CreateOptions {
        check,
        ..CreateOptions::default()
    }
}

pub(crate) fn stream() -> CreateOptions {
    CreateOptions {
        kind: ObjectKind::Stream,
        ..CreateOptions::default()
    }
}

pub(crate) fn commit(store: &Store, ops: Vec<Op>) -> Lsn {
    store
        .commit(
            Txn {
                ops,
                after: Vec::new(),
            },
            Ack::Durable,
        )
        .wait()
        .unwrap()
}

pub(crate) fn read(store: &Store, id: u64) -> Bytes {
    store
        .read(ObjectId(id), 0..u64::MAX, Class::Foreground)
        .wait()
        .unwrap()
}

pub(crate) fn bytes(len: usize, seed: u64) -> Bytes {
    let mut state = seed;
    Bytes::from_iter((0..len).map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    }))
}

const A: ObjectId = ObjectId(1);
const B: ObjectId = ObjectId(2);

#[test]
fn what_was_written_is_read_before_and_after_a_reopen() {
    for check in [Check::Pages, Check::Caller] {
        let (device, store) = fresh();
        let data = bytes(300_000, 1);
        commit(
            &store,
            vec![
                Op::Create {
                    id: A,
                    opts: plain(check),
                },
                Op::Append {
                    id: A,
                    at: 0,
                    data: data.slice(..100_000),
                },
                Op::Append {
                    id: A,
                    at: 100_000,
                    data: data.slice(100_000..100_500),
                },
            ],
        );
        commit(
            &store,
            vec![Op::Append {
                id: A,
                at: 100_500,
                data: data.slice(100_500..),
            }],
        );
        assert_eq!(read(&store, 1), data);
        drop(store);
        let store = open(&device);
        assert_eq!(read(&store, 1), data);
        store.close().unwrap();
        assert_eq!(
            store
                .commit(Txn::default(), Ack::Durable)
                .wait()
                .unwrap_err()
                .to_string(),
            StoreError::Fenced.to_string()
        );
        drop(store);
        let store = open(&device);
        assert_eq!(read(&store, 1), data);
        let part = store.read(A, 99_000..101_000, Class::Foreground).wait().unwrap();
        assert_eq!(part, data.slice(99_000..101_000));
    }
}

#[test]
fn frames_come_back_in_order() {
    let (device, store) = fresh();
    commit(
        &store,
        vec![Op::Create {
            id: A,
            opts: stream(),
        }],
    );
    for frame in 0..50u64 {
        let ack = [Ack::Durable, Ack::Written, Ack::Ordered][frame as usize % 3];
        let pos = store
            .append_frame(A, bytes(1 + 300 * frame as usize, frame), None, ack)
            .wait()
            .unwrap();
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
    let store = open(&device);
    check(&store);
    store
        .append_frame(A, bytes(10, 99), None, Ack::Durable)
        .wait()
        .unwrap();
    store.close().unwrap();
    drop(store);
    let store = open(&device);
    let mut reader = store.frames(A, FramePos(50)).unwrap();
    assert_eq!(reader.next_frame().unwrap().unwrap().1, bytes(10, 99));
}

#[test]
fn a_published_object_is_read_and_deleted() {
    for check in [Check::Pages, Check::Caller] {
        let (device, store) = fresh();
        let data = bytes(5_000_123, 4);
        let free = store.space().free_bytes;
        let mut writer = store.writer(A, plain(check)).unwrap();
        for part in data.chunks(77_777) {
            writer.append(part).unwrap();
        }
        let staged = writer.finish().unwrap();
        commit(&store, vec![Op::Publish(staged)]);
        assert_eq!(read(&store, 1), data);
        drop(store);
        let store = open(&device);
        assert_eq!(read(&store, 1), data);
        let part = store
            .read(A, 3_000_000..3_001_000, Class::Foreground)
            .wait()
            .unwrap();
        assert_eq!(part, data.slice(3_000_000..3_001_000));
        commit(&store, vec![Op::Clone { from: A, to: B }, Op::Delete { id: A }]);
        assert_eq!(read(&store, 2), data);
        assert!(store.stat(A).is_none());
        commit(&store, vec![Op::Delete { id: B }]);
        drop(store);
        assert!(open(&device).space().free_bytes >= free - (64 << 10));
    }
}
