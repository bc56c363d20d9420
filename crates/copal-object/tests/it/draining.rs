//! Waiting for freed space while others free more.

use crate::basics::{bytes, plain};
use copal_device::{
    AlignedBuf, Completion, Counters, Device, DeviceError, Drive, Geometry, Io, IoDone, IoKind, MemoryDevice,
};
use copal_object::*;
use parking_lot::Mutex;
use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

/// A device that does something when it is next told to flush.
struct AtFlush {
    below: Arc<dyn Device>,
    hook: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Device for AtFlush {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }
    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        if ios.iter().any(|io| matches!(io.kind, IoKind::Flush)) {
            let hook = self.hook.lock().take();
            hook.into_iter().for_each(|hook| hook());
        }
        self.below.submit(ios)
    }
    fn read_now(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.below.read_now(at, buf)
    }
    fn write_through(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.below.write_through(at, buf)
    }
    fn grow(&self, size: u64) -> Result<u64, DeviceError> {
        self.below.grow(size)
    }
    fn counters(&self) -> Counters {
        self.below.counters()
    }
    fn drive(&self) -> bool {
        self.below.drive()
    }
    fn driver(&self) -> Option<Arc<dyn Drive>> {
        self.below.driver()
    }
}

fn change(store: &Store, ops: Vec<Op>) -> Result<Lsn, StoreError> {
    let txn = Txn {
        ops,
        after: Vec::new(),
    };
    store.commit(txn, Ack::Ordered).wait()
}

fn create(store: &Store, id: u64, mib: usize) -> Result<Lsn, StoreError> {
    let id = ObjectId(id);
    let opts = plain(Check::Caller);
    let data = bytes(mib << 20, 3);
    change(
        store,
        vec![Op::Create { id, opts }, Op::Append { id, at: 0, data }],
    )
}

fn delete(store: &Store, id: u64) {
    change(store, vec![Op::Delete { id: ObjectId(id) }]).unwrap();
}

/// Symptom: a put into a nearly full store never came back. Cause: it waited until less was in quarantine than before,
/// and another thread freed more meanwhile. Fix: it waits until what was there when it began has left.
#[test]
fn who_waits_for_freed_space_does_not_wait_for_what_is_freed_later() {
    let device = Arc::new(AtFlush {
        below: MemoryDevice::new(64 << 20),
        hook: Mutex::default(),
    });
    let below: Arc<dyn Device> = device.clone();
    Store::mkfs(&below, &MkfsOptions::default()).unwrap();
    let options = OpenOptions {
        max_size_bytes: Some(64 << 20),
        ..OpenOptions::default()
    };
    let store = Store::open(below, &options).unwrap().0;
    create(&store, 1, 8).unwrap();
    let last = create(&store, 2, 16).unwrap();
    let filler = (10..).take_while(|&id| create(&store, id, 4).is_ok()).count();
    assert!(filler > 0);
    store.sync(last).wait().unwrap();

    delete(&store, 1);
    let other = store.clone();
    *device.hook.lock() = Some(Box::new(move || delete(&other, 2)));
    let (came, waited_for) = mpsc::channel();
    let writer = store.clone();
    std::thread::spawn(move || came.send(create(&writer, 3, 8)));
    let created = waited_for.recv_timeout(Duration::from_secs(30));
    assert!(matches!(created, Ok(Ok(_))), "{created:?}");
    assert!(device.hook.lock().is_none(), "nothing was freed meanwhile");
}
