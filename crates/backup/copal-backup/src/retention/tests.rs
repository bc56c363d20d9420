//! Tables of cases, and properties of all policies.

use super::*;

/// After all times of these tests.
const NOW_MS: u64 = 1_800_000_000_000;

fn at(text: &str) -> Candidate {
    let time: Timestamp = format!("{text}Z").parse().unwrap();
    Candidate {
        created_ms: time.as_millisecond() as u64,
        tags: Vec::new(),
        is_verified: false,
        is_doubtful: false,
        held_until_ms: 0,
    }
}

fn kept(policy: &Policy, times: &[&str]) -> Vec<String> {
    let snapshots: Vec<Candidate> = times.iter().map(|time| at(time)).collect();
    let verdicts = judge(policy, &snapshots, NOW_MS, &TimeZone::UTC);
    let kept = times.iter().zip(&verdicts).filter(|(_, verdict)| verdict.is_keep());
    kept.map(|(time, _)| (*time).to_owned()).collect()
}

#[test]
fn each_option_keeps_the_newest_of_its_periods() {
    let none = Policy::default();
    let times = [
        "2025-12-29T03:00:00", // Monday of ISO week 2026-W01
        "2026-01-04T03:00:00", // Sunday of the same
        "2026-01-05T03:00:00",
        "2026-01-05T03:30:00",
        "2026-01-05T04:00:00",
        "2026-03-01T00:00:00",
    ];
    let cases: [(Policy, &[usize]); 10] = [
        (Policy { last: 2, ..none.clone() }, &[4, 5]),
        (Policy { last: 99, ..none.clone() }, &[0, 1, 2, 3, 4, 5]),
        (Policy { hourly: 3, ..none.clone() }, &[3, 4, 5]),
        // Days without snapshots do not count.
        (Policy { daily: 2, ..none.clone() }, &[4, 5]),
        (Policy { daily: 4, ..none.clone() }, &[0, 1, 4, 5]),
        (Policy { weekly: 9, ..none.clone() }, &[1, 4, 5]),
        (Policy { monthly: 9, ..none.clone() }, &[0, 4, 5]),
        (Policy { yearly: 9, ..none.clone() }, &[0, 5]),
        // The day that keep-last covers is not counted again.
        (Policy { last: 1, daily: 1, ..none.clone() }, &[4, 5]),
        (Policy { within: Some(SignedDuration::from_hours(0)), ..none.clone() }, &[5]),
    ];
    for (policy, want) in cases {
        let want: Vec<String> = want.iter().map(|at| times[*at].to_owned()).collect();
        assert_eq!(kept(&policy, &times), want, "{policy:?}");
    }
}

#[test]
fn a_snapshot_that_a_period_passed_over_is_not_kept_by_later_options() {
    // Daily keeps the 22:00 of Sunday and passes over the 10:00; weekly then reaches back past it.
    let times = ["2026-01-03T10:00:00", "2026-01-04T10:00:00", "2026-01-04T22:00:00"];
    let policy = Policy { daily: 1, weekly: 1, ..Policy::default() };
    assert_eq!(kept(&policy, &times), [times[2]]);
    let snapshots: Vec<Candidate> = times.iter().map(|time| at(time)).collect();
    let words: Vec<String> =
        judge(&policy, &snapshots, NOW_MS, &TimeZone::UTC).iter().map(ToString::to_string).collect();
    assert_eq!(
        words,
        [
            "older than every option reaches",
            "a newer snapshot of 2026-01-04 is kept (keep-daily)",
            "keep-daily: newest of 2026-01-04",
        ]
    );
}

#[test]
fn within_and_tags_come_on_top() {
    let times = ["2026-01-01T00:00:00", "2026-01-02T00:00:00", "2026-01-02T23:00:00", "2026-01-03T00:00:00"];
    let policy = Policy { daily: 1, within: Some(parse_within("1d").unwrap()), ..Policy::default() };
    assert_eq!(kept(&policy, &times), times[1..]);

    let mut snapshots: Vec<Candidate> = times.iter().map(|time| at(time)).collect();
    snapshots[0].tags = vec!["before-upgrade".into()];
    let policy = Policy { last: 1, tags: vec!["before-upgrade".into()], ..Policy::default() };
    let verdicts = judge(&policy, &snapshots, NOW_MS, &TimeZone::UTC);
    assert_eq!(verdicts[0].to_string(), "keep-tag: before-upgrade");
    assert_eq!(verdicts.iter().filter(|v| v.is_keep()).count(), 2);
}

#[test]
fn periods_are_those_of_the_time_zone() {
    // In UTC these are two days, in Berlin one.
    let snapshots = [at("2026-07-01T22:30:00"), at("2026-07-02T00:30:00")];
    let policy = Policy { daily: 2, ..Policy::default() };
    let count =
        |zone: &TimeZone| judge(&policy, &snapshots, NOW_MS, zone).iter().filter(|v| v.is_keep()).count();
    assert_eq!(count(&TimeZone::UTC), 2);
    assert_eq!(count(&TimeZone::fixed(jiff::tz::offset(2))), 1);
}

#[test]
fn durations_are_parsed() {
    for (text, hours) in [
        ("5h", 5),
        ("3d", 72),
        ("2w", 336),
        ("1m", 720),
        ("1y", 8760),
        ("1y2m3w4d5h", 8760 + 1440 + 504 + 96 + 5),
    ] {
        assert_eq!(parse_within(text), Ok(SignedDuration::from_hours(hours)), "{text}");
    }
    for text in ["", "5", "d", "5x", "1d1y", "1d2d", "99999999999999999y", "-1d", "1.5d"] {
        assert!(parse_within(text).is_err(), "{text}");
    }
}

#[test]
fn any_policy_keeps_the_newest_is_stable_and_ignores_order() {
    let mut random = copal_testkit::Random::new(7);
    for _ in 0..300 {
        let hour_ms = 3_600_000;
        let count = random.below(40) as usize + 1;
        let mut snapshots: Vec<Candidate> = (0..count)
            .map(|_| Candidate {
                created_ms: 1_700_000_000_000 + random.below(20_000) * hour_ms / 2,
                tags: Vec::new(),
                is_verified: false,
                is_doubtful: false,
                held_until_ms: 0,
            })
            .collect();
        let policy = Policy {
            last: random.below(3) as u32,
            hourly: random.below(4) as u32,
            daily: random.below(4) as u32,
            weekly: random.below(4) as u32,
            monthly: random.below(4) as u32,
            yearly: random.below(4) as u32 + 1,
            ..Policy::default()
        };
        let verdicts = judge(&policy, &snapshots, NOW_MS, &TimeZone::UTC);
        let kept: Vec<Candidate> =
            snapshots.iter().zip(&verdicts).filter(|(_, v)| v.is_keep()).map(|(s, _)| s.clone()).collect();
        let newest = snapshots.iter().map(|s| s.created_ms).max();
        assert_eq!(kept.iter().map(|s| s.created_ms).max(), newest);
        let most =
            policy.last + policy.hourly + policy.daily + policy.weekly + policy.monthly + policy.yearly;
        assert!(kept.len() <= most as usize);
        // A second run over the kept snapshots removes nothing.
        assert!(
            judge(&policy, &kept, NOW_MS, &TimeZone::UTC).iter().all(Verdict::is_keep),
            "{policy:?} {kept:?}"
        );
        // The order of the input does not matter.
        let mut times: Vec<u64> = kept.iter().map(|s| s.created_ms).collect();
        times.sort_unstable();
        snapshots.reverse();
        let verdicts = judge(&policy, &snapshots, NOW_MS, &TimeZone::UTC);
        let mut again: Vec<u64> =
            snapshots.iter().zip(&verdicts).filter(|(_, v)| v.is_keep()).map(|(s, _)| s.created_ms).collect();
        again.sort_unstable();
        assert_eq!(times, again);
    }
}

#[test]
fn held_snapshots_and_the_newest_verified_one_stay_under_any_policy() {
    let mut days: Vec<Candidate> =
        ["2026-03-01T02:00", "2026-03-02T02:00", "2026-03-03T02:00", "2026-03-04T02:00"]
            .iter()
            .map(|text| at(text))
            .collect();
    days[0].held_until_ms = NOW_MS + 1;
    days[1].is_verified = true;
    days[2].is_verified = true;
    let policy = Policy { last: 1, ..Policy::default() };
    let verdicts = judge(&policy, &days, NOW_MS, &TimeZone::UTC);
    assert_eq!(
        verdicts,
        [
            Verdict::Keep(KeepReason::Held),
            Verdict::Remove(RemoveReason::NotCovered),
            Verdict::Keep(KeepReason::Verified),
            Verdict::Keep(KeepReason::Last),
        ]
    );
}
