//! Effect of each operation, before and after a reopen.

use bytes::Bytes;
use copal_device::{Device, IoClass, MemoryDevice};
use copal_object::*;
use std::sync::Arc;

pub(crate) fn fresh() -> (Arc<dyn Device>, Store) {
    let device = MemoryDevice::new(64 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let store = open(&device);
    (device, store)
}

pub(crate) fn open(device: &Arc<dyn Device>) -> Store {
    Store::open(Arc::clone(device), &OpenOptions::default()).unwrap().0
}

pub(crate) fn plain(check: ReadCheck) -> CreateOptions {
    CreateOptions { check, ..CreateOptions::default() }
}

pub(crate) fn stream() -> CreateOptions {
    CreateOptions { kind: ObjectKind::Stream, ..CreateOptions::default() }
}

pub(crate) fn commit(store: &Store, ops: Vec<Op>) -> Lsn {
    store.commit(Txn::new().ops(ops), Ack::Durable).wait().unwrap()
}

pub(crate) fn read(store: &Store, id: u64) -> Bytes {
    store.read(ObjectId(id), 0..u64::MAX, IoClass::Foreground).wait().unwrap()
}

pub(crate) fn bytes(len: usize, seed: u64) -> Bytes {
    Bytes::from(copal_testkit::Random::new(seed).bytes(len))
}
