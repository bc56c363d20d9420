//! Rules of waiting: for an owner's answer, and for the markers of all hosts before a partition is compared.
//!
//! Paper: low-profile-dedup §3, stragglers.
//! Pure: instants are the caller's.
//!
//! Invariants
//! - An answer is waited for until `max(5 s, 3 x p99)` of earlier ones, and never longer than the caller's timeout.
//! - The stand-in is asked, too, once an answer takes longer than 95 of 100 did, and before the deadline.
//! - One silent host delays a comparison by the caller's patience and no more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// No answer is given up earlier.
pub const LEAST_DEADLINE: Duration = Duration::from_secs(5);
/// Others are waited for at least so long after the first one has asked.
pub const LEAST_PATIENCE: Duration = Duration::from_secs(10);
/// Earlier answers that count.
const MOST_SAMPLES: usize = 256;
/// Rounds whose markers are kept at a time; of more, those that began first are due at once.
const MOST_ROUNDS: usize = 64;

/// How long others are waited for by who took so long itself.
pub fn patience_after(took: Duration) -> Duration {
    LEAST_PATIENCE.max(took / 2)
}

/// How long answers took lately.
#[derive(Clone, Debug, Default)]
pub struct AnswerTimes {
    /// A ring.
    samples: Vec<Duration>,
    next: usize,
}

impl AnswerTimes {
    /// Enters how long an answer took.
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

/// What somebody who waits for an answer does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Wait until then.
    Until(Instant),
    /// Ask the stand-in, too; said once.
    AskStandIn,
    /// Go on without an answer.
    GiveUp,
}

/// The wait for one answer.
#[derive(Clone, Copy, Debug)]
pub struct AnswerWait {
    hedge_at: Instant,
    give_up_at: Instant,
    asked_stand_in: bool,
}

impl AnswerWait {
    /// Begins when the request is sent. Without earlier answers the stand-in is asked after half of the time.
    pub fn new(sent: Instant, times: &AnswerTimes, timeout: Duration) -> AnswerWait {
        let p99 = times.percentile(99).unwrap_or_default();
        let deadline = p99.saturating_mul(3).max(LEAST_DEADLINE).min(timeout);
        let hedge = times.percentile(95).unwrap_or(deadline / 2).min(deadline);
        AnswerWait {
            hedge_at: sent + hedge,
            give_up_at: sent + deadline,
            asked_stand_in: false,
        }
    }

    /// What to do now; to be called again when that is done.
    pub fn step(&mut self, now: Instant) -> Waiting {
        if now >= self.give_up_at {
            return Waiting::GiveUp;
        }
        if self.asked_stand_in {
            return Waiting::Until(self.give_up_at);
        }
        if now >= self.hedge_at {
            self.asked_stand_in = true;
            return Waiting::AskStandIn;
        }
        Waiting::Until(self.hedge_at)
    }
}

/// A round of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobRound {
    /// The job.
    pub job: [u8; 16],
    /// Its round.
    pub round: u32,
}

/// Which hosts have sent all requests of a round.
#[derive(Debug)]
pub struct Markers {
    patience: Duration,
    rounds: BTreeMap<JobRound, Marked>,
}

#[derive(Debug)]
struct Marked {
    first: Instant,
    hosts: BTreeSet<[u8; 16]>,
}

impl Markers {
    /// Hosts that are silent are waited for no longer than `patience` after the first marker of a round.
    pub fn new(patience: Duration) -> Markers {
        Markers {
            patience,
            rounds: BTreeMap::new(),
        }
    }

    /// A host has sent all requests of a round. Twice is once.
    pub fn mark(&mut self, round: JobRound, host: [u8; 16], now: Instant) {
        let marked = self.rounds.entry(round).or_insert_with(|| Marked {
            first: now,
            hosts: BTreeSet::new(),
        });
        marked.hosts.insert(host);
    }

    /// Takes out the rounds that are to be compared now, given the hosts that take part in a job.
    pub fn take_due(
        &mut self,
        now: Instant,
        mut participants: impl FnMut(&[u8; 16]) -> BTreeSet<[u8; 16]>,
    ) -> Vec<JobRound> {
        let mut order: Vec<(Instant, JobRound)> = self
            .rounds
            .iter()
            .map(|(round, marked)| (marked.first, *round))
            .collect();
        order.sort_unstable();
        let too_many = order.len().saturating_sub(MOST_ROUNDS);
        let mut due = Vec::new();
        for (at, (first, round)) in order.into_iter().enumerate() {
            let is_due = at < too_many || now.saturating_duration_since(first) >= self.patience || {
                let all = participants(&round.job);
                self.rounds
                    .get(&round)
                    .is_some_and(|marked| all.is_subset(&marked.hosts))
            };
            if is_due {
                self.rounds.remove(&round);
                due.push(round);
            }
        }
        due
    }

    /// When patience ends next; `None`: nobody is waited for.
    pub fn next_due(&self) -> Option<Instant> {
        self.rounds
            .values()
            .map(|marked| marked.first + self.patience)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    fn times(milliseconds: impl IntoIterator<Item = u64>) -> AnswerTimes {
        let mut times = AnswerTimes::default();
        milliseconds
            .into_iter()
            .for_each(|took| times.enter(Duration::from_millis(took)));
        times
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
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

    #[test]
    fn the_stand_in_is_asked_once_and_the_deadline_holds() {
        let start = Instant::now();
        let mut wait = AnswerWait::new(start, &times(1..=100), TIMEOUT);
        let hedge = start + Duration::from_millis(95);
        assert_eq!(wait.step(start), Waiting::Until(hedge));
        assert_eq!(wait.step(hedge), Waiting::AskStandIn);
        assert_eq!(wait.step(hedge), Waiting::Until(start + seconds(5)));
        assert_eq!(wait.step(start + seconds(5)), Waiting::GiveUp);
        assert_eq!(wait.step(start + seconds(9)), Waiting::GiveUp);
    }

    #[test]
    fn slow_owners_are_waited_for_and_never_longer_than_the_timeout() {
        let start = Instant::now();
        let give_up = |took, timeout| {
            let mut wait = AnswerWait::new(start, &times([took; 10]), timeout);
            wait.asked_stand_in = true;
            match wait.step(start) {
                Waiting::Until(at) => at - start,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(give_up(1, TIMEOUT), seconds(5));
        assert_eq!(give_up(4_000, TIMEOUT), seconds(12));
        assert_eq!(give_up(40_000, TIMEOUT), seconds(30));
        assert_eq!(give_up(1, seconds(2)), seconds(2));
        let mut first = AnswerWait::new(start, &AnswerTimes::default(), TIMEOUT);
        assert_eq!(
            first.step(start),
            Waiting::Until(start + Duration::from_millis(2500))
        );
    }

    fn round(round: u32) -> JobRound {
        JobRound { job: [9; 16], round }
    }

    fn hosts(numbers: impl IntoIterator<Item = u8>) -> BTreeSet<[u8; 16]> {
        numbers.into_iter().map(|number| [number; 16]).collect()
    }

    #[test]
    fn a_round_is_compared_when_all_markers_are_in() {
        let (mut markers, now) = (Markers::new(seconds(10)), Instant::now());
        markers.mark(round(1), [1; 16], now);
        markers.mark(round(1), [1; 16], now);
        markers.mark(round(2), [2; 16], now);
        assert_eq!(markers.take_due(now, |_| hosts(1..3)), []);
        markers.mark(round(1), [2; 16], now);
        assert_eq!(markers.take_due(now, |_| hosts(1..3)), [round(1)]);
        assert_eq!(markers.take_due(now, |_| hosts(1..3)), []);
    }

    #[test]
    fn a_silent_host_is_waited_for_until_patience_ends() {
        let (mut markers, now) = (Markers::new(seconds(10)), Instant::now());
        assert_eq!(markers.next_due(), None);
        markers.mark(round(1), [1; 16], now);
        markers.mark(round(1), [2; 16], now + seconds(9));
        assert_eq!(markers.next_due(), Some(now + seconds(10)));
        assert_eq!(markers.take_due(now + seconds(9), |_| hosts(1..4)), []);
        assert_eq!(markers.take_due(now + seconds(10), |_| hosts(1..4)), [round(1)]);
        // Who comes late begins the round anew, and waits for nobody longer than before.
        markers.mark(round(1), [3; 16], now + seconds(11));
        assert_eq!(markers.take_due(now + seconds(21), |_| hosts(1..4)), [round(1)]);
    }

    #[test]
    fn rounds_that_nobody_ends_do_not_pile_up() {
        let (mut markers, now) = (Markers::new(seconds(1000)), Instant::now());
        for number in 0..100 {
            markers.mark(round(number), [1; 16], now + seconds(number.into()));
        }
        let due = markers.take_due(now + seconds(100), |_| hosts(1..3));
        assert_eq!(due, (0..36).map(round).collect::<Vec<_>>());
    }
}
