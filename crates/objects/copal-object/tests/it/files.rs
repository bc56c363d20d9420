//! The store in a real file, with both I/O engines.

use crate::basics::{bytes, commit, plain, read, stream};
use copal_device::{Device, FileOptions, open_file};
use copal_object::*;
use std::{path::Path, sync::Arc};

fn device(path: &Path, create: bool, force_pread: bool) -> Arc<dyn Device> {
    let create_size = create.then_some(64 << 20);
    let options = FileOptions {
        create_size,
        force_pread,
        unsafe_volatile: true,
        allow_cow: true,
        ..FileOptions::default()
    };
    open_file(path, &options).unwrap()
}

fn history(force_pread: bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let dev = device(&path, true, force_pread);
    Store::mkfs(&dev, &MkfsOptions::default()).unwrap();
    let store = Store::open(Arc::clone(&dev), &OpenOptions::default()).unwrap().0;
    commit(
        &store,
        (0..4)
            .flat_map(|t| {
                [
                    Op::Create { id: ObjectId(t), opts: stream() },
                    Op::Create { id: ObjectId(10 + t), opts: plain(ReadCheck::Caller) },
                ]
            })
            .collect(),
    );
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let store = store.clone();
            scope.spawn(move || {
                let mut len = 0;
                for i in 0..40u64 {
                    let data = bytes(20_000 + 777 * i as usize, t * 100 + i);
                    let (id, at) = (ObjectId(10 + t), len);
                    len += data.len() as u64;
                    let lsn = store.commit(Txn::new().append(id, at, data), Ack::Ordered).wait().unwrap();
                    let ack = if i % 4 == 0 { Ack::Durable } else { Ack::Written };
                    store.append_frame(ObjectId(t), bytes(100, i), Some(lsn), ack).wait().unwrap();
                }
            });
        }
    });
    // Beyond the first 64 MiB, so that the file grows.
    let mut writer = store.writer(ObjectId(50), plain(ReadCheck::Caller)).unwrap();
    let part = bytes(1 << 20, 9);
    (0..70).for_each(|_| writer.append(&part).unwrap());
    commit(&store, vec![Op::Publish(writer.finish().unwrap())]);
    assert!(store.check(&CheckOptions { data: true, repair: false }).unwrap().damages.is_empty());
    drop(store);
    drop(dev);
    let dev = device(&path, false, !force_pread);
    let store = Store::open(Arc::clone(&dev), &OpenOptions::default()).unwrap().0;
    for t in 0..4u64 {
        let wanted: Vec<u8> =
            (0..40u64).flat_map(|i| bytes(20_000 + 777 * i as usize, t * 100 + i)).collect();
        assert!(read(&store, 10 + t) == wanted[..]);
        let mut reader = store.frames(ObjectId(t), FramePos(0)).unwrap();
        for i in 0..40 {
            assert_eq!(reader.next_frame().unwrap().unwrap().1, bytes(100, i));
        }
    }
    store.close().unwrap();
    assert!(std::fs::metadata(&path).unwrap().len() > 64 << 20);
}

#[test]
fn a_store_in_a_file_with_io_uring() {
    history(false);
}

#[test]
fn a_store_in_a_file_with_a_thread_pool() {
    history(true);
}

#[test]
fn a_file_opened_without_the_right_to_write_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let dev = device(&path, true, false);
    Store::mkfs(&dev, &MkfsOptions::default()).unwrap();
    let store = Store::open(dev, &OpenOptions::default()).unwrap().0;
    let (id, data) = (ObjectId(1), bytes(10_000, 1));
    commit(
        &store,
        vec![Op::Create { id, opts: plain(ReadCheck::Pages) }, Op::Append { id, at: 0, data: data.clone() }],
    );
    drop(store);
    let before = std::fs::read(&path).unwrap();
    let options =
        FileOptions { read_only: true, unsafe_volatile: true, allow_cow: true, ..FileOptions::default() };
    let dev = open_file(&path, &options).unwrap();
    let refused = Store::open(Arc::clone(&dev), &OpenOptions::default());
    assert!(matches!(refused, Err(StoreOpenError::Device(_))));
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let store = Store::open(dev, &options).unwrap().0;
    assert_eq!(read(&store, 1), data);
    assert!(store.check(&CheckOptions { data: true, repair: false }).unwrap().is_clean());
    drop(store);
    assert!(before == std::fs::read(&path).unwrap());
}
