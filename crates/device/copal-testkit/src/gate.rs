//! A device that holds commands back until a test lets them go.
//!
//! Not here: devices that fail at random or lose power (`copal_device::fault`).

use copal_device::{
    AlignedBuf, Completion, Counters, Device, DeviceError, Drive, Geometry, Io, IoDone, IoKind, PageCache,
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{sync::Arc, time::Duration};

/// A device whose durable writes wait at a gate, each until its number is let through, and whose reads may be
/// slow.
///
/// It stands open at first. [`Gated::open_at_end`] opens it however the test ends: a thread that waits for a
/// write is waited for at the end of its scope.
pub struct Gated {
    below: Arc<dyn Device>,
    gate: Mutex<Gate>,
    moved: Condvar,
}

/// What has come to the gate, and what it does.
#[derive(Debug, Default)]
pub struct Gate {
    /// Writes that come wait from now on.
    pub shut: bool,
    /// Writes that came while the gate was shut. They have the numbers 0, 1, 2 in this order.
    pub came: usize,
    /// Of those, the ones that are on the medium.
    pub done: usize,
    /// Batches of commands handed in, which no gate stops.
    pub handed_in: usize,
    /// Ranges of the page cache that were prepared for writes.
    pub prepared: usize,
    /// Numbers of writes that may pass although the gate is shut.
    pub let_through: Vec<usize>,
    /// The write of this number fails when it is let through.
    pub fails: Option<usize>,
    /// How long each read takes that begins now, if longer than the device does.
    pub slow_reads: Option<Duration>,
    /// Slow reads that have begun and not ended.
    pub reading: usize,
}

impl Gated {
    /// A gate before `below`.
    pub fn new(below: Arc<dyn Device>) -> Arc<Gated> {
        Arc::new(Gated { below, gate: Mutex::default(), moved: Condvar::new() })
    }

    /// The device behind the gate.
    pub fn below(&self) -> &Arc<dyn Device> {
        &self.below
    }

    /// A look at the gate; nothing moves before it is dropped.
    pub fn look(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock()
    }

    /// Changes the gate, and wakes who waits at it or for it.
    pub fn change(&self, change: impl FnOnce(&mut Gate)) {
        change(&mut self.gate.lock());
        self.moved.notify_all();
    }

    /// Lets one write through.
    pub fn let_through(&self, number: usize) {
        self.change(|gate| gate.let_through.push(number));
    }

    /// Blocks until the gate is as wanted.
    pub fn wait(&self, until: impl Fn(&Gate) -> bool) {
        let mut gate = self.gate.lock();
        while !until(&gate) {
            self.moved.wait(&mut gate);
        }
    }

    /// Opens the gate when it is dropped.
    pub fn open_at_end(&self) -> Opens<'_> {
        Opens(self)
    }

    fn read<T>(&self, read: impl FnOnce() -> T) -> T {
        let Some(time) = self.gate.lock().slow_reads else {
            return read();
        };
        self.change(|gate| gate.reading += 1);
        let mut gate = self.gate.lock();
        // A test that has seen what it waited for lets slow reads go.
        self.moved.wait_while_for(&mut gate, |gate| gate.slow_reads.is_some(), time);
        drop(gate);
        let read = read();
        self.change(|gate| gate.reading -= 1);
        read
    }
}

impl Device for Gated {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }
    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        let is_read = ios.iter().any(|io| matches!(io.kind, IoKind::Read(_)));
        let completion = if is_read { self.read(|| self.below.submit(ios)) } else { self.below.submit(ios) };
        self.change(|gate| gate.handed_in += 1);
        completion
    }
    fn read_now(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.read(|| self.below.read_now(at, buf))
    }
    fn write_through(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        let mut gate = self.gate.lock();
        if !gate.shut {
            drop(gate);
            return self.below.write_through(at, buf);
        }
        let number = gate.came;
        gate.came += 1;
        self.moved.notify_all();
        while gate.shut && !gate.let_through.contains(&number) {
            self.moved.wait(&mut gate);
        }
        if gate.fails == Some(number) {
            return Err(DeviceError::Poisoned);
        }
        drop(gate);
        let written = self.below.write_through(at, buf);
        self.change(|gate| gate.done += 1);
        written
    }
    fn can_grow(&self) -> bool {
        self.below.can_grow()
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
    fn page_cache(&self) -> Option<&dyn PageCache> {
        self.below.page_cache().map(|_| self as &dyn PageCache)
    }
    fn driver(&self) -> Option<Arc<dyn Drive>> {
        self.below.driver()
    }
}

/// Only asked of a device that has one below.
impl PageCache for Gated {
    fn prepare(&self, at: u64, len: u64) {
        self.change(|gate| gate.prepared += 1);
        if let Some(cache) = self.below.page_cache() {
            cache.prepare(at, len);
        }
    }
    fn write_cached(&self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.below.page_cache().map_or(Err(DeviceError::Poisoned), |cache| cache.write_cached(at, bytes))
    }
    fn read_cached(&self, at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.below.page_cache().map_or(Err(DeviceError::Poisoned), |cache| cache.read_cached(at, out))
    }
}

/// Opens the gate at the end, however the test ends.
#[must_use]
pub struct Opens<'a>(&'a Gated);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.change(|gate| gate.shut = false);
    }
}
