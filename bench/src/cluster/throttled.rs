//! A disk with limited commands and bytes a second, so that each of many servers on one machine has its own.
//!
//! Each command occupies the disk for its share of a second and for its bytes, one after another, and
//! completes when such a disk would complete it. The product does not notice: a store can be opened over any
//! device.

use copal_device::{
    AlignedBuf, Completer, Completion, Device, DeviceCounters, DeviceError, Geometry, Io, IoDone,
    MemoryDevice,
};
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Speed of a disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    pub(super) commands_per_s: f64,
    pub(super) bytes_per_s: f64,
}

type Answer = (Instant, Completer<Vec<IoDone>>, Vec<IoDone>);

/// Throttled device over memory.
pub(super) struct ThrottledDevice {
    inner: Arc<dyn Device>,
    speed: Speed,
    busy_until: Mutex<Instant>,
    /// No throttle while a store is made or opened.
    is_free: AtomicBool,
    answers: Sender<Answer>,
}

impl ThrottledDevice {
    /// An empty disk, which grows. It has no throttle at first.
    pub(super) fn make(bytes: u64, speed: Speed) -> Arc<ThrottledDevice> {
        let (answers, line) = channel::<Answer>();
        // The thread ends with the device.
        thread::spawn(move || {
            for (at, completer, done) in line {
                thread::sleep(at.saturating_duration_since(Instant::now()));
                completer.complete(done);
            }
        });
        Arc::new(ThrottledDevice {
            inner: MemoryDevice::new(bytes),
            speed,
            busy_until: Mutex::new(Instant::now()),
            is_free: AtomicBool::new(true),
            answers,
        })
    }

    /// Removes or restores the throttle. The figures are about service, but an opening reads thousands of
    /// pages of the journal, one after the other.
    pub(super) fn set_free(&self, is_free: bool) {
        self.is_free.store(is_free, Ordering::Release);
    }

    /// Time at which the disk will have done this work too.
    fn done_at(&self, commands: usize, bytes: u64) -> Instant {
        if self.is_free.load(Ordering::Acquire) {
            return Instant::now();
        }
        let seconds = commands as f64 / self.speed.commands_per_s + bytes as f64 / self.speed.bytes_per_s;
        let mut busy_until = self.busy_until.lock().unwrap_or_else(PoisonError::into_inner);
        *busy_until = (*busy_until).max(Instant::now()) + Duration::from_secs_f64(seconds);
        *busy_until
    }

    fn wait(&self, bytes: usize) {
        let at = self.done_at(1, bytes as u64);
        thread::sleep(at.saturating_duration_since(Instant::now()));
    }
}

impl Device for ThrottledDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        let moved = ios.iter().filter(|io| !matches!(io.kind, copal_device::IoKind::Discard(_)));
        let (commands, bytes) =
            moved.fold((0, 0), |(commands, bytes), io| (commands + 1, bytes + io.kind.len_bytes()));
        let at = self.done_at(commands, bytes);
        let done = self.inner.submit(ios).wait();
        let (completer, completion) = Completion::pair(None);
        if let Err(unsent) = self.answers.send((at, completer, done)) {
            // Not reached: the thread lives as long as the device.
            let (_, completer, done) = unsent.0;
            completer.complete(done);
        }
        completion
    }

    fn read_now(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.wait(buf.len());
        self.inner.read_now(at, buf)
    }

    fn write_through(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.wait(buf.len());
        self.inner.write_through(at, buf)
    }

    fn grow(&self, size: u64) -> Result<u64, DeviceError> {
        self.inner.grow(size)
    }

    fn cut(&self, size: u64) -> Result<u64, DeviceError> {
        self.inner.cut(size)
    }

    fn reserve(&self, at: u64, len: u64) -> Result<(), DeviceError> {
        self.inner.reserve(at, len)
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }

    fn wait_idle(&self) {
        let busy_until = *self.busy_until.lock().unwrap_or_else(PoisonError::into_inner);
        // The margin lets the hooks of the last completion run.
        thread::sleep(busy_until.saturating_duration_since(Instant::now()) + Duration::from_millis(5));
    }

    fn drive(&self) -> bool {
        false
    }
}
