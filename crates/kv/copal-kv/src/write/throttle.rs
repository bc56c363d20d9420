//! How long writers are delayed so that merges keep up: not at all without debt, longer as debt grows,
//! without steps. Pure, but for the throttle.
//!
//! Design: docs/design/kv.md#pacing KV-16
//! A tier may hold four runs of its size; what it holds beyond that is debt, bytes still to be written, and
//! three times as much is the limit. A byte is delayed by `(debt / limit)^2` of the worker's time that a user
//! byte has cost so far: a quarter of it at half the limit, all of it at the limit, where writers go exactly
//! as fast as the merges. Up to there a burst is as fast as the flushes, and the more runs wait, the more a
//! merge takes at once: each byte of a deeper run is written again less often.
//! Invariants
//! - Debt is bytes, not a count of files, and memtables count: it grows byte by byte and a flush changes
//!   nothing.
//! - No delay is forgotten, however small the writes; no single one is longer than [`LONGEST`].

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Longest single payment; the rest is paid by the next groups.
pub(crate) const LONGEST: Duration = Duration::from_millis(100);
/// Delays below this are not worth a sleep: they add up.
const SHORTEST: Duration = Duration::from_micros(200);
/// Most that adds up, so that one huge batch does not slow writers for minutes.
const MOST_PENDING: Duration = Duration::from_secs(2);
/// What a tier at its limit holds beyond what it may, in multiples of that.
const LIMIT: u64 = 3;
/// Times a byte is at least written by flush and tiers, whatever was measured. Few, because a flush that
/// shares the processors with a merge takes longer than the merge will take for the same bytes.
const LEAST_WRITES: f64 = 2.0;
/// Price at which writers are already far slower than the merges.
const MOST_SHARE: f64 = 4.0;

/// Measured since the store was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MeasuredCosts {
    /// Time the worker spent in merges.
    pub(crate) merge_nanos: u64,
    pub(crate) user_bytes: u64,
    /// Time in flushes, which go on beside merges, and the bytes they took out of memory.
    pub(crate) flush_nanos: u64,
    pub(crate) flushed_bytes: u64,
}

impl MeasuredCosts {
    /// The worker's time for one byte of a user.
    ///
    /// At least what writing it [`LEAST_WRITES`] times by a flush would cost: deep merges come late.
    fn nanos_per_user_byte(&self) -> f64 {
        let per = |nanos: u64, bytes: u64| match bytes {
            0 => 0.0,
            bytes => nanos as f64 / bytes as f64,
        };
        let measured = per(self.merge_nanos, self.user_bytes);
        measured.max(LEAST_WRITES * per(self.flush_nanos, self.flushed_bytes))
    }
}

/// What tiers hold beyond what they may.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MergeDebt {
    pub(crate) bytes: u64,
    /// Of the limit: a tier that holds four times what it may is at it.
    pub(crate) share: f64,
}

/// The debt of a tree. `tiers`: bytes from the top down; `memtables`: bytes that are on their way to the
/// first; `runs`: how many a tier may hold.
/// So many `runs` of a tier become one of the next, which are that much larger.
pub(crate) fn debt_of(tiers: &[u64], memtables: u64, memtable_bytes: u64, runs: u64) -> MergeDebt {
    let mut debt = MergeDebt::default();
    let mut may_hold = runs * memtable_bytes.max(1);
    for (level, bytes) in tiers.iter().enumerate() {
        // One memtable fills while the one before is flushed.
        let (bytes, allowed) = match level {
            0 => (bytes + memtables, may_hold + 2 * memtable_bytes),
            _ => (*bytes, may_hold),
        };
        let over = bytes.saturating_sub(allowed);
        debt.bytes += over;
        debt.share += over as f64 / (LIMIT * may_hold) as f64;
        may_hold = may_hold.saturating_mul(runs);
    }
    debt
}

/// How long writing `bytes` is delayed at a debt of `share` of the limit, in nanoseconds.
pub(crate) fn delay_nanos(bytes: u64, share: f64, measured: MeasuredCosts) -> u64 {
    let share = share.min(MOST_SHARE);
    (bytes as f64 * share * share * measured.nanos_per_user_byte()) as u64
}

/// Delay that writers have coming and have not been given yet.
#[derive(Debug, Default)]
pub(crate) struct WriteThrottle {
    pending_nanos: AtomicU64,
}

impl WriteThrottle {
    /// Adds `nanos` of delay; how long the writer is to wait now, if it is worth a sleep.
    pub(crate) fn add(&self, nanos: u64) -> Option<Duration> {
        let mut due = 0;
        let take_due = |pending: u64| {
            let pending = pending.saturating_add(nanos).min(MOST_PENDING.as_nanos() as u64);
            due = pending.min(LONGEST.as_nanos() as u64);
            if due < SHORTEST.as_nanos() as u64 {
                due = 0;
            }
            Some(pending - due)
        };
        // The closure never refuses.
        let _ = self.pending_nanos.fetch_update(Relaxed, Relaxed, take_due);
        (due > 0).then(|| Duration::from_nanos(due))
    }
}

#[cfg(test)]
mod tests;
