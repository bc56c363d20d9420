//! Waiting for freed space while other threads free more.

use crate::basics::{bytes, plain};
use copal_device::{
    AlignedBuf, Completion, CompletionDriver, Device, DeviceCounters, DeviceError, Geometry, Io, IoClass,
    IoDone, IoKind, MemoryDevice,
};
use copal_object::*;
use parking_lot::Mutex;
use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

/// A device that runs a hook at the next flush, or at the next read.
struct Hooked {
    below: Arc<dyn Device>,
    at_flush: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    at_read: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Device for Hooked {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }
    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        if ios.iter().any(|io| matches!(io.kind, IoKind::Flush)) {
            let hook = self.at_flush.lock().take();
            hook.into_iter().for_each(|hook| hook());
        }
        self.below.submit(ios)
    }
    fn read_now(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        let hook = self.at_read.lock().take();
        hook.into_iter().for_each(|hook| hook());
        self.below.read_now(at, buf)
    }
    fn write_through(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.below.write_through(at, buf)
    }
    fn grow(&self, size: u64) -> Result<u64, DeviceError> {
        self.below.grow(size)
    }
    fn counters(&self) -> DeviceCounters {
        self.below.counters()
    }
    fn drive(&self) -> bool {
        self.below.drive()
    }
    fn driver(&self) -> Option<Arc<dyn CompletionDriver>> {
        self.below.driver()
    }
}

fn change(store: &Store, ops: Vec<Op>) -> Result<Lsn, StoreError> {
    let txn = Txn::new().ops(ops);
    store.commit(txn, Ack::Ordered).wait()
}

fn create(store: &Store, id: u64, mib: usize) -> Result<Lsn, StoreError> {
    let id = ObjectId(id);
    let opts = plain(ReadCheck::Caller);
    let data = bytes(mib << 20, 3);
    change(store, vec![Op::Create { id, opts }, Op::Append { id, at: 0, data }])
}

fn delete(store: &Store, id: u64) {
    change(store, vec![Op::Delete { id: ObjectId(id) }]).unwrap();
}

/// A full store: object 1 of 8 MiB, 2 of 16, and from 10 on as many of 4 as fit.
fn full() -> (Arc<Hooked>, Store) {
    let device = Arc::new(Hooked {
        below: MemoryDevice::new(64 << 20),
        at_flush: Mutex::default(),
        at_read: Mutex::default(),
    });
    let below: Arc<dyn Device> = device.clone();
    Store::mkfs(&below, &MkfsOptions::default()).unwrap();
    let options = OpenOptions { max_size_bytes: Some(64 << 20), ..OpenOptions::default() };
    let store = Store::open(below, &options).unwrap().0;
    create(&store, 1, 8).unwrap();
    let last = create(&store, 2, 16).unwrap();
    let filler = (10..).take_while(|&id| create(&store, id, 4).is_ok()).count();
    assert!(filler > 0);
    store.sync(last).wait().unwrap();
    (device, store)
}

/// Writes object 3 of 8 MiB on a separate thread, which may hang.
fn create_in_time(store: &Store) {
    let (came, waited_for) = mpsc::channel();
    let writer = store.clone();
    std::thread::spawn(move || came.send(create(&writer, 3, 8)));
    let created = waited_for.recv_timeout(Duration::from_secs(30));
    assert!(matches!(created, Ok(Ok(_))), "{created:?}");
}

/// Symptom: a put into a nearly full store never returned.
/// Cause: it waited until less was in quarantine than before, and another thread freed more meanwhile.
/// Fix: it waits until the pages that were in quarantine at its beginning have left.
#[test]
fn a_wait_for_freed_space_ignores_space_freed_later() {
    let (device, store) = full();
    delete(&store, 1);
    let other = store.clone();
    *device.at_flush.lock() = Some(Box::new(move || delete(&other, 2)));
    create_in_time(&store);
    assert!(device.at_flush.lock().is_none(), "nothing was freed meanwhile");
}

/// A pinned part of the freed space is not awaited if the rest is enough.
#[test]
fn a_wait_for_freed_space_ignores_pins_of_a_part_of_it() {
    let (device, store) = full();
    delete(&store, 1);
    store.sync(Lsn(u64::MAX)).wait().unwrap();
    let (looks, looked) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    *device.at_read.lock() = Some(Box::new(move || {
        looks.send(()).unwrap();
        // Until the test ends, in any way.
        let _ = goes_on.recv();
    }));
    let reader = store.clone();
    let reading = std::thread::spawn(move || reader.read(ObjectId(2), 0..4096, IoClass::Foreground).wait());
    looked.recv().unwrap();
    delete(&store, 10);
    create_in_time(&store);
    drop(go_on);
    assert!(reading.join().unwrap().is_ok());
}
