//! Wrong clocks, and clocks that may be wrong.

use super::*;

const DAY: u64 = 86_400_000;
const START: u64 = 1_790_000_000_000;

/// Times of these days after the start.
fn days(days: &[u64]) -> Vec<u64> {
    days.iter().map(|day| START + day * DAY).collect()
}

fn candidates(times: &[u64]) -> Vec<Candidate> {
    let candidate = |created_ms: &u64| Candidate {
        created_ms: *created_ms,
        tags: Vec::new(),
        is_verified: false,
        is_doubtful: false,
        held_until_ms: 0,
    };
    times.iter().map(candidate).collect()
}

fn kept(policy: &Policy, times: &[u64], now_ms: u64) -> Vec<usize> {
    let clock = ClockRange::new(times.to_vec(), now_ms);
    let verdicts = judge_by_clock(policy, &candidates(times), &clock, &TimeZone::UTC);
    assert_eq!(verdicts.len(), times.len());
    (0..times.len()).filter(|at| verdicts[*at].is_keep()).collect()
}

#[test]
fn a_time_that_does_not_fit_between_its_neighbours_is_misdated() {
    use Misdated::{Ahead, Behind};
    /// Days of the snapshots, the present day, the error of each.
    type Case<'a> = (&'a [u64], u64, Vec<Option<Misdated>>);
    let cases: [Case<'_>; 7] = [
        (&[0, 1, 2], 3, vec![None; 3]),
        // Seen from a clock that is right again.
        (&[0, 1, 7000, 3], 4, vec![None, None, Some(Ahead), None]),
        (&[0, 1, 7000, 7001, 4], 5, vec![None, None, Some(Ahead), Some(Ahead), None]),
        // The wrong time has come: the snapshots made later still reveal it.
        (&[0, 1, 20, 3, 4, 5], 30, vec![None, None, Some(Ahead), None, None, None]),
        (&[100, 101, 2, 103], 104, vec![None, None, Some(Behind), None]),
        // Seen from a clock that is itself behind.
        (&[100, 101, 102], 1, vec![Some(Ahead); 3]),
        (&[5, 5, 5], 5, vec![None; 3]),
    ];
    for (times, now, expected) in cases {
        assert_eq!(misdated(&days(times), START + now * DAY), expected, "{times:?} at {now}");
    }
    // A clock that is set back by minutes does not count as wrong.
    let minutes = |minutes: &[u64]| minutes.iter().map(|n| START + n * 60_000).collect::<Vec<_>>();
    assert_eq!(misdated(&minutes(&[0, 50, 20, 60]), START + 30 * 60_000), [None; 4]);
}

/// Symptom: one backup with the clock ahead gave every later snapshot that day; retention then removed the
/// good days one by one, since all were of one day. Cause: retention went by the store's order of events,
/// which never goes back after a clock that was ahead. Fix: it goes by the clock; a snapshot from the future
/// is kept and represents no period.
#[test]
fn a_clock_that_was_ahead_once_removes_no_good_day() {
    for ahead in [1, 3, 4, 20, 7000] {
        let mut times = days(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        times[3] += ahead * DAY;
        let policy = Policy { daily: 7, ..Policy::default() };
        let kept = kept(&policy, &times, START + 11 * DAY + 1);
        let newest: Vec<usize> = kept.iter().copied().filter(|at| *at >= 5).collect();
        assert_eq!(newest, [5, 6, 7, 8, 9, 10, 11], "{ahead} days ahead: {kept:?}");
    }
}

#[test]
fn a_clock_that_is_ahead_alone_removes_nothing() {
    let times = days(&[0, 1, 2, 3, 7000]);
    let now_ms = START + 7000 * DAY + 1;
    let policy = Policy { within: Some(SignedDuration::from_hours(24 * 30)), ..Policy::default() };
    let clock = ClockRange::new(times.clone(), now_ms);
    assert_eq!(clock.until_ms, times[3]);
    let verdicts = judge_by_clock(&policy, &candidates(&times), &clock, &TimeZone::UTC);
    assert_eq!(verdicts[..4], vec![Verdict::Doubt(ClockDoubt::Within); 4]);
    assert!(verdicts[4].is_keep());
    let accepted = judge_by_clock(&policy, &candidates(&times), &clock.accepted(), &TimeZone::UTC);
    assert!(accepted[..4].iter().all(|verdict| matches!(verdict, Verdict::Remove(_))));

    let mut held = candidates(&times);
    held[0].held_until_ms = START + 100 * DAY;
    let last = Policy { last: 1, ..Policy::default() };
    let verdicts = judge_by_clock(&last, &held, &clock, &TimeZone::UTC);
    assert_eq!(verdicts[0], Verdict::Doubt(ClockDoubt::Held));
    // A removal by count does not depend on the clock.
    assert!(matches!(verdicts[1], Verdict::Remove(_)));
    assert!(clock.doubt().contains("--accept-clock"));
}

#[test]
fn a_clock_is_believed_if_snapshots_confirm_it() {
    let until = |times: &[u64], now: u64| {
        let believed = ClockRange::new(days(times), START + now * DAY);
        (believed.until_ms - START) / DAY
    };
    assert_eq!(until(&[], 5), 5);
    assert_eq!(until(&[0, 1, 2], 40), 40);
    assert_eq!(until(&[0, 1, 2], 50), 2);
    // A pause, then use for as long as a pause may be.
    let used: Vec<u64> = [0, 1].into_iter().chain(100..150).collect();
    assert_eq!(until(&used, 150), 150);
    assert_eq!(until(&used[..12], 110), 1);
    // Two jumps in a row.
    assert_eq!(until(&[0, 1, 1000, 2000], 2000), 1);
    // Snapshots from the future confirm nothing.
    assert_eq!(until(&[0, 1, 9000], 3), 3);
}
