//! A device that delays commands until a test releases them.
//!
//! Not here: devices that fail at random or lose power (`copal_device::fault`).

use copal_device::{
    AlignedBuf, Completer, Completion, CompletionDriver, Device, DeviceClock, DeviceCounters, DeviceError,
    Geometry, Io, IoClass, IoDone, IoKind, PageCache,
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{collections::VecDeque, sync::Arc, time::Duration};

/// A device with a gate: while it is shut, each durable write waits until its number is let through. Batches of
/// background writes may be held, and reads may be slow.
///
/// The gate is open at first. [`GatedDevice::open_at_end`] opens it at the end of the test, also after a
/// panic: the scope of a test joins threads that wait for a write.
pub struct GatedDevice {
    below: Arc<dyn Device>,
    gate: Mutex<GateState>,
    moved: Condvar,
    held: Mutex<VecDeque<HeldBatch>>,
}

type HeldBatch = (Vec<Io>, Completer<Vec<IoDone>>);

/// State and counters of the gate.
#[derive(Debug, Default)]
pub struct GateState {
    /// Later writes wait.
    pub shut: bool,
    /// Number of writes that arrived while the gate was shut. They are numbered from 0 in this order.
    pub came: usize,
    /// Number of those that are on the medium.
    pub done: usize,
    /// Number of submitted batches; the gate does not delay these.
    pub handed_in: usize,
    /// Number of page-cache ranges prepared for writes.
    pub prepared: usize,
    /// Numbers of writes that may pass the shut gate.
    pub let_through: Vec<usize>,
    /// Number of a write that fails when it is let through.
    pub fails: Option<usize>,
    /// Least duration of each read that begins now.
    pub slow_reads: Option<Duration>,
    /// Number of running slow reads.
    pub reading: usize,
    /// Batches of background writes are held.
    pub holds_background: bool,
    /// Number of held batches.
    pub background: usize,
}

impl GatedDevice {
    /// A device with a gate in front of `below`.
    pub fn new(below: Arc<dyn Device>) -> Arc<GatedDevice> {
        Arc::new(GatedDevice { below, gate: Mutex::default(), moved: Condvar::new(), held: Mutex::default() })
    }

    /// The device behind the gate.
    pub fn below(&self) -> &Arc<dyn Device> {
        &self.below
    }

    /// Locks the state of the gate; nothing changes before the guard is dropped.
    pub fn look(&self) -> MutexGuard<'_, GateState> {
        self.gate.lock()
    }

    /// Changes the gate, and wakes all threads that wait at it or for a state of it.
    pub fn change(&self, change: impl FnOnce(&mut GateState)) {
        change(&mut self.gate.lock());
        self.moved.notify_all();
    }

    /// Lets the write of this number through.
    pub fn let_through(&self, number: usize) {
        self.change(|gate| gate.let_through.push(number));
    }

    /// Blocks until the gate fulfils the condition.
    pub fn wait(&self, until: impl Fn(&GateState) -> bool) {
        let mut gate = self.gate.lock();
        while !until(&gate) {
            self.moved.wait(&mut gate);
        }
    }

    /// Holds batches of background writes from now on, or no longer; those that are held stay.
    pub fn hold_background(&self, hold: bool) {
        self.change(|gate| gate.holds_background = hold);
    }

    /// Passes on the first `most` held batches, and completes them; returns how many there were.
    pub fn release_background(&self, most: usize) -> usize {
        for count in 0..most {
            let Some((ios, completer)) = self.held.lock().pop_front() else {
                return count;
            };
            self.change(|gate| gate.background -= 1);
            completer.complete(self.below.submit(ios).wait());
        }
        most
    }

    /// Returns a guard that opens the gate when it is dropped.
    pub fn open_at_end(&self) -> GateOpener<'_> {
        GateOpener(self)
    }

    fn read<T>(&self, read: impl FnOnce() -> T) -> T {
        let Some(time) = self.gate.lock().slow_reads else {
            return read();
        };
        self.change(|gate| gate.reading += 1);
        let mut gate = self.gate.lock();
        // A test may end the slow reads early by clearing `slow_reads`.
        self.moved.wait_while_for(&mut gate, |gate| gate.slow_reads.is_some(), time);
        drop(gate);
        let read = read();
        self.change(|gate| gate.reading -= 1);
        read
    }
}

impl Device for GatedDevice {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }
    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        let is_background =
            |io: &Io| io.class == IoClass::Background && matches!(io.kind, IoKind::Write { .. });
        if self.gate.lock().holds_background && ios.iter().all(is_background) {
            let (completer, completion) = Completion::pair(self.below.driver());
            self.held.lock().push_back((ios, completer));
            self.change(|gate| gate.background += 1);
            return completion;
        }
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
    fn counters(&self) -> DeviceCounters {
        self.below.counters()
    }
    fn drive(&self) -> bool {
        self.below.drive()
    }
    fn page_cache(&self) -> Option<&dyn PageCache> {
        self.below.page_cache().map(|_| self as &dyn PageCache)
    }
    fn clock(&self) -> DeviceClock {
        self.below.clock()
    }
    fn driver(&self) -> Option<Arc<dyn CompletionDriver>> {
        self.below.driver()
    }
}

/// Reachable only if the device below has a page cache.
impl PageCache for GatedDevice {
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

/// Opens the gate when dropped, also after a panic.
#[must_use]
pub struct GateOpener<'a>(&'a GatedDevice);

impl Drop for GateOpener<'_> {
    fn drop(&mut self) {
        self.0.change(|gate| {
            gate.shut = false;
            gate.holds_background = false;
        });
        self.0.release_background(usize::MAX);
    }
}
