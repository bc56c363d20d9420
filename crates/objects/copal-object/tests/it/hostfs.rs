//! Properties of a store of files: files are created, shrunk and removed with their objects.

use crate::{
    basics::{bytes, commit, plain, read},
    conformance::in_a_directory,
};
use copal_device::MemoryDevice;
use copal_object::*;
use std::{path::Path, sync::Arc};

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir.join("objects"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn create(id: u64, data: bytes::Bytes) -> Vec<Op> {
    let id = ObjectId(id);
    vec![Op::Create { id, opts: plain(ReadCheck::Pages) }, Op::Append { id, at: 0, data }]
}

#[test]
fn a_file_is_removed_with_its_object_and_leftovers_at_open() {
    let dir = tempfile::tempdir().unwrap();
    Store::mkfs_dir(dir.path(), &MkfsOptions::default()).unwrap();
    let open = || Store::open_dir(dir.path(), &OpenOptions::default()).unwrap().0;
    let store = open();
    commit(&store, create(1, bytes(50_000, 1)));
    commit(&store, create(2, bytes(50_000, 2)));
    let before = names(dir.path());
    commit(&store, vec![Op::Delete { id: ObjectId(1) }]);
    store.close().unwrap();
    drop(store);
    let store = open();
    let after = names(dir.path());
    assert!(before.iter().any(|name| !after.contains(name)), "{before:?} became {after:?}");
    assert_eq!(read(&store, 2), bytes(50_000, 2));
    drop(store);
    std::fs::write(dir.path().join("objects/00abcd"), [7; 5000]).unwrap();
    let store = open();
    assert!(!names(dir.path()).contains(&"00abcd".into()), "no record names it");
    commit(&store, create(3, bytes(10_000, 3)));
    assert_eq!(read(&store, 3), bytes(10_000, 3));
}

#[test]
fn an_object_goes_on_in_its_file_after_a_reopen() {
    let (backend, store) = in_a_directory();
    commit(&store, create(1, bytes(8192, 1)));
    store.close().unwrap();
    drop(store);
    let store = backend.open();
    let crate::conformance::Backend::Directory(dir) = &backend else { unreachable!() };
    let before = names(dir.path());
    let more = Op::Append { id: ObjectId(1), at: 8192, data: bytes(8192, 2) };
    commit(&store, vec![more]);
    assert_eq!(names(dir.path()), before);
}

#[test]
fn a_limit_is_kept_and_deleting_makes_room() {
    let dir = tempfile::tempdir().unwrap();
    Store::mkfs_dir(dir.path(), &MkfsOptions::default()).unwrap();
    let options = OpenOptions { max_size_bytes: Some(32 << 20), ..OpenOptions::default() };
    let (store, _) = Store::open_dir(dir.path(), &options).unwrap();
    let fill = |id| {
        let ops = create(id, bytes(4 << 20, id));
        store.commit(Txn::new().ops(ops), Ack::Durable).wait()
    };
    let full = (1..20).find(|&id| fill(id).is_err()).unwrap();
    assert!(full > 2);
    assert!(fill(full).unwrap_err().is_no_space());
    commit(&store, vec![Op::Delete { id: ObjectId(1) }]);
    fill(full).unwrap();
}

#[test]
fn a_store_is_opened_with_its_own_backend() {
    let (backend, store) = in_a_directory();
    drop(store);
    let crate::conformance::Backend::Directory(dir) = &backend else { unreachable!() };
    let head = std::fs::read(dir.path().join("store")).unwrap();
    let mut image = copal_device::Image::zeroed(64 << 20);
    let whole = head.len() / 4096 * 4096;
    image.write(0, &head[..whole.min(64 << 20)]);
    let device = MemoryDevice::from_image(image, u64::MAX);
    let error = Store::open(Arc::clone(&device), &OpenOptions::default()).unwrap_err();
    assert!(matches!(error, StoreOpenError::Backend { .. }), "{error}");
    assert!(Store::mkfs_dir(dir.path(), &MkfsOptions::default()).is_err(), "the store exists already");
}

#[test]
fn a_check_finds_nothing_and_then_the_damage() {
    let (backend, store) = in_a_directory();
    commit(&store, create(1, bytes(500_000, 1)));
    let all = CheckOptions { data: true, ..CheckOptions::default() };
    assert!(store.check(&all).unwrap().damages.is_empty());
    store.close().unwrap();
    drop(store);
    let crate::conformance::Backend::Directory(dir) = &backend else { unreachable!() };
    for name in names(dir.path()) {
        let path = dir.path().join("objects").join(name);
        let mut content = std::fs::read(&path).unwrap();
        if content.len() >= 500_000 {
            content[300_000] ^= 4;
            std::fs::write(&path, content).unwrap();
        }
    }
    let store = backend.open();
    assert_eq!(store.check(&all).unwrap().damages.len(), 1);
}

/// Bytes of all files of a store, and their allocated bytes.
fn sizes(dir: &Path) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    let files = names(dir).into_iter().map(|name| dir.join("objects").join(name));
    let all = files.chain([dir.join("store")]).map(|path| std::fs::metadata(path).unwrap());
    all.fold((0, 0), |(len, taken), file| (len + file.len(), taken + file.blocks() * 512))
}

#[test]
fn opening_and_closing_leaves_a_store_as_large_as_it_was() {
    let (backend, store) = in_a_directory();
    commit(&store, create(1, bytes(8192, 1)));
    store.close().unwrap();
    drop(store);
    let crate::conformance::Backend::Directory(dir) = &backend else { unreachable!() };
    for _ in 0..3 {
        backend.open().close().unwrap();
    }
    let before = sizes(dir.path());
    for _ in 0..50 {
        backend.open().close().unwrap();
    }
    assert_eq!(sizes(dir.path()), before);
}
