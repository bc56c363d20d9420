//! Start of a round's comparison: when all hosts have asked, or the patience of a waiting host is over.
//!
//! Paper: low-profile-dedup §3, stragglers. Pure: the caller passes instants. An agent has one per round of a
//! job; the simulator uses the same code.
//!
//! A host that has sent all its questions of a round sends a marker with its patience for other hosts. Hosts
//! of similar speed see each other's chunks in one comparison. Later hosts wait for each other in the same
//! way: a comparison for each would read the same part of the index again for each of them.
//!
//! Invariants
//! - A waiting host is compared before its patience is over.
//! - A host without questions waits for nothing: its marker starts no comparison early.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// One round of a job at one owner. `H` identifies a host.
#[derive(Clone, Debug)]
pub struct RoundMarkers<H> {
    marked: BTreeSet<H>,
    /// Hosts with questions since the last comparison.
    asking: BTreeSet<H>,
    due: Option<Instant>,
}

impl<H> Default for RoundMarkers<H> {
    fn default() -> RoundMarkers<H> {
        RoundMarkers { marked: BTreeSet::new(), asking: BTreeSet::new(), due: None }
    }
}

impl<H: Ord> RoundMarkers<H> {
    /// Records that a host has asked in this round.
    pub fn ask(&mut self, host: H) {
        self.asking.insert(host);
    }

    /// Records a marker: the host has sent all its questions, and waits this long for others. Returns whether
    /// the comparison starts now, since all `participants` have marked the round. A marker may come again,
    /// after repeated questions.
    pub fn mark(&mut self, host: H, patience: Duration, participants: usize, now: Instant) -> bool {
        if self.asking.contains(&host) {
            let end = now + patience;
            self.due = Some(self.due.map_or(end, |due| due.min(end)));
        }
        self.marked.insert(host);
        let all = self.marked.len() >= participants;
        if all {
            self.close();
        }
        all
    }

    /// The end of the earliest patience; `None`: no host waits.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Whether the comparison starts now, since the patience of a host is over.
    pub fn take_due(&mut self, now: Instant) -> bool {
        let is_due = self.due.is_some_and(|due| now >= due);
        if is_due {
            self.close();
        }
        is_due
    }

    fn close(&mut self) {
        self.due = None;
        let marked = &self.marked;
        self.asking.retain(|host| !marked.contains(host));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = seconds(50);

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn asked_by(hosts: impl IntoIterator<Item = u8>) -> RoundMarkers<u8> {
        let mut markers = RoundMarkers::default();
        hosts.into_iter().for_each(|host| markers.ask(host));
        markers
    }

    #[test]
    fn a_round_is_compared_when_all_have_asked() {
        let (mut round, now) = (asked_by(1..4), Instant::now());
        assert_eq!(round.due(), None, "who still asks does not wait");
        assert!(!round.mark(1, PATIENCE, 3, now));
        assert!(!round.mark(1, PATIENCE, 3, now), "twice is once");
        assert!(!round.mark(2, PATIENCE, 3, now + seconds(1)));
        assert!(round.mark(3, PATIENCE, 3, now + seconds(2)));
        assert_eq!(round.due(), None);
        assert!(!round.take_due(now + seconds(1000)));
    }

    #[test]
    fn the_least_patience_counts() {
        let (mut round, now) = (asked_by(1..4), Instant::now());
        round.mark(1, PATIENCE, 4, now);
        round.mark(2, seconds(10), 4, now + seconds(20));
        round.mark(3, PATIENCE, 4, now + seconds(25));
        assert_eq!(round.due(), Some(now + seconds(30)));
        assert!(!round.take_due(now + seconds(29)));
        assert!(round.take_due(now + seconds(30)));
        assert!(!round.take_due(now + seconds(1000)), "no asker waits");
    }

    #[test]
    fn late_hosts_wait_for_each_other() {
        let (mut round, now) = (asked_by([1]), Instant::now());
        round.mark(1, PATIENCE, 4, now);
        round.ask(2);
        assert!(round.take_due(now + seconds(50)));
        round.ask(3);
        round.mark(2, PATIENCE, 4, now + seconds(200));
        assert_eq!(round.due(), Some(now + seconds(250)));
        round.mark(3, PATIENCE, 4, now + seconds(220));
        assert!(round.take_due(now + seconds(250)));
        round.ask(4);
        assert!(round.mark(4, PATIENCE, 4, now + seconds(300)), "the last");
    }

    #[test]
    fn a_marker_without_questions_does_not_advance_the_comparison() {
        let (mut round, now) = (asked_by([2, 3]), Instant::now());
        round.mark(1, seconds(10), 3, now);
        assert_eq!(round.due(), None);
        round.mark(2, PATIENCE, 3, now + seconds(100));
        assert_eq!(round.due(), Some(now + seconds(150)));
        assert!(round.mark(3, PATIENCE, 3, now + seconds(101)));
    }

    #[test]
    fn repeated_questions_are_compared_within_the_remaining_patience() {
        let (mut round, now) = (asked_by([1]), Instant::now());
        round.mark(1, PATIENCE, 2, now);
        assert!(round.take_due(now + seconds(50)));
        assert!(!round.mark(1, PATIENCE, 2, now + seconds(51)));
        assert_eq!(round.due(), None, "a marker without questions");
        round.ask(1);
        round.mark(1, Duration::ZERO, 2, now + seconds(60));
        assert!(round.take_due(now + seconds(60)));
    }
}
