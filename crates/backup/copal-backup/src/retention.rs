//! Retention: pure rules over times that decide which snapshots a policy keeps, with one reason per snapshot.
//!
//! The semantics of Proxmox Backup Server:
//! - Options apply in the order last, hourly, daily, weekly, monthly, yearly.
//! - Each option walks from the newest snapshot back and keeps the newest of each of its periods, up to its
//!   number. Periods without a snapshot do not count.
//! - A period of which an earlier option kept a snapshot is covered and not counted again.
//! - A snapshot that a period passed over is not kept by later options.
//! - Weeks are ISO weeks.
//! - `within` and tags come on top: their snapshots are kept in any case. So are held snapshots, and the
//!   newest verified one.
//!
//! Invariants
//! - The order of the input does not matter; snapshots with equal times are ordered by position.
//! - A doubtful snapshot replaces no good one: the two groups are judged separately.
//! - The caller must refuse a policy that keeps nothing ([`Policy::is_empty`]).
//!
//! Not here: grouping of snapshots (one group is one VM), removal, impossible times (`clock`).

mod clock;

pub use clock::{ClockRange, Misdated, PAUSE_MS, judge_by_clock, misdated};
use jiff::{SignedDuration, Timestamp, Zoned, tz::TimeZone};
use std::{collections::HashSet, fmt};

/// A retention policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Number of newest snapshots to keep.
    pub last: u32,
    /// Number of hours of which the newest snapshot is kept.
    pub hourly: u32,
    /// Number of days of which the newest snapshot is kept.
    pub daily: u32,
    /// Number of ISO weeks of which the newest snapshot is kept.
    pub weekly: u32,
    /// Number of months of which the newest snapshot is kept.
    pub monthly: u32,
    /// Number of years of which the newest snapshot is kept.
    pub yearly: u32,
    /// Keeps all snapshots at most this much older than the newest.
    pub within: Option<SignedDuration>,
    /// Keeps all snapshots with one of these tags.
    pub tags: Vec<String>,
}

impl Policy {
    /// Whether the policy would keep nothing.
    pub fn is_empty(&self) -> bool {
        *self == Policy::default()
    }
}

/// A snapshot as a policy sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// When the snapshot became visible, ms since 1970.
    pub created_ms: u64,
    /// Its tags.
    pub tags: Vec<String>,
    /// A verify found no damage in it.
    pub is_verified: bool,
    /// It has a warning that no operator has accepted.
    pub is_doubtful: bool,
    /// It may not be forgotten before this time, in ms since 1970; 0: it is not held.
    pub held_until_ms: u64,
}

/// Reason why a snapshot is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepReason {
    /// One of the newest.
    Last,
    /// The newest of its period; the period is in a readable form: `2026-W07`.
    Period {
        /// `hourly`, `daily`, `weekly`, `monthly` or `yearly`.
        option: &'static str,
        /// The hour, day, week, month or year.
        period: String,
    },
    /// At most `within` older than the newest.
    Within,
    /// It has a tag of the policy.
    Tag(String),
    /// The newest verified snapshot.
    Verified,
    /// It is held.
    Held,
    /// Its time is impossible, so it represents no period.
    Misdated(Misdated),
}

/// Reason why a snapshot would be removed only if the doubtful clock is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockDoubt {
    /// Its hold would have ended.
    Held,
    /// It would be older than `within`.
    Within,
}

/// Reason why a snapshot is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoveReason {
    /// A newer snapshot of the same period is kept.
    PassedOver {
        /// The option that passed over it.
        option: &'static str,
        /// The period.
        period: String,
    },
    /// No option covers it.
    NotCovered,
}

/// The verdict on one snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is kept.
    Keep(KeepReason),
    /// It is removed.
    Remove(RemoveReason),
    /// It would be removed by a clock that may be wrong; the caller refuses that.
    Doubt(ClockDoubt),
}

impl Verdict {
    /// Whether the snapshot is kept.
    pub fn is_keep(&self) -> bool {
        matches!(self, Verdict::Keep(_))
    }
    /// Whether the snapshot is removed.
    pub fn is_remove(&self) -> bool {
        matches!(self, Verdict::Remove(_))
    }
    /// Whether the snapshot would be removed by a clock that may be wrong.
    pub fn is_doubt(&self) -> bool {
        matches!(self, Verdict::Doubt(_))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Keep(KeepReason::Last) => f.write_str("keep-last"),
            Verdict::Keep(KeepReason::Period { option, period }) => {
                write!(f, "keep-{option}: newest of {period}")
            }
            Verdict::Keep(KeepReason::Within) => f.write_str("keep-within"),
            Verdict::Keep(KeepReason::Tag(tag)) => write!(f, "keep-tag: {tag}"),
            Verdict::Keep(KeepReason::Verified) => f.write_str("the newest verified snapshot"),
            Verdict::Keep(KeepReason::Held) => f.write_str("held"),
            Verdict::Keep(KeepReason::Misdated(misdated)) => {
                write!(f, "{misdated}; no policy removes it, `copal forget` with its id does")
            }
            Verdict::Doubt(ClockDoubt::Held) => {
                f.write_str("held, unless the clock is right (--accept-clock)")
            }
            Verdict::Doubt(ClockDoubt::Within) => {
                f.write_str("keep-within, unless the clock is right (--accept-clock)")
            }
            Verdict::Remove(RemoveReason::PassedOver { option, period }) => {
                write!(f, "a newer snapshot of {period} is kept (keep-{option})")
            }
            Verdict::Remove(RemoveReason::NotCovered) => f.write_str("older than every option reaches"),
        }
    }
}

/// Judges the snapshots of one VM, all with possible times; the result has the order of `snapshots`. Periods
/// are in the time zone `zone`; holds end by `now_ms`.
pub fn judge(policy: &Policy, snapshots: &[Candidate], now_ms: u64, zone: &TimeZone) -> Vec<Verdict> {
    let mut newest_first: Vec<usize> = (0..snapshots.len()).collect();
    newest_first.sort_by_key(|at| std::cmp::Reverse((snapshots[*at].created_ms, *at)));
    let times: Vec<Zoned> = snapshots.iter().map(|s| local_time(s.created_ms, zone)).collect();
    let mut marks: Vec<Option<Verdict>> = vec![None; snapshots.len()];

    for at in newest_first.iter().take(policy.last as usize) {
        marks[*at] = Some(Verdict::Keep(KeepReason::Last));
    }
    type PeriodOf = fn(&Zoned) -> String;
    let options: [(&'static str, u32, PeriodOf); 5] = [
        ("hourly", policy.hourly, |t| t.strftime("%Y-%m-%d %Hh").to_string()),
        ("daily", policy.daily, |t| t.strftime("%Y-%m-%d").to_string()),
        ("weekly", policy.weekly, |t| t.strftime("%G-W%V").to_string()),
        ("monthly", policy.monthly, |t| t.strftime("%Y-%m").to_string()),
        ("yearly", policy.yearly, |t| t.strftime("%Y").to_string()),
    ];
    for (option, count, period_of) in options {
        keep_periods(option, count, &newest_first, &mut marks, |at| period_of(&times[at]));
    }
    keep_on_top(policy, snapshots, now_ms, &newest_first, &mut marks);
    marks.into_iter().map(|mark| mark.unwrap_or(Verdict::Remove(RemoveReason::NotCovered))).collect()
}

/// Applies one option: keeps the newest of each of `count` periods that no earlier option covers.
fn keep_periods(
    option: &'static str,
    count: u32,
    newest_first: &[usize],
    marks: &mut [Option<Verdict>],
    period_of: impl Fn(usize) -> String,
) {
    if count == 0 {
        return;
    }
    let kept = newest_first.iter().filter(|at| marks[**at].as_ref().is_some_and(Verdict::is_keep));
    let covered: HashSet<String> = kept.map(|at| period_of(*at)).collect();
    let mut chosen = HashSet::new();
    for at in newest_first {
        if marks[*at].is_some() {
            continue;
        }
        let period = period_of(*at);
        if covered.contains(&period) {
            continue;
        }
        if chosen.contains(&period) {
            marks[*at] = Some(Verdict::Remove(RemoveReason::PassedOver { option, period }));
            continue;
        }
        if chosen.len() >= count as usize {
            break;
        }
        chosen.insert(period.clone());
        marks[*at] = Some(Verdict::Keep(KeepReason::Period { option, period }));
    }
}

/// Keeps snapshots by `within`, tags, holds, and the newest verified one.
fn keep_on_top(
    policy: &Policy,
    snapshots: &[Candidate],
    now_ms: u64,
    newest_first: &[usize],
    marks: &mut [Option<Verdict>],
) {
    let newest_ms = newest_first.first().map_or(0, |at| snapshots[*at].created_ms);
    let verified = newest_first.iter().find(|at| snapshots[**at].is_verified).copied();
    for (at, (mark, snapshot)) in marks.iter_mut().zip(snapshots).enumerate() {
        if mark.as_ref().is_some_and(Verdict::is_keep) {
            continue;
        }
        let age_ms = i64::try_from(newest_ms - snapshot.created_ms).unwrap_or(i64::MAX);
        if policy.within.is_some_and(|within| SignedDuration::from_millis(age_ms) <= within) {
            *mark = Some(Verdict::Keep(KeepReason::Within));
        } else if let Some(tag) = policy.tags.iter().find(|tag| snapshot.tags.contains(tag)) {
            *mark = Some(Verdict::Keep(KeepReason::Tag(tag.clone())));
        } else if snapshot.held_until_ms > now_ms {
            *mark = Some(Verdict::Keep(KeepReason::Held));
        } else if verified == Some(at) {
            *mark = Some(Verdict::Keep(KeepReason::Verified));
        }
    }
}

/// The local time; a time beyond the calendar counts as its last moment.
fn local_time(created_ms: u64, zone: &TimeZone) -> Zoned {
    let timestamp = i64::try_from(created_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    timestamp.unwrap_or(Timestamp::MAX).to_zoned(zone.clone())
}

/// Parses `1y2m3w4d5h`, or some of these units in this order; months are 30 days and years 365.
///
/// # Errors
/// The reason, as a sentence.
pub fn parse_within(text: &str) -> Result<SignedDuration, String> {
    let wrong = || format!("{text:?} is not a duration like 30d or 1y6m, with units y, m, w, d, h");
    let units = [('y', 365 * 24), ('m', 30 * 24), ('w', 7 * 24), ('d', 24), ('h', 1)];
    let (mut hours, mut digits, mut next_unit) = (0i64, String::new(), 0);
    for letter in text.chars() {
        if letter.is_ascii_digit() {
            digits.push(letter);
            continue;
        }
        let unit = units.iter().position(|(name, _)| *name == letter).ok_or_else(wrong)?;
        let count: i64 = digits.parse().map_err(|_| wrong())?;
        if unit < next_unit {
            return Err(wrong());
        }
        let part = count.checked_mul(units[unit].1).ok_or_else(wrong)?;
        hours = hours.checked_add(part).ok_or_else(wrong)?;
        digits.clear();
        next_unit = unit + 1;
    }
    if !digits.is_empty() || next_unit == 0 {
        return Err(wrong());
    }
    hours.checked_mul(3600).map(SignedDuration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests;
