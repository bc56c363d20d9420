//! A token bucket: bytes per second, with bursts up to a bound.
//!
//! One call may overdraw the bucket: it gets its bytes at once, and the next call waits until they are paid
//! for.
//! Invariant: over any time no more bytes pass than the rate times that time, the burst, and the bytes of the
//! last call.
//!
//! Not here: waiting (`copal-server`, `copal-agent`), a clock: callers pass the time since any fixed moment.

use std::time::Duration;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// Bucket of one rate.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    bytes_per_s: u64,
    burst: Duration,
    /// Time at which all taken bytes are paid for, by a clock that is ahead by the burst.
    paid_at: Duration,
    /// The latest given time: time never goes back.
    now: Duration,
}

impl TokenBucket {
    /// A full bucket, which after a pause lets the bytes of `burst` pass at once. A rate of 0 counts as 1.
    #[must_use]
    pub fn new(bytes_per_s: u64, burst: Duration, now: Duration) -> TokenBucket {
        TokenBucket { bytes_per_s: bytes_per_s.max(1), burst, paid_at: now, now }
    }

    /// Time to wait before the next call of [`TokenBucket::take`]; zero: none.
    pub fn wait(&mut self, now: Duration) -> Duration {
        self.now = self.now.max(now);
        self.paid_at.saturating_sub(self.now.saturating_add(self.burst))
    }

    /// Takes bytes.
    pub fn take(&mut self, bytes: u64, now: Duration) {
        self.now = self.now.max(now);
        let nanos = u128::from(bytes) * NANOS_PER_SECOND / u128::from(self.bytes_per_s);
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        // A full bucket gains no more.
        self.paid_at = self.paid_at.max(self.now).saturating_add(cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BURST: Duration = Duration::from_millis(250);
    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_pause_saves_the_bytes_of_a_burst_and_no_more() {
        let mut bucket = TokenBucket::new(1000, BURST, HOUR);
        assert_eq!(bucket.wait(HOUR), Duration::ZERO);
        bucket.take(250, HOUR);
        assert_eq!(bucket.wait(HOUR), Duration::ZERO, "the burst");
        bucket.take(500, HOUR);
        assert_eq!(bucket.wait(HOUR), Duration::from_millis(500));
        let later = HOUR + Duration::from_secs(100);
        bucket.take(1250, later);
        assert_eq!(bucket.wait(later), Duration::from_secs(1));
        assert_eq!(bucket.wait(HOUR), Duration::from_secs(1), "time never goes back");
        bucket.take(u64::MAX, later);
        assert!(bucket.wait(later) > Duration::from_secs(86_400));
        bucket.take(u64::MAX, Duration::MAX);
        assert_eq!(bucket.wait(Duration::MAX), Duration::ZERO);
        let mut slow = TokenBucket::new(0, Duration::ZERO, HOUR);
        slow.take(2, HOUR);
        assert_eq!(slow.wait(HOUR), Duration::from_secs(2));
    }

    proptest! {
        #[test]
        fn the_rate_is_kept_and_used(
            rate in 1_u64..1_000_000,
            takes in proptest::collection::vec((0_u64..500_000, 0_u64..2_000), 1..50),
        ) {
            let (mut now, mut bucket, mut before_last) = (HOUR, TokenBucket::new(rate, BURST, HOUR), 0_u64);
            let (mut last, mut pauses) = (0, Duration::ZERO);
            for (bytes, pause) in takes {
                let pause = Duration::from_millis(pause);
                now += pause;
                pauses += pause;
                now += bucket.wait(now);
                bucket.take(bytes, now);
                (before_last, last) = (before_last + last, bytes);
                let seconds = (now - HOUR + BURST).as_secs_f64();
                prop_assert!(before_last as f64 <= rate as f64 * seconds + 1.0);
            }
            // Waits only for the rate.
            let waited = (now - HOUR - pauses).as_secs_f64();
            prop_assert!(waited <= before_last as f64 / rate as f64 + 1e-3);
        }
    }
}
