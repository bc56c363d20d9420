//! A store in a file, so that the device is not in the counted heap.

use copal_device::{Device, FileOptions, open_file};
use copal_kv::{Durability, Keyspace, KeyspaceOptions, MemoryBudget, Options, Store};
use copal_object::{MkfsOptions, OpenOptions, Store as Objects};
pub(crate) use copal_testkit::Random;
use std::{path::Path, sync::Arc};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&copal_testkit::scattered(number).to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Bytes that depend only on `tag`.
pub(crate) fn value(tag: u64, len: usize) -> Vec<u8> {
    Random::new(tag).bytes(len)
}

/// An object store in a new file of `size` bytes.
pub(crate) fn objects(dir: &Path, name: &str, size: u64) -> Objects {
    let device = device(&dir.join(name), Some(size));
    Objects::mkfs(&device, &MkfsOptions::default()).unwrap();
    Objects::open(device, &OpenOptions::default()).unwrap().0
}

/// The file of an object store; `create_size`: makes a new one.
pub(crate) fn device(path: &Path, create_size: Option<u64>) -> Arc<dyn Device> {
    let options =
        FileOptions { create_size, unsafe_volatile: true, allow_cow: true, ..FileOptions::default() };
    open_file(path, &options).unwrap()
}

pub(crate) fn open(objects: &Objects, budget: &MemoryBudget) -> (Store, Keyspace) {
    let options = Options { table_bytes: 2 * MIB, ..Options::default() };
    let store = Store::open_within(objects.clone(), options, budget).unwrap();
    let space = store.keyspace("a", KeyspaceOptions::default()).unwrap();
    (store, space)
}

pub(crate) const DEFERRED: Durability = Durability::Deferred;
