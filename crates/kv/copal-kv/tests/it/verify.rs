//! Checking a store during other work.

use crate::support::*;
use copal_device::{
    AlignedBuf, Completion, CompletionDriver, Device, DeviceCounters, DeviceError, Geometry, Io, IoDone,
    IoKind, MemoryDevice,
};
use copal_kv::Store;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// A device that delays one read.
struct Gated {
    below: Arc<dyn Device>,
    gate: Mutex<Gate>,
    moved: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Gate {
    #[default]
    Open,
    /// The next read is delayed.
    Armed,
    Held,
}

impl Gated {
    fn wait_for(&self, wanted: Gate) {
        let mut gate = self.gate.lock();
        while *gate != wanted {
            self.moved.wait(&mut gate);
        }
    }

    fn set(&self, to: Gate) {
        *self.gate.lock() = to;
        self.moved.notify_all();
    }

    fn pass(&self) {
        let mut gate = self.gate.lock();
        if *gate == Gate::Armed {
            *gate = Gate::Held;
            self.moved.notify_all();
            while *gate == Gate::Held {
                self.moved.wait(&mut gate);
            }
        }
    }
}

impl Device for Gated {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }
    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        if ios.iter().any(|io| matches!(io.kind, IoKind::Read(_))) {
            self.pass();
        }
        self.below.submit(ios)
    }
    fn read_now(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.pass();
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

/// Opens the gate at the end, also if the test fails.
struct Opens<'a>(&'a Gated);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.set(Gate::Open);
    }
}

/// Symptom: while a deep check read a store, every write, flush, merge and even `stats` waited for its end.
/// Cause: the check held the worker's step, the direct values and the manifest during all its reads. Fix: it
/// takes names and accounts under the locks, and then reads data that a view pins, without them.
#[test]
fn a_deep_check_blocks_no_writer_and_judges_the_store_as_it_was_when_it_began() {
    let device =
        Arc::new(Gated { below: MemoryDevice::new(64 * MIB), gate: Mutex::default(), moved: Condvar::new() });
    let dynamic: Arc<dyn Device> = device.clone();
    format(&dynamic);
    let store = Store::open(open_objects(&dynamic), small()).unwrap();
    let space = store.keyspace("a", grouped()).unwrap();
    let len = |i: u64| [100, 700, 5000][(i % 3) as usize];
    let fill = |tag: u64| {
        for i in 0..300u64 {
            let (key, value) = (i.to_be_bytes(), value(tag << 32 | i, len(i)));
            space.put(&key, &value, PROCESS).unwrap();
        }
    };
    fill(1);
    space.compact_range(all()).unwrap();
    // Some in memory, some dead.
    (0..30u64).for_each(|i| space.put(&i.to_be_bytes(), &value(2, len(i)), PROCESS).unwrap());
    let before = store.verify(true).unwrap();
    assert!(before.is_sound(), "{:#?}", before.problems);
    let during = std::thread::scope(|scope| {
        let _opens = Opens(&device);
        device.set(Gate::Armed);
        let check = scope.spawn(|| store.verify(true).unwrap());
        device.wait_for(Gate::Held);
        fill(3);
        assert!(store.stats().writes > 600);
        // Everything that the check will read becomes garbage.
        space.compact_range(all()).unwrap();
        space.purge_prefix(&[], PROCESS).unwrap();
        space.compact_range(all()).unwrap();
        fill(4);
        assert_sound(&store, true);
        device.set(Gate::Open);
        check.join().unwrap()
    });
    assert_eq!(during, before);
    assert_sound(&store, true);
    assert_eq!(pairs(&space).len(), 300);
}
