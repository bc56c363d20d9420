//! The same engine on real files: one preallocated file, and a directory of files.

use crate::support::*;
use copal_device::{FileOptions, open_file};
use copal_kv::{Options, Store};
use copal_object::{MkfsOptions, OpenOptions, Store as Objects};
use std::{collections::BTreeMap, path::Path};

type Opener = fn(&Path) -> Objects;

/// Puts, overwrites, deletes and merges over several openings; each opening finds the state of the previous
/// one.
fn lives_on(path: &Path, open: Opener) {
    let mut random = Random::new(17);
    let mut model: BTreeMap<Vec<u8>, (u64, usize)> = BTreeMap::new();
    for round in 0..4u64 {
        let objects = open(path);
        let options = Options { bottom_share: 0, ..small() };
        let store = Store::open(objects.clone(), options).unwrap();
        let space = store.keyspace("a", grouped()).unwrap();
        let found: BTreeMap<_, _> = space.iter(all()).map(Result::unwrap).collect();
        assert_eq!(found.len(), model.len());
        for (key, (tag, len)) in &model {
            assert_eq!(found[&key[..]], value(*tag, *len));
        }
        for i in 0..150u64 {
            let key = vec![b'a' + random.below(3) as u8, random.below(40) as u8];
            if random.below(4) == 0 {
                space.delete(&key, PROCESS).unwrap();
                model.remove(&key);
            } else {
                let (tag, len) = (round << 32 | i, [30, 1000, 9000, 200_000][random.below(4) as usize]);
                space.put(&key, &value(tag, len), if i % 10 == 0 { DEVICE } else { PROCESS }).unwrap();
                model.insert(key, (tag, len));
            }
            if i % 30 == 29 {
                store.flush().unwrap();
            }
        }
        if round == 2 {
            space.compact_range(all()).unwrap();
        }
        assert_sound(&store, true);
        drop(space);
        if round % 2 == 0 {
            store.close().unwrap();
        }
        drop(store);
        objects.close().unwrap();
    }
}

#[test]
fn one_preallocated_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let create = FileOptions {
        create_size: Some(96 * MIB),
        allow_cow: true,
        unsafe_volatile: true,
        ..Default::default()
    };
    let device = open_file(&path, &create).unwrap();
    format(&device);
    drop(device);
    lives_on(&path, |path| {
        let options = FileOptions { allow_cow: true, unsafe_volatile: true, ..Default::default() };
        open_objects(&open_file(path, &options).unwrap())
    });
}

#[test]
fn a_directory_of_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    Objects::mkfs_dir(&path, &MkfsOptions::default()).unwrap();
    lives_on(&path, |path| Objects::open_dir(path, &OpenOptions::default()).unwrap().0);
}
