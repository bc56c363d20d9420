//! Volumes on engine, object store and device, for tests.

use bytes::Bytes;
use copal_data::{CheckOptions, LocalOptions, LocalStore};
use copal_device::{Device, MemoryDevice};
use copal_volume::{ManualClock, PutOptions, VolumeError, VolumeId, VolumeOptions, VolumeStore};
use std::sync::Arc;

pub(crate) const MIB: u64 = 1 << 20;

/// A device of `bytes` in memory with an empty object store on it.
pub(crate) fn blank(bytes: u64) -> Arc<dyn Device> {
    let device = MemoryDevice::new(bytes);
    format(&device);
    device
}

/// Puts an empty object store on the device.
pub(crate) fn format(device: &Arc<dyn Device>) {
    copal_object::Store::mkfs(device, &copal_object::MkfsOptions::default()).expect("mkfs");
}

/// The engine on the device.
pub(crate) fn engine(device: &Arc<dyn Device>) -> copal_kv::Store {
    let options = copal_object::OpenOptions {
        // It does not grow: a full device is a full store.
        max_size_bytes: Some(device.geometry().size),
        ..copal_object::OpenOptions::default()
    };
    let (objects, _) = copal_object::Store::open(Arc::clone(device), &options).expect("objects");
    let options = copal_kv::Options { memory_bytes: 16 * MIB, ..copal_kv::Options::default() };
    copal_kv::Store::open(objects, options).expect("engine")
}

/// The volumes on the device.
pub(crate) fn open(device: &Arc<dyn Device>) -> LocalStore {
    LocalStore::open(engine(device)).expect("volumes")
}

/// The volumes on the device, with a clock of the test.
pub(crate) fn open_at(device: &Arc<dyn Device>, clock: &Arc<ManualClock>) -> LocalStore {
    let options = LocalOptions { clock: Some(clock.clone()), incarnation: None };
    LocalStore::open_with(engine(device), options).expect("volumes")
}

/// A fresh store in memory.
pub(crate) fn fresh() -> LocalStore {
    open(&blank(256 * MIB))
}

/// A new volume below the root.
pub(crate) fn volume(store: &LocalStore, name: &str) -> VolumeId {
    store.create_volume("", name, &VolumeOptions::default()).expect("create a volume")
}

/// Creates a file without metadata.
pub(crate) fn put(
    store: &LocalStore,
    vid: VolumeId,
    name: &[u8],
    body: Bytes,
) -> Result<copal_volume::FileInfo, VolumeError> {
    store.put(vid, name, body, &PutOptions::default())
}

/// Reads a whole file.
pub(crate) fn get(store: &LocalStore, vid: VolumeId, name: &[u8]) -> Result<Bytes, VolumeError> {
    store.get(vid, name, 0..u64::MAX, &copal_volume::ReadOptions::default())
}

/// `len` bytes, different for each seed and incompressible.
pub(crate) fn body(seed: u64, len: usize) -> Bytes {
    let mut random = copal_testkit::Random::new(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    Bytes::from(bytes)
}

/// A check that reads every byte.
pub(crate) fn everything() -> CheckOptions {
    CheckOptions { read_data: true, engine: true, verified: None }
}
