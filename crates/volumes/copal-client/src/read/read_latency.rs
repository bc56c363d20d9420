//! Latency of reads by replica: which replica is called first, and when a second one is called as well (hedging).
//!
//! A read goes to the replica whose turn it is, or to the next one if that is twice as fast. If its answer takes
//! longer than those of nearly all reads, a second replica is called, and the first answer counts. Only one read
//! in twenty may cost a second call, so that servers that are all slow do not get more load.
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

/// Part of the reads that are faster than the hedge delay.
const FASTER: f64 = 0.95;
/// Step of the delay's logarithm for one read.
const STEP: f64 = 0.1;
/// Hedge delay before anything was measured, and its bounds. Below the least one a second call costs more than it
/// saves.
const FIRST: Duration = Duration::from_millis(50);
const LEAST: Duration = Duration::from_millis(1);
const MOST: Duration = Duration::from_secs(1);
/// Second calls that one read adds to the budget, and the most that the budget holds.
const BUDGET_PER_READ: f64 = 0.05;
const MAX_BUDGET: f64 = 10.0;
/// Half-life of a replica's measured latency: a replica that was slow is tried again.
const HALF_LIFE: Duration = Duration::from_secs(10);

/// Latency of one replica.
struct LatencySample {
    seconds: f64,
    at: Instant,
}

struct LatencyState {
    replicas: BTreeMap<DiskId, LatencySample>,
    /// Hedge delay in seconds, by class of read.
    delays: BTreeMap<CallClass, f64>,
    /// Second calls that may be made now.
    budget: f64,
    hedged: u64,
}

/// See the module.
pub(crate) struct ReadLatency(Mutex<LatencyState>);

impl Default for ReadLatency {
    fn default() -> ReadLatency {
        ReadLatency(Mutex::new(LatencyState {
            replicas: BTreeMap::new(),
            delays: BTreeMap::new(),
            budget: MAX_BUDGET,
            hedged: 0,
        }))
    }
}

impl ReadLatency {
    /// Swaps the first two of `disks` if the second one answers in less than half the time. A replica that is
    /// only a little slower keeps its share, so that all replicas serve reads.
    pub(crate) fn prefer_faster(&self, disks: &mut [DiskId]) {
        if let [first, second, ..] = disks {
            let (state, now) = (self.0.lock(), machine::now());
            if 2.0 * state.expected(*second, now) < state.expected(*first, now) {
                std::mem::swap(first, second);
            }
        }
    }

    /// How long a read of this class waits before a second replica is called.
    pub(crate) fn hedge_delay(&self, class: CallClass) -> Duration {
        let known = self.0.lock().delays.get(&class).copied();
        known.map_or(FIRST, Duration::from_secs_f64)
    }

    /// Whether a read may call a second replica now. If so, the call is taken from the budget and counted.
    pub(crate) fn take_hedge(&self) -> bool {
        let mut state = self.0.lock();
        let may = state.budget >= 1.0;
        if may {
            state.budget -= 1.0;
            state.hedged += 1;
        }
        may
    }

    /// Reads for which a second replica was called.
    pub(crate) fn hedged(&self) -> u64 {
        self.0.lock().hedged
    }

    /// Starts to measure a call. `measure`: the call is the first of a read of this class.
    pub(crate) fn start(&self, disk: DiskId, measure: Option<CallClass>) -> ReadTimer<'_> {
        ReadTimer { latency: self, disk, measure, began: machine::now(), has_failed: false }
    }

    fn note(&self, disk: DiskId, took: Duration) {
        self.0.lock().note_replica(disk, took.as_secs_f64(), machine::now());
    }

    fn note_first(&self, class: CallClass, took: Duration) {
        self.0.lock().note_read(class, took.as_secs_f64());
    }
}

/// Measures one call to a replica, until it ends or is dropped.
pub(crate) struct ReadTimer<'a> {
    latency: &'a ReadLatency,
    disk: DiskId,
    measure: Option<CallClass>,
    began: Instant,
    has_failed: bool,
}

impl ReadTimer<'_> {
    /// The replica's answer did not count: the replica is measured as slow, however fast it answered.
    pub(crate) fn mark_failed(&mut self) {
        self.has_failed = true;
    }
}

impl Drop for ReadTimer<'_> {
    fn drop(&mut self) {
        let took = machine::since(self.began);
        self.latency.note(self.disk, if self.has_failed { took.max(MOST) } else { took });
        if let Some(class) = self.measure {
            self.latency.note_first(class, took);
        }
    }
}

impl LatencyState {
    fn expected(&self, disk: DiskId, now: Instant) -> f64 {
        self.replicas.get(&disk).map_or(0.0, |known| {
            let age = now.saturating_duration_since(known.at).as_secs_f64();
            known.seconds * 0.5_f64.powf(age / HALF_LIFE.as_secs_f64())
        })
    }

    fn note_replica(&mut self, disk: DiskId, took: f64, now: Instant) {
        let seconds = match self.replicas.contains_key(&disk) {
            true => self.expected(disk, now) * 0.75 + took * 0.25,
            false => took,
        };
        self.replicas.insert(disk, LatencySample { seconds, at: now });
    }

    /// Raises the delay by a large step if a read took longer, and lowers it by a small one otherwise. It is in
    /// balance where the part `FASTER` of the reads is faster.
    fn note_read(&mut self, class: CallClass, took: f64) {
        self.budget = (self.budget + BUDGET_PER_READ).min(MAX_BUDGET);
        let known = self.delays.entry(class).or_insert(FIRST.as_secs_f64());
        let step = if took > *known { FASTER } else { FASTER - 1.0 };
        *known = (*known * (STEP * step).exp()).clamp(LEAST.as_secs_f64(), MOST.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hedge delay follows the latency of reads, up and down.
    #[test]
    fn nineteen_of_twenty_reads_call_one_replica() {
        let latency = ReadLatency::default();
        for slow_ms in [200, 20] {
            for read in 0..20_000_u64 {
                // Uniform between 10 and 100 % of `slow_ms`: 95 of 100 reads take less than 95.5 % of it.
                let took = slow_ms as f64 / 1e3 * (0.1 + 0.9 * (read * 7919 % 1000) as f64 / 1e3);
                latency.note_first(CallClass::Small, Duration::from_secs_f64(took));
            }
            let found = latency.hedge_delay(CallClass::Small).as_secs_f64() * 1e3 / slow_ms as f64;
            assert!((0.8..1.1).contains(&found), "{found} of {slow_ms} ms");
        }
        assert_eq!(latency.hedge_delay(CallClass::Bulk), FIRST, "each class has its own delay");
    }

    /// When all replicas are slow, nearly every read would call a second one; five in a hundred may.
    #[test]
    fn second_calls_stay_within_the_budget() {
        let latency = ReadLatency::default();
        let mut hedged = 0;
        for _ in 0..1000 {
            latency.note_first(CallClass::Small, Duration::from_secs(2));
            hedged += u64::from(latency.take_hedge());
        }
        assert_eq!(hedged, latency.hedged());
        assert!((50..=60).contains(&hedged), "{hedged}");
    }

    /// A replica that was slow is called last, until its latency is forgotten.
    #[test]
    fn a_replica_twice_as_fast_is_called_first() {
        let (latency, slow, fast, other) = (ReadLatency::default(), DiskId(1), DiskId(2), DiskId(3));
        latency.note(slow, Duration::from_secs(1));
        latency.note(fast, Duration::from_millis(2));
        let mut disks = [slow, fast, other];
        latency.prefer_faster(&mut disks);
        assert_eq!(disks, [fast, slow, other]);
        latency.note(other, Duration::from_millis(3));
        let mut alike = [other, fast, slow];
        latency.prefer_faster(&mut alike);
        assert_eq!(alike, [other, fast, slow], "a little slower");
        let mut alone = [slow];
        latency.prefer_faster(&mut alone);
        let state = latency.0.lock();
        let later = machine::now() + HALF_LIFE * 20;
        assert!(state.expected(slow, later) < 1e-5, "the latency halves every ten seconds");
    }
}
