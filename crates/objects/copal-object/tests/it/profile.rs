//! The profile of a device in a store: kept by it, and obeyed at its opening.

use crate::basics::{bytes, commit, fresh, open, plain, read};
use copal_device::{
    Device, MemoryDevice,
    probe::{DeviceProbe, DeviceProfile, ProbeOptions, ProfileBackend},
};
use copal_object::*;
use std::{sync::Arc, time::Duration};

fn profile() -> DeviceProfile {
    let device = MemoryDevice::new(32 << 20);
    let options = ProbeOptions { time_limit: Duration::from_millis(50), ..ProbeOptions::of(&*device) };
    let measured = DeviceProbe::new(&*device, options).run(&mut |_| ()).unwrap();
    DeviceProfile {
        gap_bytes: 3 << 20,
        read_knee: 16,
        write_knee: 8,
        page_bytes: 8192,
        read_ns: 12_500_000,
        write_bytes_per_s: 190_000_000,
        ..measured
    }
}

#[test]
fn a_profile_is_written_and_obeyed_from_the_next_opening_on() {
    let (device, store) = fresh();
    let profile = profile();
    assert_eq!((store.profile(), store.gap_bytes(), store.depth()), (None, 64 << 10, 64));
    let data = bytes(100_000, 1);
    let txn = Txn::new().create(ObjectId(9), plain(ReadCheck::Pages)).append(ObjectId(9), 0, data.clone());
    store.commit(txn, Ack::Durable).wait().unwrap();
    store.set_profile(&profile).unwrap();
    assert_eq!(store.profile(), Some(profile.clone()));
    drop(store);
    // After a kill, after a close, and after more checkpoints.
    for _ in 0..3 {
        let store = open(&device);
        assert_eq!(store.profile(), Some(profile.clone()));
        assert_eq!((store.gap_bytes(), store.read_ahead_bytes(), store.depth()), (3 << 20, 8 << 20, 32));
        assert_eq!(read(&store, 9), data);
        commit(&store, vec![Op::Write { id: ObjectId(9), at: 0, data: data.clone() }]);
        store.close().unwrap();
    }
    let options = OpenOptions { gap_bytes: Some(4096), read_only: true, ..OpenOptions::default() };
    let (store, _) = Store::open(device, &options).unwrap();
    assert_eq!(store.gap_bytes(), 4096, "a person knows better");
    assert!(matches!(store.set_profile(&profile), Err(StoreError::ReadOnly)));
}

#[test]
fn a_new_store_has_pages_and_segments_of_its_profile() {
    for (backend, size) in [(BackendKind::Cow, 64u64 << 20), (BackendKind::Log, 256 << 20)] {
        let device: Arc<dyn Device> = MemoryDevice::new(size);
        assert!(!Store::is_on(&*device).unwrap());
        let profile = DeviceProfile { backend: ProfileBackend::Log, ..profile() };
        let options = MkfsOptions { backend, profile: Some(profile.clone()), ..MkfsOptions::default() };
        Store::mkfs(&device, &options).unwrap();
        assert!(Store::is_on(&*device).unwrap());
        let store = open(&device);
        assert_eq!((store.profile(), store.backend()), (Some(profile), backend));
        commit(&store, vec![Op::Create { id: ObjectId(1), opts: plain(ReadCheck::Pages) }]);
        commit(&store, vec![Op::Append { id: ObjectId(1), at: 0, data: bytes(1, 2) }]);
        assert_eq!(store.stat(ObjectId(1)).unwrap().allocated_bytes, 8192);
        store.close().unwrap();
    }
}

#[test]
fn a_directory_takes_no_segments() {
    let scratch = tempfile::tempdir().unwrap();
    let options = MkfsOptions { backend: BackendKind::Log, ..MkfsOptions::default() };
    let refused = Store::mkfs_dir(&scratch.path().join("store"), &options);
    assert!(matches!(refused, Err(StoreOpenError::Options { .. })), "{refused:?}");
    assert!(!scratch.path().join("store").exists());
}
