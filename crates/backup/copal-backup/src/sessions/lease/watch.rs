//! Lease clock of one observer: how long each holder has shown no new heartbeat, by the observer's monotonic
//! clock.
//!
//! Design: docs/design/backup.md#sessions-of-a-fleet BAK-21
//! Invariant: a holder whose heartbeats reach the store less than [`LeaseWatch::LEASE`] apart is never silent
//! to an observer that lists strictly. A look shows the newest acknowledged heartbeat. Silence is counted
//! from the first look that showed it, which is after its write by the same clock. Stamps of the store and
//! the frequency of looks do not matter.
//! Not here: reading heartbeats and ending sessions (`lease`).

use crate::request::open_session::HolderId;
use crate::rules::broken::{self, Flaw};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// For each holder, the newest heartbeat seen and since when. Every observer has its own.
#[derive(Clone, Debug, Default)]
pub struct LeaseWatch {
    seen: HashMap<HolderId, ObservedHolder>,
    /// When the logs of all VMs were read last, and the holders that might have been dead then, with their newest
    /// heartbeats: they have no open session since.
    logs_read: Option<(Duration, HashSet<(HolderId, u64)>)>,
}

#[derive(Clone, Debug)]
struct ObservedHolder {
    /// Number of the newest heartbeat; 0: none was ever seen.
    newest: u64,
    /// When it was seen first.
    since: Duration,
    /// Time of the last look.
    looked: Duration,
}

impl LeaseWatch {
    /// A holder without a new heartbeat for this long may be taken for dead.
    pub const LEASE: Duration = Duration::from_secs(600);
    /// A holder that is not looked at for this long is forgotten, and begins anew afterwards.
    const REMEMBERED: Duration = Duration::from_secs(3600);

    /// An observer that has seen nothing yet.
    pub fn new() -> LeaseWatch {
        LeaseWatch::default()
    }

    /// Looks at one holder. `now` is the time since a moment that the observer chose; `newest` is the number
    /// of its newest heartbeat (0: there is none). Returns the time without a newer one.
    pub fn look(&mut self, now: Duration, holder: HolderId, newest: u64) -> Duration {
        let remembered = |seen: &mut ObservedHolder| now.saturating_sub(seen.looked) < LeaseWatch::REMEMBERED;
        self.seen.retain(|_, seen| remembered(seen));
        let seen = self.seen.entry(holder).or_insert(ObservedHolder { newest, since: now, looked: now });
        // A smaller number means that heartbeats were deleted.
        if newest > seen.newest {
            (seen.newest, seen.since) = (newest, now);
        }
        seen.looked = now;
        now.saturating_sub(seen.since)
    }

    /// Whether the logs of all VMs have to be read: a holder may have died since, or a session may name a holder whose
    /// heartbeats are gone.
    pub(super) fn must_read_logs(&self, now: Duration, suspects: &HashSet<(HolderId, u64)>) -> bool {
        match &self.logs_read {
            None => true,
            Some((read, known)) => {
                now.saturating_sub(*read) >= LeaseWatch::LEASE || !suspects.is_subset(known)
            }
        }
    }

    /// Notes that the logs of all VMs were read.
    pub(super) fn note_logs_read(&mut self, now: Duration, suspects: HashSet<(HolderId, u64)>) {
        self.logs_read = Some((now, suspects));
    }

    /// Whether a holder with this silence may be taken for dead.
    pub fn is_silent(silence: Duration) -> bool {
        silence >= LeaseWatch::LEASE || broken::by(Flaw::FencesAtOnce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::broken::with;
    use crate::world::Random;

    const HOLDER: HolderId = HolderId([7; 16]);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn silence_is_counted_from_the_first_sight_of_the_newest_beat() {
        let mut watch = LeaseWatch::new();
        // It may have been silent for days: this observer does not know.
        assert_eq!(watch.look(seconds(1000), HOLDER, 3), seconds(0));
        assert_eq!(watch.look(seconds(1599), HOLDER, 3), seconds(599));
        assert!(!LeaseWatch::is_silent(seconds(599)));
        assert_eq!(watch.look(seconds(1600), HOLDER, 3), seconds(600));
        assert!(LeaseWatch::is_silent(seconds(600)));
        // It was alive after all.
        assert_eq!(watch.look(seconds(1601), HOLDER, 4), seconds(0));
        // Deleted heartbeats do not count as new ones.
        assert_eq!(watch.look(seconds(1700), HOLDER, 0), seconds(99));
        // Another holder has its own silence, and a clock that stands still adds none.
        assert_eq!(watch.look(seconds(1700), HolderId([8; 16]), 0), seconds(0));
        assert_eq!(watch.look(seconds(1600), HOLDER, 4), seconds(0));
    }

    /// Agents in an object store asked for the log of each VM each minute. Now they do once in the time of a lease, and
    /// when a holder may have died since.
    #[test]
    fn logs_are_read_when_a_holder_may_have_died() {
        let mut watch = LeaseWatch::new();
        let none = HashSet::new();
        let dead = HashSet::from([(HOLDER, 4)]);
        assert!(watch.must_read_logs(seconds(0), &none));
        watch.note_logs_read(seconds(0), none.clone());
        assert!(!watch.must_read_logs(seconds(599), &none));
        assert!(watch.must_read_logs(seconds(600), &none), "its heartbeats may be gone");
        assert!(watch.must_read_logs(seconds(60), &dead));
        watch.note_logs_read(seconds(60), dead.clone());
        assert!(!watch.must_read_logs(seconds(120), &dead), "it has no session");
        assert!(watch.must_read_logs(seconds(120), &HashSet::from([(HOLDER, 5)])), "it was alive since");
    }

    #[test]
    fn a_holder_that_is_not_looked_at_is_forgotten_and_begins_anew() {
        let mut watch = LeaseWatch::new();
        watch.look(seconds(0), HOLDER, 1);
        watch.look(seconds(7200), HolderId([8; 16]), 1);
        assert_eq!(watch.seen.len(), 1);
        assert_eq!(watch.look(seconds(7200), HOLDER, 1), seconds(0));
    }

    /// A random history of heartbeats less than ten minutes apart and looks at any time. Returns whether the
    /// holder was ever taken for dead.
    fn is_ever_silent(seed: u64) -> bool {
        let mut random = Random::new(seed);
        let mut watch = LeaseWatch::new();
        let (mut now, mut newest, mut next_beat_at) = (0, 0, 0);
        for _ in 0..300 {
            now += match random.below(4) {
                // A look soon after the last one, or after a pause of up to about an hour.
                0..=2 => random.below(120_000),
                _ => random.below(4_000_000),
            };
            while next_beat_at <= now {
                newest += 1 + random.below(3);
                next_beat_at += 1 + random.below(599_999);
            }
            let silence = watch.look(Duration::from_millis(now), HOLDER, newest);
            if LeaseWatch::is_silent(silence) {
                return true;
            }
        }
        false
    }

    #[test]
    fn a_holder_with_heartbeats_in_time_is_never_taken_for_dead() {
        for seed in 0..500 {
            assert!(!is_ever_silent(seed), "seed {seed}");
        }
        assert!(with(&[Flaw::FencesAtOnce], || is_ever_silent(0)), "the flaw is not noticed");
    }
}
