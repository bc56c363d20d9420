//! Throttle: bytes per second that a host reads or sends for backups, without bursts that guests would feel.
//!
//! Token bucket that may go into debt: whoever takes more than is there gets it at once, and the next one
//! waits until the debt is paid. [`Bucket`] is the rule, without a clock; [`Throttle`] waits.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time whose bytes may go at once after a pause.
pub const BURST: Duration = Duration::from_millis(250);
/// How often a waiting thread looks whether it is cancelled.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// The rule of a throttle.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    bytes_per_second: u64,
    /// When all that was taken is paid for.
    paid_at: Instant,
}

impl Bucket {
    /// A full bucket. A rate of 0 counts as 1.
    pub fn new(bytes_per_second: u64, now: Instant) -> Bucket {
        Bucket { bytes_per_second: bytes_per_second.max(1), paid_at: now.checked_sub(BURST).unwrap_or(now) }
    }

    /// How long whoever wants bytes has to wait; zero: [`Bucket::take`] may be called.
    pub fn wait(&self, now: Instant) -> Duration {
        self.paid_at.saturating_duration_since(now)
    }

    /// Takes bytes.
    pub fn take(&mut self, bytes: u64, now: Instant) {
        let nanos = u128::from(bytes) * NANOS_PER_SECOND / u128::from(self.bytes_per_second);
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let oldest = now.checked_sub(BURST).unwrap_or(now);
        let from = self.paid_at.max(oldest);
        // A century is as good as never.
        let never = now + Duration::from_secs(100 * 365 * 86_400);
        self.paid_at = from.checked_add(cost).unwrap_or(never).min(never);
    }
}

/// The flag was set while a thread waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cancelled while waiting for the rate limit")]
pub struct Cancelled;

/// A rate that threads share.
#[derive(Debug)]
pub struct Throttle {
    bucket: Option<Mutex<Bucket>>,
    never_notified: Condvar,
}

impl Throttle {
    /// A throttle of this many bytes per second; `None`: no limit.
    pub fn new(bytes_per_second: Option<u64>) -> Throttle {
        Throttle {
            bucket: bytes_per_second.map(|rate| Mutex::new(Bucket::new(rate, Instant::now()))),
            never_notified: Condvar::new(),
        }
    }

    /// Takes bytes, and blocks before that until earlier ones are paid for. Threads that wait are not in
    /// order.
    /// # Errors
    /// `Cancelled`: the flag was set meanwhile; nothing was taken.
    pub fn take(&self, bytes: u64, cancel: &AtomicBool) -> Result<(), Cancelled> {
        let Some(bucket) = &self.bucket else {
            return Ok(());
        };
        let mut bucket = bucket.lock();
        loop {
            if cancel.load(Ordering::Relaxed) {
                return Err(Cancelled);
            }
            let now = Instant::now();
            let wait = bucket.wait(now);
            if wait.is_zero() {
                bucket.take(bytes, now);
                return Ok(());
            }
            self.never_notified.wait_for(&mut bucket, wait.min(LOOK_AGAIN));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn without_a_limit_nothing_waits() {
        let cancel = AtomicBool::new(true);
        Throttle::new(None).take(u64::MAX, &cancel).unwrap();
    }

    #[test]
    fn a_pause_saves_a_quarter_of_a_second_and_no_more() {
        let start = Instant::now() + Duration::from_secs(3600);
        let mut bucket = Bucket::new(1000, start);
        assert_eq!(bucket.wait(start), Duration::ZERO);
        bucket.take(250, start);
        assert_eq!(bucket.wait(start), Duration::ZERO, "the burst");
        bucket.take(500, start);
        assert_eq!(bucket.wait(start), Duration::from_millis(500));
        let later = start + Duration::from_secs(100);
        bucket.take(1250, later);
        assert_eq!(bucket.wait(later), Duration::from_secs(1));
        bucket.take(u64::MAX, later);
        assert!(bucket.wait(later) > Duration::from_secs(86_400));
    }

    #[test]
    fn a_waiting_thread_sees_that_it_is_cancelled() {
        let (throttle, cancel) = (Throttle::new(Some(1)), AtomicBool::new(false));
        throttle.take(1 << 40, &cancel).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| throttle.take(1, &cancel));
            cancel.store(true, Ordering::Relaxed);
            assert_eq!(waits.join().unwrap(), Err(Cancelled));
        });
    }

    proptest! {
        /// Over any time no more than rate x (time + burst) and the last one's bytes go through.
        #[test]
        fn the_rate_is_kept(
            rate in 1_u64..1_000_000,
            takes in proptest::collection::vec((0_u64..500_000, 0_u64..2_000), 1..50),
        ) {
            let start = Instant::now() + Duration::from_secs(3600);
            let (mut now, mut bucket, mut before_last) = (start, Bucket::new(rate, start), 0_u64);
            let mut last = 0;
            for (bytes, pause) in takes {
                now += Duration::from_millis(pause);
                now += bucket.wait(now);
                bucket.take(bytes, now);
                (before_last, last) = (before_last + last, bytes);
                let seconds = (now - start + BURST).as_secs_f64();
                prop_assert!(before_last as f64 <= rate as f64 * seconds + 1.0);
            }
        }
    }
}
