//! Time limits of this host's waits for other hosts, from the length of its own rounds and recent answer
//! times.

use crate::asker::AnswerPatience;
use crate::limits::deadline::{AnswerTimes, LEAST_DEADLINE, patience_after};
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Limits that let this host wait for hosts of similar speed and for the work of the owner, and no longer.
pub(crate) struct HostPatience {
    /// Longest wait for an owner that has received all requests it waits for.
    timeout: Duration,
    /// Whether other hosts ask in the same round.
    has_others: bool,
    state: Mutex<PatienceState>,
}

struct PatienceState {
    times: AnswerTimes,
    round_began: Instant,
    /// Length of the job's longest round.
    longest: Duration,
}

impl HostPatience {
    pub(crate) fn new(timeout: Duration, participants: u32) -> HostPatience {
        HostPatience {
            timeout,
            has_others: participants > 1,
            state: Mutex::new(PatienceState {
                times: AnswerTimes::default(),
                round_began: Instant::now(),
                longest: Duration::ZERO,
            }),
        }
    }

    /// This host begins to read for a round.
    pub(crate) fn begin_round(&self) {
        self.state.lock().round_began = Instant::now();
    }

    /// This host has sent all its requests of the round.
    pub(crate) fn end_round(&self) {
        let mut state = self.state.lock();
        state.longest = state.longest.max(state.round_began.elapsed());
    }
}

impl AnswerPatience for HostPatience {
    fn for_others(&self) -> Duration {
        match self.has_others {
            // A short round says little about the amount that others must read.
            true => patience_after(self.state.lock().longest),
            false => Duration::ZERO,
        }
    }

    fn hedge_after(&self) -> Duration {
        let p95 = self.state.lock().times.percentile(95);
        let usual = p95.unwrap_or(self.timeout / 2).min(self.timeout);
        self.for_others() + usual.max(Duration::from_millis(500))
    }

    fn deadline(&self) -> Duration {
        let p99 = self.state.lock().times.percentile(99).unwrap_or(self.timeout);
        let usual = p99.saturating_mul(3).max(LEAST_DEADLINE).min(self.timeout);
        self.for_others() + usual
    }

    fn answered(&self, _member: usize, after: Duration) {
        self.state.lock().times.enter(after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_asker_waits_for_the_owner_only() {
        let alone = HostPatience::new(Duration::from_secs(30), 1);
        assert_eq!(alone.deadline(), Duration::from_secs(30));
        alone.answered(0, Duration::from_millis(10));
        assert_eq!(alone.deadline(), LEAST_DEADLINE);
        let among_others = HostPatience::new(Duration::from_secs(30), 3);
        among_others.answered(0, Duration::from_millis(10));
        assert!(among_others.deadline() >= crate::limits::deadline::LEAST_PATIENCE + LEAST_DEADLINE);
        assert!(among_others.hedge_after() < among_others.deadline());
    }
}
