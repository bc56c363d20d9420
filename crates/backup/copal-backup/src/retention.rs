//! Which snapshots a policy keeps: pure rules over times, with one reason per snapshot.
//!
//! The semantics of Proxmox Backup Server: options apply in the order last, hourly, daily, weekly,
//! monthly, yearly; each walks from the newest snapshot back and keeps the newest of each of its
//! periods until it has kept as many as asked; periods without a snapshot do not count; a period
//! that an earlier option already kept a snapshot of is covered and not counted again; a snapshot
//! that a period passed over is gone for the later options. Weeks are ISO weeks.
//! `within` and tags come on top: what they name is kept whatever the others say. So do holds, and the
//! newest snapshot that was verified.
//!
//! Invariants
//! - The order of the input does not matter; equal times are told apart by position.
//! - A doubtful snapshot pushes no good one out: the two are judged apart.
//! - A policy that keeps nothing is no policy: [`Policy::is_empty`] is for the caller to refuse.
//!
//! Not here: whose snapshots (one group is one VM), removing anything, times that cannot be right (`clock`).

mod clock;

pub use clock::{Believed, Misdated, PAUSE_MS, judge_by_clock, misdated};
use jiff::{SignedDuration, Timestamp, Zoned, tz::TimeZone};
use std::{collections::HashSet, fmt};

/// What to keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The newest so many.
    pub last: u32,
    /// The newest of each of so many hours.
    pub hourly: u32,
    /// The newest of each of so many days.
    pub daily: u32,
    /// The newest of each of so many ISO weeks.
    pub weekly: u32,
    /// The newest of each of so many months.
    pub monthly: u32,
    /// The newest of each of so many years.
    pub yearly: u32,
    /// All that are at most this much older than the newest.
    pub within: Option<SignedDuration>,
    /// All that carry one of these tags.
    pub tags: Vec<String>,
}

impl Policy {
    /// True when the policy would keep nothing.
    pub fn is_empty(&self) -> bool {
        *self == Policy::default()
    }
}

/// What a policy looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// When the snapshot became visible, ms since 1970.
    pub created_ms: u64,
    /// Its tags.
    pub tags: Vec<String>,
    /// A verify found nothing wrong with it.
    pub is_verified: bool,
    /// A warning stands against it that nobody has accepted.
    pub is_doubtful: bool,
    /// It may not be forgotten before this time, in ms since 1970; 0: it is not held.
    pub held_until_ms: u64,
}

/// Why a snapshot stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keep {
    /// One of the newest.
    Last,
    /// The newest of its period; the period is written as people write it: `2026-W07`.
    Period {
        /// `hourly`, `daily`, `weekly`, `monthly` or `yearly`.
        option: &'static str,
        /// Which hour, day, week, month or year.
        period: String,
    },
    /// Not much older than the newest.
    Within,
    /// It carries a tag of the policy.
    Tag(String),
    /// The newest that was verified.
    Verified,
    /// It is held.
    Held,
    /// Its time cannot be, so it stands for no period.
    Misdated(Misdated),
}

/// Why a snapshot would go if the clock is right, which is in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Its hold would have ended.
    Held,
    /// It would be older than `within`.
    Within,
}

/// Why a snapshot goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remove {
    /// A newer snapshot of the same period stays.
    PassedOver {
        /// The option that passed over it.
        option: &'static str,
        /// The period.
        period: String,
    },
    /// No option reaches it.
    NotCovered,
}

/// The verdict on one snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It stays.
    Keep(Keep),
    /// It goes.
    Remove(Remove),
    /// It would go by a clock that may be wrong: for the caller to refuse.
    Doubt(Doubt),
}

impl Verdict {
    /// True when the snapshot stays.
    pub fn is_keep(&self) -> bool {
        matches!(self, Verdict::Keep(_))
    }
    /// True when the snapshot goes.
    pub fn is_remove(&self) -> bool {
        matches!(self, Verdict::Remove(_))
    }
    /// True when it would go by a clock that may be wrong.
    pub fn is_doubt(&self) -> bool {
        matches!(self, Verdict::Doubt(_))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Keep(Keep::Last) => f.write_str("keep-last"),
            Verdict::Keep(Keep::Period { option, period }) => {
                write!(f, "keep-{option}: newest of {period}")
            }
            Verdict::Keep(Keep::Within) => f.write_str("keep-within"),
            Verdict::Keep(Keep::Tag(tag)) => write!(f, "keep-tag: {tag}"),
            Verdict::Keep(Keep::Verified) => f.write_str("the newest that was verified"),
            Verdict::Keep(Keep::Held) => f.write_str("held"),
            Verdict::Keep(Keep::Misdated(misdated)) => {
                write!(f, "{misdated}; no policy judges it, `copal forget` by its id does")
            }
            Verdict::Doubt(Doubt::Held) => f.write_str("held, unless the clock is right (--accept-clock)"),
            Verdict::Doubt(Doubt::Within) => {
                f.write_str("keep-within, unless the clock is right (--accept-clock)")
            }
            Verdict::Remove(Remove::PassedOver { option, period }) => {
                write!(f, "a newer snapshot of {period} is kept (keep-{option})")
            }
            Verdict::Remove(Remove::NotCovered) => f.write_str("older than every option reaches"),
        }
    }
}

/// Judges the snapshots of one VM, all of whose times are right; the result has the order of `snapshots`.
/// Periods are those of `zone`; holds end by `now_ms`.
pub fn judge(policy: &Policy, snapshots: &[Candidate], now_ms: u64, zone: &TimeZone) -> Vec<Verdict> {
    let mut newest_first: Vec<usize> = (0..snapshots.len()).collect();
    newest_first.sort_by_key(|at| std::cmp::Reverse((snapshots[*at].created_ms, *at)));
    let times: Vec<Zoned> = snapshots.iter().map(|s| local_time(s.created_ms, zone)).collect();
    let mut marks: Vec<Option<Verdict>> = vec![None; snapshots.len()];

    for at in newest_first.iter().take(policy.last as usize) {
        marks[*at] = Some(Verdict::Keep(Keep::Last));
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
    marks.into_iter().map(|mark| mark.unwrap_or(Verdict::Remove(Remove::NotCovered))).collect()
}

/// One option: the newest of each of `count` periods that no earlier option covers.
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
            marks[*at] = Some(Verdict::Remove(Remove::PassedOver { option, period }));
            continue;
        }
        if chosen.len() >= count as usize {
            break;
        }
        chosen.insert(period.clone());
        marks[*at] = Some(Verdict::Keep(Keep::Period { option, period }));
    }
}

/// `within`, tags, holds and the newest verified one: kept whatever the periods said.
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
            *mark = Some(Verdict::Keep(Keep::Within));
        } else if let Some(tag) = policy.tags.iter().find(|tag| snapshot.tags.contains(tag)) {
            *mark = Some(Verdict::Keep(Keep::Tag(tag.clone())));
        } else if snapshot.held_until_ms > now_ms {
            *mark = Some(Verdict::Keep(Keep::Held));
        } else if verified == Some(at) {
            *mark = Some(Verdict::Keep(Keep::Verified));
        }
    }
}

/// A time past what a calendar can say counts as the last one it can.
fn local_time(created_ms: u64, zone: &TimeZone) -> Zoned {
    let timestamp = i64::try_from(created_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    timestamp.unwrap_or(Timestamp::MAX).to_zoned(zone.clone())
}

/// Parses `1y2m3w4d5h`, any part of it, in this order; months are 30 days and years 365.
///
/// # Errors
/// What is wrong, as a sentence.
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
