//! Write throttle: delays writers so that merges keep up. Without debt there is no delay; it grows with the
//! debt, without steps. Pure, except for the throttle itself.
//!
//! Design: docs/design/kv.md#pacing KV-16
//! A tier may hold four runs of its size. The excess is debt, bytes still to be written, and three times the
//! permitted size is its limit. A byte is delayed by `(debt / limit)^2` of the worker's time per user byte so
//! far: a quarter of it at half the limit, all of it at the limit. At the limit writers are exactly as fast
//! as the merges.
//!
//! Below the limit a burst is as fast as the flushes. The more runs wait, the more of them one merge takes,
//! so each byte of a deeper run is rewritten less often.
//! Invariants
//! - Debt is bytes, not a count of files, and memtables count. So it grows byte by byte, and a flush does not
//!   change it.
//! - No delay is lost, however small the writes; no single one is longer than [`LONGEST`].

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Longest single delay; later groups pay the rest.
pub(crate) const LONGEST: Duration = Duration::from_millis(100);
/// Shorter delays are not worth a sleep: they are added up.
const SHORTEST: Duration = Duration::from_micros(200);
/// Limit of the added-up delay, so that one huge batch does not slow writers for minutes.
const MOST_PENDING: Duration = Duration::from_secs(2);
/// Limit of a tier's excess, in multiples of its permitted size.
const LIMIT: u64 = 3;
/// Assumed least number of times that flush and tiers write a byte, even if fewer were measured. Small, since
/// a flush that shares the processors with a merge takes longer than the merge will take for the same bytes.
const LEAST_WRITES: f64 = 2.0;
/// Price at which writers are already far slower than the merges.
const MOST_SHARE: f64 = 4.0;

/// Costs measured since the store was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MeasuredCosts {
    /// Time that the worker spent in merges.
    pub(crate) merge_nanos: u64,
    pub(crate) user_bytes: u64,
    /// Time spent in flushes, which run in parallel with merges, and the memtable bytes that they wrote.
    pub(crate) flush_nanos: u64,
    pub(crate) flushed_bytes: u64,
}

impl MeasuredCosts {
    /// The worker's time per user byte.
    ///
    /// At least the cost of writing the byte [`LEAST_WRITES`] times by a flush, since deep merges come late.
    fn nanos_per_user_byte(&self) -> f64 {
        let per = |nanos: u64, bytes: u64| match bytes {
            0 => 0.0,
            bytes => nanos as f64 / bytes as f64,
        };
        let measured = per(self.merge_nanos, self.user_bytes);
        measured.max(LEAST_WRITES * per(self.flush_nanos, self.flushed_bytes))
    }
}

/// Excess of the tiers over their permitted sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MergeDebt {
    pub(crate) bytes: u64,
    /// Sum of the excess as a share of its limit, per tier: a tier with four times its permitted size is at
    /// the limit.
    pub(crate) share: f64,
}

/// The debt of a tree. `tiers`: bytes from the top; `memtables`: bytes that will reach the first tier;
/// `runs`: permitted runs of a tier.
///
/// A merge of `runs` runs makes one run of the next tier, so runs grow by that factor.
pub(crate) fn debt_of(tiers: &[u64], memtables: u64, memtable_bytes: u64, runs: u64) -> MergeDebt {
    let mut debt = MergeDebt::default();
    let mut may_hold = runs * memtable_bytes.max(1);
    for (level, bytes) in tiers.iter().enumerate() {
        // One memtable fills while the previous one is flushed.
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

/// Delay for writing `bytes` at a debt of `share` of the limit, in nanoseconds.
pub(crate) fn delay_nanos(bytes: u64, share: f64, measured: MeasuredCosts) -> u64 {
    let share = share.min(MOST_SHARE);
    (bytes as f64 * share * share * measured.nanos_per_user_byte()) as u64
}

/// Delay that writers owe and have not slept yet.
#[derive(Debug, Default)]
pub(crate) struct WriteThrottle {
    pending_nanos: AtomicU64,
}

impl WriteThrottle {
    /// Adds `nanos` of delay; returns how long the writer should wait now, if that is worth a sleep.
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
