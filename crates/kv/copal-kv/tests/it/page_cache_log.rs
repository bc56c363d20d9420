//! The page-cache log from its users' view: kill-safe writes that wait for no device, and stores without one.

use crate::support::*;
use copal_device::{
    Device, FileOptions, Image, MemoryDevice,
    fault::{CompletionOrder, Fault, FaultDevice, FaultOptions, WriteFault},
    open_file,
};
use copal_kv::{Durability, Error, Keyspace, KeyspaceOptions, Options, Store};
use copal_object::{CheckOptions, ObjectKind};
use std::sync::Arc;

fn plain(store: &Store) -> Keyspace {
    store.keyspace("a", KeyspaceOptions::default()).unwrap()
}

fn put(space: &Keyspace, number: u64, durability: Durability) {
    space.put(&number.to_be_bytes(), &value(number, 1000), durability).unwrap();
}

fn holds(space: &Keyspace, count: u64) {
    assert_eq!(space.iter(all()).keys_only().count() as u64, count);
    for number in (0..count).step_by(7) {
        let found = space.get(&number.to_be_bytes()).unwrap();
        assert_eq!(found.unwrap(), value(number, 1000), "value {number}");
    }
}

#[test]
fn kill_safe_writes_wait_for_no_device() {
    let fixture = Fixture::new(256 * MIB, Options::default());
    let space = plain(&fixture.store);
    put(&space, 0, PROCESS);
    let before = fixture.store.stats();
    (1..2000).for_each(|number| put(&space, number, PROCESS));
    let after = fixture.store.stats();
    let groups = after.kill_safe_groups - before.kill_safe_groups;
    assert!(groups >= 1990, "{groups} of 1999 groups went through the room");
    let writes = after.device_writes - before.device_writes;
    assert!(writes < 100, "{writes} writes of the device for 1999 groups");
    holds(&space, 2000);
}

#[test]
fn without_kill_safe_writes_there_is_no_page_cache_log() {
    let fixture = Fixture::new(64 * MIB, small());
    let space = plain(&fixture.store);
    (0..50).for_each(|number| put(&space, number, [DEVICE, Durability::Deferred][number as usize % 2]));
    let room = |stat: &copal_object::ObjectStat| stat.label.starts_with(b"kv wait");
    assert!(!fixture.objects.list(copal_object::ObjectId(0), 100).iter().any(room));
    put(&space, 50, PROCESS);
    let all = fixture.objects.list(copal_object::ObjectId(0), 100);
    let room = all.iter().find(|stat| room(stat)).unwrap();
    assert_eq!((room.kind, room.len), (ObjectKind::Stream, 0));
    assert!(room.allocated_bytes <= 64 * MIB / 64);
}

#[test]
fn waiting_writes_survive_a_close_and_a_kill_and_recovery_writes_nothing() {
    for properly in [true, false] {
        let mut fixture = Fixture::new(64 * MIB, small());
        for round in 0..4 {
            let space = plain(&fixture.store);
            (round * 100..round * 100 + 100).for_each(|number| put(&space, number, PROCESS));
            drop(space);
            fixture = fixture.reopen(small(), properly);
            holds(&plain(&fixture.store), round * 100 + 100);
            assert_sound(&fixture.store, false);
        }
        let report = fixture.objects.check(&CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{:?}", report.damages);
    }
}

/// A device as a killed process leaves it, with writes that only the page-cache log holds.
fn killed_with(count: u64) -> Arc<FaultDevice> {
    let options = FaultOptions {
        order: CompletionOrder::Immediate,
        max_size: 64 * MIB,
        record: false,
        ..FaultOptions::default()
    };
    let device = FaultDevice::with_options(Image::zeroed(64 * MIB), options);
    format(&(device.clone() as Arc<dyn Device>));
    let store = Store::open(open_objects(&(device.clone() as Arc<dyn Device>)), small()).unwrap();
    let space = plain(&store);
    (0..count).for_each(|number| put(&space, number, PROCESS));
    assert!(store.stats().kill_safe_groups > 0);
    let killed = device.reopen();
    drop((space, store));
    killed
}

#[test]
fn a_store_that_is_only_read_shows_waiting_writes_and_writes_nothing() {
    let device: Arc<dyn Device> = killed_with(60);
    let reading = || Options { read_only: true, ..small() };
    let objects = open_objects(&device);
    let before = device.counters().writes;
    for _ in 0..2 {
        let store = Store::open(objects.clone(), reading()).unwrap();
        holds(&store.open_keyspace("a").unwrap().unwrap(), 60);
    }
    assert_eq!(device.counters().writes, before);
    let store = Store::open(objects, small()).unwrap();
    holds(&plain(&store), 60);
}

#[test]
fn a_store_with_less_memory_makes_tables_of_waiting_writes() {
    let device: Arc<dyn Device> = killed_with(400);
    let least = Options { memory_bytes: 0, ..small() };
    let store = Store::open(open_objects(&device), least).unwrap();
    holds(&plain(&store), 400);
    let stats = store.stats();
    assert!(stats.memory_bytes <= 4 * MIB, "{} bytes", stats.memory_bytes);
    put(&plain(&store), 400, PROCESS);
    holds(&plain(&store), 401);
}

/// A device without page cache: every group is written to the device, and records from before are still
/// found.
struct WithoutCache(Arc<dyn Device>);

impl Device for WithoutCache {
    fn geometry(&self) -> copal_device::Geometry {
        self.0.geometry()
    }
    fn submit(&self, ios: Vec<copal_device::Io>) -> copal_device::Completion<Vec<copal_device::IoDone>> {
        self.0.submit(ios)
    }
    fn read_now(
        &self,
        at: u64,
        buf: copal_device::AlignedBuf,
    ) -> Result<copal_device::AlignedBuf, copal_device::DeviceError> {
        self.0.read_now(at, buf)
    }
    fn write_through(
        &self,
        at: u64,
        buf: copal_device::AlignedBuf,
    ) -> Result<copal_device::AlignedBuf, copal_device::DeviceError> {
        self.0.write_through(at, buf)
    }
    fn grow(&self, size: u64) -> Result<u64, copal_device::DeviceError> {
        self.0.grow(size)
    }
    fn counters(&self) -> copal_device::DeviceCounters {
        self.0.counters()
    }
    fn drive(&self) -> bool {
        self.0.drive()
    }
}

#[test]
fn without_a_page_cache_kill_safe_writes_go_to_the_device_and_waiting_ones_are_found() {
    let device = MemoryDevice::from_image(killed_with(40).image(), 64 * MIB);
    let device: Arc<dyn Device> = Arc::new(WithoutCache(device));
    for round in 0..3 {
        let store = Store::open(open_objects(&device), small()).unwrap();
        let space = plain(&store);
        holds(&space, 40 + round * 10);
        (0..10).for_each(|i| put(&space, 40 + round * 10 + i, PROCESS));
        assert_eq!(store.stats().kill_safe_groups, 0);
    }
}

#[test]
fn a_copy_that_fails_ends_writing_and_nothing_acknowledged_is_lost() {
    let device = killed_with(20);
    let store = Store::open(open_objects(&(device.clone() as Arc<dyn Device>)), small()).unwrap();
    let space = plain(&store);
    (20..40).for_each(|number| put(&space, number, PROCESS));
    device.inject(Fault::Write { skip: 0, fault: WriteFault::Error });
    let failed = space.put(b"k", b"v", PROCESS).unwrap_err();
    assert!(matches!(failed, Error::Poisoned { .. }), "{failed}");
    assert!(matches!(space.put(b"k", b"v", PROCESS), Err(Error::Poisoned { .. })));
    assert!(space.get(b"k").unwrap().is_none(), "it was refused");
    let device = device.reopen();
    drop((space, store));
    let store = Store::open(open_objects(&(device as Arc<dyn Device>)), small()).unwrap();
    let space = plain(&store);
    for number in 0..40u64 {
        let found = space.get(&number.to_be_bytes()).unwrap();
        assert_eq!(found.unwrap(), value(number, 1000), "value {number}");
    }
}

#[test]
fn threads_of_all_promises_share_the_room() {
    let dir = tempfile::tempdir().unwrap();
    let create = FileOptions {
        create_size: Some(128 * MIB),
        allow_cow: true,
        unsafe_volatile: true,
        ..FileOptions::default()
    };
    let device = open_file(&dir.path().join("store"), &create).unwrap();
    format(&device);
    let store = Store::open(open_objects(&device), small()).unwrap();
    let space = plain(&store);
    let promises = [PROCESS, PROCESS, Durability::Deferred, DEVICE];
    std::thread::scope(|scope| {
        for (thread, durability) in (0u64..).zip(promises) {
            let space = &space;
            scope.spawn(move || (0..500).for_each(|i| put(space, i * 4 + thread, durability)));
        }
    });
    holds(&space, 2000);
    drop((space, store));
    let store = Store::open(open_objects(&device), small()).unwrap();
    holds(&plain(&store), 2000);
}
