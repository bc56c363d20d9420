//! Recent answer times, and the bounds of waiting derived from them.
//!
//! Paper: low-profile-dedup §3, stragglers.

use std::time::Duration;

/// Shortest deadline of an answer.
pub const LEAST_DEADLINE: Duration = Duration::from_secs(5);
/// Shortest patience for other hosts.
pub const LEAST_PATIENCE: Duration = Duration::from_secs(10);
/// Number of earlier answers that count.
const MOST_SAMPLES: usize = 256;

/// Patience of a host for others, by the length of its own round.
pub fn patience_after(took: Duration) -> Duration {
    LEAST_PATIENCE.max(took / 2)
}

/// Recent answer times.
#[derive(Clone, Debug, Default)]
pub struct AnswerTimes {
    /// A ring.
    samples: Vec<Duration>,
    next: usize,
}

impl AnswerTimes {
    /// Records an answer time.
    pub fn enter(&mut self, took: Duration) {
        if self.samples.len() < MOST_SAMPLES {
            self.samples.push(took);
        } else {
            self.samples[self.next] = took;
        }
        self.next = (self.next + 1) % MOST_SAMPLES;
    }

    /// The time that `percent` of the answers did not exceed; `None` before the first.
    pub fn percentile(&self, percent: usize) -> Option<Duration> {
        let mut sorted = self.samples.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100);
        sorted.get(rank.saturating_sub(1)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(milliseconds: impl IntoIterator<Item = u64>) -> AnswerTimes {
        let mut times = AnswerTimes::default();
        milliseconds.into_iter().for_each(|took| times.enter(Duration::from_millis(took)));
        times
    }

    #[test]
    fn percentiles_are_of_the_last_answers() {
        assert_eq!(times([]).percentile(95), None);
        assert_eq!(times([7]).percentile(99), Some(Duration::from_millis(7)));
        let hundred = times(1..=100);
        assert_eq!(hundred.percentile(95), Some(Duration::from_millis(95)));
        let newer = times((1..=100).chain([3; MOST_SAMPLES]));
        assert_eq!(newer.percentile(99), Some(Duration::from_millis(3)));
    }
}
