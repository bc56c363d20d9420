//! A caller that waits for space while the cleaner, by its own sum, has nothing to do.

use crate::{
    Ack, BackendKind, CreateOptions, MkfsOptions, ObjectId, OpenOptions, Store, StoreError, Txn,
    flaw::{BrokenRule, StoreFlaw},
    open::OpenOverrides,
};
use bytes::Bytes;
use copal_device::{
    AlignedBuf, Completion, CompletionDriver, Device, DeviceCounters, DeviceError, Geometry, Io, IoDone,
    fault::FaultDevice,
};
use copal_testkit::Random;
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

const STORE_BYTES: u64 = 64 << 20;
const OBJECT_BYTES: usize = 16 << 10;
/// A waiter that finds nothing in flight so often waits for ever: the test has one thread.
const IDLE_TURNS_MAX: u32 = 100;

/// A device that panics once its only user waits for ever.
struct WatchedDevice {
    below: Arc<FaultDevice>,
    idle: Arc<AtomicU32>,
}

struct WatchedDriver {
    below: Arc<dyn CompletionDriver>,
    idle: Arc<AtomicU32>,
}

impl CompletionDriver for WatchedDriver {
    fn drive(&self) -> bool {
        let drove = self.below.drive();
        let idle = if drove { 0 } else { self.idle.load(Relaxed) + 1 };
        self.idle.store(idle, Relaxed);
        assert!(idle < IDLE_TURNS_MAX, "a caller waits, and nothing is in flight");
        drove
    }
}

impl Device for WatchedDevice {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }
    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
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
    fn counters(&self) -> DeviceCounters {
        self.below.counters()
    }
    fn drive(&self) -> bool {
        self.below.drive()
    }
    fn driver(&self) -> Option<Arc<dyn CompletionDriver>> {
        let below = self.below.driver()?;
        Some(Arc::new(WatchedDriver { below, idle: Arc::clone(&self.idle) }))
    }
}

/// Makes objects from `first` on until the store is full; returns the number of objects.
fn fill(store: &Store, first: u64) -> u64 {
    let put = |id: &u64| {
        let data = Bytes::from(Random::new(*id).bytes(OBJECT_BYTES));
        let txn = Txn::new().create(ObjectId(*id), CreateOptions::default()).append(ObjectId(*id), 0, data);
        match store.commit(txn, Ack::Ordered).wait() {
            Ok(_) => true,
            Err(StoreError::NoSpace { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    };
    (first..).take_while(put).count() as u64
}

/// Fills a store, deletes every eighth object and fills it again; returns the objects of both fills. The segments are
/// then fuller than the cleaner takes by itself.
fn fill_twice(flaw: Option<StoreFlaw>) -> (u64, u64) {
    let below = FaultDevice::with_options(
        copal_device::Image::zeroed(STORE_BYTES),
        copal_device::fault::FaultOptions {
            record: false,
            max_size: STORE_BYTES,
            ..copal_device::fault::FaultOptions::default()
        },
    );
    let device: Arc<dyn Device> = Arc::new(WatchedDevice { below, idle: Arc::default() });
    let options =
        MkfsOptions { backend: BackendKind::Log, segment_bytes: Some(256 << 10), ..MkfsOptions::default() };
    Store::mkfs(&device, &options).unwrap();
    let tuning = OpenOverrides { broken: BrokenRule { flaw }, ..OpenOverrides::default() };
    let (store, _) = Store::open_tuned(device, &OpenOptions::default(), tuning).unwrap();
    let first = fill(&store, 0);
    let deleted = (0..first).step_by(8);
    let again = first - deleted.clone().count() as u64;
    deleted
        .for_each(|id| assert!(store.commit(Txn::new().delete(ObjectId(id)), Ack::Ordered).wait().is_ok()));
    (first, again + fill(&store, first))
}

/// OBJ-36: a caller that waits for space runs the cleaner itself.
#[test]
fn a_caller_that_waits_for_space_runs_the_cleaner() {
    let (first, second) = fill_twice(None);
    assert!(first > 3000 && second * 100 >= first * 97, "{second} objects after {first}");
    let broken = std::panic::catch_unwind(|| fill_twice(Some(StoreFlaw::WaiterSleeps)));
    assert!(broken.is_err(), "the broken rule is caught: {broken:?}");
}
