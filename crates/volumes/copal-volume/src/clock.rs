//! The clock seam: wall time in milliseconds, given to a store when it is opened.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Wall-clock time. May go back; whoever needs order draws ids from `FileIds`.
pub trait Clock: Send + Sync {
    /// Milliseconds since 1970, 0 when the clock stands before that.
    fn now_ms(&self) -> u64;
}

/// The clock of a cluster: what a member goes by instead of its own clock, once it was told.
pub trait ReferenceClock: Send + Sync {
    /// Milliseconds since 1970; `None`: nobody has told it yet. Never jumps with the wall clock of this
    /// machine.
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

/// A clock that stands still until told otherwise, for tests and simulators.
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
