//! The clock interface: wall time in milliseconds, passed to a store when it is opened.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Wall-clock time. It may go back; callers that need an order draw ids from `FileIds`.
pub trait Clock: Send + Sync {
    /// Milliseconds since 1970; 0 if the clock shows an earlier time.
    fn now_ms(&self) -> u64;
}

/// The reference clock of a cluster: a member uses it instead of its own clock once it has learned it.
pub trait ReferenceClock: Send + Sync {
    /// Milliseconds since 1970; `None`: not learned yet. Never jumps with the wall clock of this machine.
    fn reference_ms(&self) -> Option<u64>;
}

/// The machine's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }
}

/// A clock that stands still until it is set, for tests and simulators.
#[derive(Debug, Default)]
pub struct ManualClock {
    now_ms: AtomicU64,
}

impl ManualClock {
    /// A clock that shows `now_ms`.
    pub fn new(now_ms: u64) -> ManualClock {
        ManualClock { now_ms: AtomicU64::new(now_ms) }
    }
    /// Sets the time; backwards is allowed, as on a real machine.
    pub fn set(&self, now_ms: u64) {
        self.now_ms.store(now_ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::SeqCst)
    }
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now_ms(&self) -> u64 {
        (**self).now_ms()
    }
}
