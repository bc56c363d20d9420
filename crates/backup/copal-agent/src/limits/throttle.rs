//! Throttle: limits the bytes per second that a host reads or sends for backups, without bursts that guests
//! would notice.
//!
//! Not here: the waiting times (`copal_volume::TokenBucket`).

use copal_volume::TokenBucket;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time whose bytes may be used at once after a pause.
const BURST: Duration = Duration::from_millis(250);
/// Poll interval of the cancel flag for a waiting thread.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The flag was set while a thread waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cancelled while waiting for the rate limit")]
pub struct WaitCancelled;

/// A rate limit that threads share.
#[derive(Debug)]
pub struct ByteThrottle {
    bucket: Option<Mutex<TokenBucket>>,
    began: Instant,
    never_notified: Condvar,
}

impl ByteThrottle {
    /// A throttle of this number of bytes per second; `None`: no limit.
    pub fn new(bytes_per_second: Option<u64>) -> ByteThrottle {
        ByteThrottle {
            bucket: bytes_per_second.map(|rate| Mutex::new(TokenBucket::new(rate, BURST, Duration::ZERO))),
            began: Instant::now(),
            never_notified: Condvar::new(),
        }
    }

    /// Takes bytes; blocks first until earlier ones are paid for. Waiting threads are not served in order.
    /// # Errors
    /// `WaitCancelled`: the flag was set meanwhile; nothing was taken.
    pub fn take(&self, bytes: u64, cancel: &AtomicBool) -> Result<(), WaitCancelled> {
        let Some(bucket) = &self.bucket else {
            return Ok(());
        };
        let mut bucket = bucket.lock();
        loop {
            if cancel.load(Ordering::Relaxed) {
                return Err(WaitCancelled);
            }
            let now = self.began.elapsed();
            let wait = bucket.wait(now);
            if wait.is_zero() {
                bucket.take(bytes, now);
                return Ok(());
            }
            self.never_notified.wait_for(&mut bucket, wait.min(POLL_INTERVAL));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_limit_nothing_waits() {
        let cancel = AtomicBool::new(true);
        ByteThrottle::new(None).take(u64::MAX, &cancel).unwrap();
    }

    #[test]
    fn a_waiting_thread_sees_that_it_is_cancelled() {
        let (throttle, cancel) = (ByteThrottle::new(Some(1)), AtomicBool::new(false));
        throttle.take(1 << 40, &cancel).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| throttle.take(1, &cancel));
            cancel.store(true, Ordering::Relaxed);
            assert_eq!(waits.join().unwrap(), Err(WaitCancelled));
        });
    }
}
