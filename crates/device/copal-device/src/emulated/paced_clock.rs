//! `PacedClock`: the clock that a paced disk follows.

use parking_lot::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// A clock on which one thread waits. Tests replace it.
pub trait PacedClock: Send + Sync {
    /// Time since the clock was made; never runs backwards.
    fn now(&self) -> Duration;

    /// Blocks until the clock shows `until`, or until [`PacedClock::wake`], also one before the call. `None`: until
    /// the latter only. May return earlier.
    fn pause(&self, until: Option<Duration>);

    /// Ends the pause that goes on, or the next one.
    fn wake(&self);
}

/// The clock of the machine.
pub struct WallClock {
    begin: Instant,
    is_woken: Mutex<bool>,
    changed: Condvar,
}

impl WallClock {
    /// A clock that shows 0.
    #[must_use]
    pub fn new() -> WallClock {
        WallClock { begin: Instant::now(), is_woken: Mutex::new(false), changed: Condvar::new() }
    }
}

impl Default for WallClock {
    fn default() -> WallClock {
        WallClock::new()
    }
}

impl PacedClock for WallClock {
    fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    fn pause(&self, until: Option<Duration>) {
        let mut is_woken = self.is_woken.lock();
        while !*is_woken {
            match until {
                None => self.changed.wait(&mut is_woken),
                Some(until) if self.changed.wait_until(&mut is_woken, self.begin + until).timed_out() => {
                    break;
                }
                Some(_) => {}
            }
        }
        *is_woken = false;
    }

    fn wake(&self) {
        *self.is_woken.lock() = true;
        self.changed.notify_one();
    }
}
