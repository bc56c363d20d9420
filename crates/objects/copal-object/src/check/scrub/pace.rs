//! Pace of a scrub: the time at which the next read is due. Pure.

use std::time::Duration;

/// Schedule of the reads of a scrub.
#[derive(Clone, Copy, Debug)]
pub struct ScrubPace {
    bytes_per_second: u64,
    bytes: u64,
}

impl ScrubPace {
    /// At most `bytes_per_second`, on average from the beginning; 0: no limit.
    #[must_use]
    pub fn new(bytes_per_second: u64) -> ScrubPace {
        ScrubPace { bytes_per_second, bytes: 0 }
    }

    /// Counts `bytes` as read; returns the time of the next read, from the beginning.
    pub fn read(&mut self, bytes: u64) -> Duration {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes_per_second == 0 {
            return Duration::ZERO;
        }
        let nanos = u128::from(self.bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_bytes_over_rate_for_any_pieces() {
        let mut pace = ScrubPace::new(1000);
        assert_eq!(pace.read(500), Duration::from_millis(500));
        assert_eq!(pace.read(1500), Duration::from_secs(2));
        for unlimited in [0, u64::MAX] {
            assert_eq!(ScrubPace::new(unlimited).read(1 << 20), Duration::ZERO);
        }
        assert_eq!(ScrubPace::new(1).read(u64::MAX), Duration::from_nanos(u64::MAX));
    }
}
