//! A store in a file: the device is not in the heap that is counted.

use copal_device::{Device, FileOptions, open_file};
use copal_kv::{Durability, Keyspace, KeyspaceOptions, MemoryBudget, Options, Store};
use copal_object::{MkfsOptions, OpenOptions, Store as Objects};
use std::{path::Path, sync::Arc};

pub(crate) const MIB: u64 = 1 << 20;

/// Linear congruential generator: seeded, so that a failure repeats.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// 0 to `bound` - 1.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

pub(crate) fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Bytes that depend on `tag` alone.
pub(crate) fn value(tag: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(tag);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&random.below(u64::MAX).to_le_bytes());
    }
    out.truncate(len);
    out
}

/// An object store in a new file of `size` bytes.
pub(crate) fn objects(dir: &Path, name: &str, size: u64) -> Objects {
    let device = device(&dir.join(name), Some(size));
    Objects::mkfs(&device, &MkfsOptions::default()).unwrap();
    Objects::open(device, &OpenOptions::default()).unwrap().0
}

/// The file of an object store; `create_size`: a new one.
pub(crate) fn device(path: &Path, create_size: Option<u64>) -> Arc<dyn Device> {
    let options = FileOptions {
        create_size,
        unsafe_volatile: true,
        allow_cow: true,
        ..FileOptions::default()
    };
    open_file(path, &options).unwrap()
}

pub(crate) fn open(objects: &Objects, budget: &MemoryBudget) -> (Store, Keyspace) {
    let options = Options {
        table_bytes: 2 * MIB,
        ..Options::default()
    };
    let store = Store::open_within(objects.clone(), options, budget).unwrap();
    let space = store.keyspace("a", KeyspaceOptions::default()).unwrap();
    (store, space)
}

pub(crate) const DEFERRED: Durability = Durability::Deferred;
