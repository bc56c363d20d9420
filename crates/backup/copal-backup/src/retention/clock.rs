//! Plausibility of clocks: finds snapshots with an impossible time, and removals that only a doubtful clock
//! justifies.
//!
//! A clock that runs ahead cannot be distinguished from a long pause, so no backup is refused for it. Once it
//! is right again, later snapshots reveal the error. While it may be wrong, a snapshot is not removed if only
//! the present time justifies the removal (BAK-13).
//!
//! Not here: the policy for snapshots with possible times (`judge`).

use super::{Candidate, ClockDoubt, KeepReason, Policy, Verdict, judge};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use std::fmt;

/// Longest plausible pause without a snapshot. A clock that is further ahead of the newest snapshot may be
/// wrong.
pub const PAUSE_MS: u64 = 45 * 86_400_000;
/// Tolerated step of a clock that is set.
const SKEW_MS: u64 = 3_600_000;

/// Error in the time of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misdated {
    /// It lies in the future, or after the time of snapshots that were made later.
    Ahead,
    /// It lies before the times of snapshots that were made earlier.
    Behind,
}

impl fmt::Display for Misdated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Misdated::Ahead => "from the future",
            Misdated::Behind => "from a clock that was behind",
        })
    }
}

/// Finds the snapshots of one VM with an impossible time; `times_ms` is in the order in which they were made.
///
/// A time after `now_ms` is impossible. Of the rest the longest ascending run is right, and times that do not
/// fit between its members are wrong.
pub fn misdated(times_ms: &[u64], now_ms: u64) -> Vec<Option<Misdated>> {
    let mut verdicts: Vec<Option<Misdated>> = times_ms
        .iter()
        .map(|time| (*time > now_ms.saturating_add(SKEW_MS)).then_some(Misdated::Ahead))
        .collect();
    let past: Vec<usize> = (0..times_ms.len()).filter(|at| verdicts[*at].is_none()).collect();
    let right = longest_ascent(&past, times_ms);
    let mut next_right = right.iter().copied().peekable();
    let mut before: Option<u64> = None;
    for at in past {
        let time = times_ms[at];
        if next_right.peek() == Some(&at) {
            next_right.next();
            before = Some(time);
            continue;
        }
        let after = next_right.peek().map(|next| times_ms[*next]);
        if after.is_some_and(|after| time > after.saturating_add(SKEW_MS)) {
            verdicts[at] = Some(Misdated::Ahead);
        } else if before.is_some_and(|before| time.saturating_add(SKEW_MS) < before) {
            verdicts[at] = Some(Misdated::Behind);
        }
    }
    verdicts
}

/// The longest run of `places` with non-decreasing times; of several the one that ends earliest.
fn longest_ascent(places: &[usize], times_ms: &[u64]) -> Vec<usize> {
    // `tails[n]`: the place with the lowest time that ends a run of n + 1; `previous`: its predecessor in the
    // run.
    let mut tails: Vec<usize> = Vec::new();
    let mut previous: Vec<Option<usize>> = vec![None; times_ms.len()];
    for &at in places {
        let length = tails.partition_point(|tail| times_ms[*tail] <= times_ms[at]);
        previous[at] = length.checked_sub(1).map(|shorter| tails[shorter]);
        match tails.get_mut(length) {
            Some(tail) => *tail = at,
            None => tails.push(at),
        }
    }
    let mut run: Vec<usize> = std::iter::successors(tails.last().copied(), |at| previous[*at]).collect();
    run.reverse();
    run
}

/// The time of a clock, and the time up to which snapshots confirm it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockRange {
    /// Time of the clock, in ms since 1970.
    pub now_ms: u64,
    /// Up to here there is a snapshot in every [`PAUSE_MS`]: `now_ms`, or the time of the last snapshot
    /// before a gap.
    pub until_ms: u64,
}

impl ClockRange {
    /// Judges a clock by the times of all snapshots of all VMs, since one clock stamps them.
    ///
    /// After a gap the clock is believed again once it has run on for as long as a gap.
    pub fn new(mut times_ms: Vec<u64>, now_ms: u64) -> ClockRange {
        times_ms.retain(|time| *time < now_ms);
        times_ms.sort_unstable();
        times_ms.push(now_ms);
        let mut until_ms = now_ms;
        // End of the stretch without gaps that is being examined.
        let mut end_ms = now_ms;
        for pair in times_ms.windows(2).rev() {
            if end_ms - pair[1] >= PAUSE_MS {
                break;
            }
            if pair[1] - pair[0] > PAUSE_MS {
                (until_ms, end_ms) = (pair[0], pair[0]);
            }
        }
        ClockRange { now_ms, until_ms }
    }

    /// The same clock, after a person has confirmed it.
    #[must_use]
    pub fn accepted(self) -> ClockRange {
        ClockRange { until_ms: self.now_ms, ..self }
    }

    /// Whether a hold may still be in force.
    pub fn holds(&self, held_until_ms: u64) -> bool {
        held_until_ms > self.until_ms
    }

    /// The refusal to forget a snapshot whose hold may still be in force: a sentence.
    pub fn refusal(&self, snapshot: &str, held_until_ms: u64) -> String {
        match held_until_ms > self.now_ms {
            true => format!(
                "snapshot {snapshot} is held; end that with `copal hold --release {snapshot}`, nothing was forgotten"
            ),
            false => format!("the hold of snapshot {snapshot} has ended, but {}", self.doubt()),
        }
    }

    /// Why the clock is doubted, with both times and advice: the end of a sentence.
    pub fn doubt(&self) -> String {
        let shown = |ms: u64| {
            let timestamp = i64::try_from(ms).ok().map(Timestamp::from_millisecond);
            timestamp
                .and_then(Result::ok)
                .unwrap_or(Timestamp::MAX)
                .strftime("%Y-%m-%d %H:%M UTC")
                .to_string()
        };
        format!(
            "the clock shows {}, and the newest snapshot before that jump of more than 45 days is of {}; nothing was \
             forgotten: set the clock, or add --accept-clock to `copal forget` or `copal prune` if it is right",
            shown(self.now_ms),
            shown(self.until_ms)
        )
    }
}

/// Judges the snapshots of one VM, in the order in which they were made:
/// - Snapshots with a possible time are judged as [`judge`] does. The others are kept and represent no
///   period.
/// - Doubtful snapshots and good ones are judged separately, so no good one is removed in favour of a
///   doubtful one.
/// - A removal that only a doubtful clock justifies is returned as doubt.
pub fn judge_by_clock(
    policy: &Policy,
    snapshots: &[Candidate],
    clock: &ClockRange,
    zone: &TimeZone,
) -> Vec<Verdict> {
    let times: Vec<u64> = snapshots.iter().map(|snapshot| snapshot.created_ms).collect();
    let misdated = misdated(&times, clock.now_ms);
    let dated = snapshots.iter().zip(&misdated);
    let (doubtful, good): (Vec<Candidate>, Vec<Candidate>) = dated
        .filter(|(_, misdated)| misdated.is_none())
        .map(|(snapshot, _)| snapshot.clone())
        .partition(|snapshot| snapshot.is_doubtful);
    let mut doubtful = judge_dated(policy, &doubtful, clock, zone).into_iter();
    let mut good = judge_dated(policy, &good, clock, zone).into_iter();
    let verdict = |(snapshot, misdated): (&Candidate, Option<Misdated>)| match misdated {
        Some(misdated) => Some(Verdict::Keep(KeepReason::Misdated(misdated))),
        None if snapshot.is_doubtful => doubtful.next(),
        None => good.next(),
    };
    // Each snapshot with a possible time has one verdict, so none is missing.
    snapshots.iter().zip(misdated).filter_map(verdict).collect()
}

/// Judges snapshots with possible times.
fn judge_dated(policy: &Policy, right: &[Candidate], clock: &ClockRange, zone: &TimeZone) -> Vec<Verdict> {
    let believed = right.iter().map(|snapshot| snapshot.created_ms);
    let newest_ms = believed.filter(|time| *time <= clock.until_ms).max().unwrap_or(0);
    let judged = judge(policy, right, clock.now_ms, zone);
    let judged = right.iter().zip(judged).map(|(snapshot, verdict)| {
        let age_ms =
            newest_ms.checked_sub(snapshot.created_ms).map(|age| i64::try_from(age).unwrap_or(i64::MAX));
        let within =
            |age_ms| policy.within.is_some_and(|within| SignedDuration::from_millis(age_ms) <= within);
        match verdict {
            Verdict::Remove(_) if clock.holds(snapshot.held_until_ms) => Verdict::Doubt(ClockDoubt::Held),
            Verdict::Remove(_) if age_ms.is_some_and(within) => Verdict::Doubt(ClockDoubt::Within),
            verdict => verdict,
        }
    });
    judged.collect()
}

#[cfg(test)]
mod tests;
