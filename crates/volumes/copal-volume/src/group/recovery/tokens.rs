//! Byte tokens: how fast a disk is read and written for copies, so that clients keep their share of it.
//!
//! Not here: who waits (`copal-server`).

/// A bucket that fills at a rate and may be overdrawn by one taking: who took too much waits until it is
/// filled again.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    bytes_per_s: u64,
    /// Bytes that may be taken at once; below zero: owed.
    left: i128,
    at_ms: u64,
}

impl TokenBucket {
    /// A bucket of one second's bytes, full. At least one byte per second.
    pub fn new(bytes_per_s: u64) -> TokenBucket {
        let bytes_per_s = bytes_per_s.max(1);
        TokenBucket { bytes_per_s, left: bytes_per_s.into(), at_ms: 0 }
    }

    /// Takes `bytes`; how many milliseconds whoever took them waits before the next taking. Time never goes
    /// back: an older `now_ms` counts as the newest that was seen.
    pub fn take(&mut self, bytes: u64, now_ms: u64) -> u64 {
        let passed_ms = now_ms.saturating_sub(self.at_ms);
        self.at_ms = self.at_ms.max(now_ms);
        let filled = i128::from(self.bytes_per_s) * i128::from(passed_ms) / 1000;
        self.left = (self.left + filled).min(self.bytes_per_s.into()) - i128::from(bytes);
        let owed = u128::try_from(-self.left).unwrap_or(0);
        let wait_ms = (owed * 1000).div_ceil(self.bytes_per_s.into());
        u64::try_from(wait_ms).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_as_told_gets_the_rate_and_no_more() {
        for (rate, piece) in [(1_000_000, 4 << 20), (40_000_000, 65_536), (3, 1)] {
            let mut bucket = TokenBucket::new(rate);
            let (mut now_ms, mut taken) = (0, 0);
            while now_ms < 100_000 {
                taken += piece;
                now_ms += bucket.take(piece, now_ms).max(1);
            }
            let most = rate * now_ms / 1000 + rate + piece;
            assert!(taken <= most, "{rate}: {taken} of {most}");
            if piece < rate {
                assert!(taken * 10 >= most * 9, "{rate}: {taken} of {most}");
            }
        }
    }

    #[test]
    fn idle_time_fills_one_second_and_clocks_that_jump_do_no_harm() {
        let mut bucket = TokenBucket::new(1000);
        assert_eq!(bucket.take(1000, 5), 0);
        assert_eq!(bucket.take(1000, u64::MAX), 0);
        assert_eq!(bucket.take(1000, 0), 1000);
        assert_eq!(bucket.take(u64::MAX, 0), u64::MAX);
        assert_eq!(TokenBucket::new(0).take(2, 0), 1000);
    }
}
