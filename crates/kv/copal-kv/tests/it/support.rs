//! Stores over devices in memory, with small settings that make few operations reach every path.

use copal_device::{Device, Image, MemoryDevice};
use copal_kv::{Durability, Error, Keyspace, KeyspaceOptions, MemoryBudget, Options, Store};
use copal_object::{MkfsOptions, OpenOptions, Store as Objects};
pub(crate) use copal_testkit::Random;
use std::{ops::Bound, sync::Arc};

pub(crate) const MIB: u64 = 1 << 20;

/// Bytes that depend only on `tag`, cheap to make and to compare.
pub(crate) fn value(tag: u64, len: usize) -> Vec<u8> {
    Random::new(tag).bytes(len)
}

/// Little memory and small tables: flushes and merges after little data.
pub(crate) fn small() -> Options {
    Options { memory_bytes: 4 * MIB, table_bytes: 64 << 10, ..Options::default() }
}

/// Separates early, and groups by the first byte.
pub(crate) fn grouped() -> KeyspaceOptions {
    KeyspaceOptions {
        group_prefix_len: 1,
        separate_from_bytes: 600,
        direct_from_bytes: 3000,
        ..KeyspaceOptions::default()
    }
}

pub(crate) fn format(device: &Arc<dyn Device>) {
    Objects::mkfs(device, &MkfsOptions::default()).unwrap();
}

pub(crate) fn open_objects(device: &Arc<dyn Device>) -> Objects {
    Objects::open(device.clone(), &OpenOptions::default()).unwrap().0
}

/// A store on a memory device of its own.
pub(crate) struct Fixture {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) objects: Objects,
    pub(crate) store: Store,
}

impl Fixture {
    pub(crate) fn new(size: u64, options: Options) -> Fixture {
        Fixture::made(size, |objects| Store::open(objects, options))
    }

    /// Like `new`, within a memory that others may share.
    pub(crate) fn within(size: u64, options: Options, budget: &MemoryBudget) -> Fixture {
        Fixture::made(size, |objects| Store::open_within(objects, options, budget))
    }

    fn made(size: u64, open: impl FnOnce(Objects) -> Result<Store, Error>) -> Fixture {
        let device = MemoryDevice::from_image(Image::zeroed(size), size);
        format(&device);
        let objects = open_objects(&device);
        let store = open(objects.clone()).unwrap();
        Fixture { device, objects, store }
    }

    /// Closes and reopens, with or without a proper close.
    pub(crate) fn reopen(self, options: Options, properly: bool) -> Fixture {
        let Fixture { device, objects, store } = self;
        if properly {
            store.close().unwrap();
            objects.close().unwrap();
        }
        drop(store);
        drop(objects);
        let objects = open_objects(&device);
        let store = Store::open(objects.clone(), options).unwrap();
        Fixture { device, objects, store }
    }

    pub(crate) fn space(&self, name: &str, options: KeyspaceOptions) -> Keyspace {
        self.store.keyspace(name, options).unwrap()
    }

    /// Bytes of the device that are in use.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.objects.space().live_bytes
    }
}

pub(crate) fn all<'a>() -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
    (Bound::Unbounded, Bound::Unbounded)
}

pub(crate) fn pairs(keyspace: &Keyspace) -> Vec<(Vec<u8>, Vec<u8>)> {
    keyspace
        .iter(all())
        .map(|item| item.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
        .collect()
}

pub(crate) fn assert_sound(store: &Store, deep: bool) {
    let report = store.verify(deep).unwrap();
    assert!(report.is_sound(), "{:#?}", report.problems);
}

pub(crate) const DEVICE: Durability = Durability::Device;
pub(crate) const PROCESS: Durability = Durability::Process;
