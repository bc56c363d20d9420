//! How fast members answer reads: whom to ask first, and when to ask another one as well.
//!
//! A read goes to the member whose turn it is, or to the next when that one is twice as fast. When its answer
//! takes longer than those of nearly all reads, another member is asked beside it, and the first answer
//! counts. One read in twenty may cost a second call, so that servers that are all slow are not made slower.
//!
//! Rule: VOL-33, docs/design/cluster.md

use crate::net::machine;
use copal_proto::CallClass;
use copal_volume::group::DiskId;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Of a hundred reads as many are faster than the time after which another member is asked.
const FASTER: f64 = 0.95;
/// How far one read moves that time: the logarithm's step.
const STEP: f64 = 0.1;
/// That time before anything was measured, and its bounds. Below the least a second call costs more than it
/// saves.
const FIRST: Duration = Duration::from_millis(50);
const LEAST: Duration = Duration::from_millis(1);
const MOST: Duration = Duration::from_secs(1);
/// Second calls that one read allows, and how many may be saved up.
const ALLOWED: f64 = 0.05;
const SAVED: f64 = 10.0;
/// After so long half of what was measured of a member is forgotten, so that who was slow is tried again.
const FORGET_HALF: Duration = Duration::from_secs(10);

/// What was measured of a member.
struct Measured {
    seconds: f64,
    at: Instant,
}

struct State {
    members: BTreeMap<DiskId, Measured>,
    /// By class of read: after how many seconds another member is asked.
    patience: BTreeMap<CallClass, f64>,
    allowed: f64,
    hedged: u64,
}

/// See the module.
pub(crate) struct Pace(Mutex<State>);

impl Default for Pace {
    fn default() -> Pace {
        Pace(Mutex::new(State {
            members: BTreeMap::new(),
            patience: BTreeMap::new(),
            allowed: SAVED,
            hedged: 0,
        }))
    }
}

impl Pace {
    /// Lets the second of `disks` come before the first when its answers take less than half the time. Who is
    /// a little slower keeps its share: three are not read as if they were two.
    pub(crate) fn order(&self, disks: &mut [DiskId]) {
        if let [first, second, ..] = disks {
            let (state, now) = (self.0.lock(), machine::now());
            if 2.0 * state.expected(*second, now) < state.expected(*first, now) {
                std::mem::swap(first, second);
            }
        }
    }

    /// How long a read of this class waits before another member is asked as well.
    pub(crate) fn patience(&self, class: CallClass) -> Duration {
        let known = self.0.lock().patience.get(&class).copied();
        known.map_or(FIRST, Duration::from_secs_f64)
    }

    /// Whether a read that has waited so long may ask another member as well; it then has to.
    pub(crate) fn may_hedge(&self) -> bool {
        let mut state = self.0.lock();
        let may = state.allowed >= 1.0;
        if may {
            state.allowed -= 1.0;
            state.hedged += 1;
        }
        may
    }

    /// Reads for which another member was asked as well.
    pub(crate) fn hedged(&self) -> u64 {
        self.0.lock().hedged
    }

    /// Begins to measure what a member takes; `measure`: it is the first that a read of this class has asked.
    pub(crate) fn time(&self, disk: DiskId, measure: Option<CallClass>) -> Timed<'_> {
        Timed { pace: self, disk, measure, began: machine::now(), has_failed: false }
    }

    fn note(&self, disk: DiskId, took: Duration) {
        self.0.lock().note_member(disk, took.as_secs_f64(), machine::now());
    }

    fn note_first(&self, class: CallClass, took: Duration) {
        self.0.lock().note_read(class, took.as_secs_f64());
    }
}

/// A call to a member; measured when it ends, or is not waited for any more.
pub(crate) struct Timed<'a> {
    pace: &'a Pace,
    disk: DiskId,
    measure: Option<CallClass>,
    began: Instant,
    has_failed: bool,
}

impl Timed<'_> {
    /// The member gave no answer that counts: as if it were slow, however fast it said so.
    pub(crate) fn has_failed(&mut self) {
        self.has_failed = true;
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        let took = machine::since(self.began);
        self.pace.note(self.disk, if self.has_failed { took.max(MOST) } else { took });
        if let Some(class) = self.measure {
            self.pace.note_first(class, took);
        }
    }
}

impl State {
    fn expected(&self, disk: DiskId, now: Instant) -> f64 {
        self.members.get(&disk).map_or(0.0, |known| {
            let age = now.saturating_duration_since(known.at).as_secs_f64();
            known.seconds * 0.5_f64.powf(age / FORGET_HALF.as_secs_f64())
        })
    }

    fn note_member(&mut self, disk: DiskId, took: f64, now: Instant) {
        let seconds = match self.members.contains_key(&disk) {
            true => self.expected(disk, now) * 0.75 + took * 0.25,
            false => took,
        };
        self.members.insert(disk, Measured { seconds, at: now });
    }

    /// Up by much when a read took longer, down by little when it did not: in balance where `FASTER` of them
    /// are faster.
    fn note_read(&mut self, class: CallClass, took: f64) {
        self.allowed = (self.allowed + ALLOWED).min(SAVED);
        let known = self.patience.entry(class).or_insert(FIRST.as_secs_f64());
        let step = if took > *known { FASTER } else { FASTER - 1.0 };
        *known = (*known * (STEP * step).exp()).clamp(LEAST.as_secs_f64(), MOST.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time after which another member is asked follows what reads take, up and down.
    #[test]
    fn nineteen_reads_of_twenty_are_not_asked_twice() {
        let pace = Pace::default();
        for slow_ms in [200, 20] {
            for read in 0..20_000_u64 {
                // Even in 10 hundredths to all of it: 95 of 100 take less than .955 of it.
                let took = slow_ms as f64 / 1e3 * (0.1 + 0.9 * (read * 7919 % 1000) as f64 / 1e3);
                pace.note_first(CallClass::Small, Duration::from_secs_f64(took));
            }
            let found = pace.patience(CallClass::Small).as_secs_f64() * 1e3 / slow_ms as f64;
            assert!((0.8..1.1).contains(&found), "{found} of {slow_ms} ms");
        }
        assert_eq!(pace.patience(CallClass::Bulk), FIRST, "of its own");
    }

    /// When all members are slow, twenty reads in a hundred would ask twice; five may.
    #[test]
    fn second_calls_are_few_whatever_happens() {
        let pace = Pace::default();
        let mut hedged = 0;
        for _ in 0..1000 {
            pace.note_first(CallClass::Small, Duration::from_secs(2));
            hedged += u64::from(pace.may_hedge());
        }
        assert_eq!(hedged, pace.hedged());
        assert!((50..=60).contains(&hedged), "{hedged}");
    }

    /// Who was slow is asked last, until that is long ago.
    #[test]
    fn who_is_twice_as_fast_is_asked_first() {
        let (pace, slow, fast, other) = (Pace::default(), DiskId(1), DiskId(2), DiskId(3));
        pace.note(slow, Duration::from_secs(1));
        pace.note(fast, Duration::from_millis(2));
        let mut disks = [slow, fast, other];
        pace.order(&mut disks);
        assert_eq!(disks, [fast, slow, other]);
        pace.note(other, Duration::from_millis(3));
        let mut alike = [other, fast, slow];
        pace.order(&mut alike);
        assert_eq!(alike, [other, fast, slow], "a little slower");
        let mut alone = [slow];
        pace.order(&mut alone);
        let state = pace.0.lock();
        let later = machine::now() + FORGET_HALF * 20;
        assert!(state.expected(slow, later) < 1e-5, "half of it is forgotten every ten seconds");
    }
}
