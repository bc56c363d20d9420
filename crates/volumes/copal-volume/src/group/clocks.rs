//! One clock for a cluster, the reference: it judges operations and seals time buckets, independent of single
//! clocks.
//!
//! The leader and the data servers each report the time of their clock; the reference is the median of these
//! reports. A minority of wrong clocks, the leader's included, does not move it. Every server follows the
//! reference, advanced by a clock that never jumps.
//!
//! Design: docs/design/cluster.md#rules VOL-42, VOL-43
//! Invariants
//! - The reference lies between the clocks of two reporters: one clock alone never sets it, unless it is the
//!   only one.
//! - Of an even number of clocks, the reference is the one of the middle two that agrees with the previous
//!   reference, at first the earlier one. A seal that is too late only delays; one that is too early refuses
//!   operations.
//!
//! Not here: measurement of clocks (`copal-server`), servers excluded from writes (`copal-master`).

use super::seal::Bucket;

/// A clock farther than this from the reference is wrong, ms.
pub const MAX_CLOCK_OFF_MS: u64 = 5_000;
/// A clock that was wrong is right again within this distance of the reference, ms.
pub const CLOCK_RIGHT_MS: u64 = 2_500;
/// The reference moves only when the median is farther from it than this, ms: measurements vary a little.
pub const CLOCK_STEP_MS: u64 = 1_000;

/// Number of buckets, from that of the reference on, that stay sealed when a seal in the future is ignored.
/// Every operation that a right clock has drawn so far lies below them, since members accept none that is
/// more than a bucket ahead.
const KEPT_AHEAD: u64 = 2;
/// A seal that many buckets above the due one comes from a wrong clock, not from clocks that differ a little.
const SEAL_SLACK: u64 = super::SEAL_LAG_MS / super::BUCKET_MS + KEPT_AHEAD;

/// Distance of the reference from the ruler against which the clocks were measured, ms; `None`: no clock was
/// reported. `present`: the previous distance, if known.
pub fn reference_of(clocks_ms: &[i64], present: Option<i64>) -> Option<i64> {
    let mut sorted = clocks_ms.to_vec();
    sorted.sort_unstable();
    let lower = *sorted.get(sorted.len().checked_sub(1)? / 2)?;
    let upper = *sorted.get(sorted.len() / 2)?;
    match present {
        Some(present) if present.abs_diff(upper) < present.abs_diff(lower) => Some(upper),
        _ => Some(lower),
    }
}

/// Whether a clock this far from the reference is wrong. `was_wrong`: the previous result for it.
pub fn is_clock_wrong(off_ms: i64, was_wrong: bool) -> bool {
    let limit_ms = match was_wrong {
        true => CLOCK_RIGHT_MS,
        false => MAX_CLOCK_OFF_MS,
    };
    off_ms.unsigned_abs() > limit_ms
}

/// Whether a seal lies in the future of the reference: a wrong clock made it.
pub fn is_seal_in_future(below: Bucket, reference_ms: u64) -> bool {
    below.0 > Bucket::first_open(reference_ms).0.saturating_add(SEAL_SLACK)
}

/// Limits a seal, or a stable point, that lies in the future of the reference: the result covers everything up
/// to now, and no operation that a right clock has yet to draw.
#[must_use]
pub fn without_future(below: Bucket, reference_ms: u64) -> Bucket {
    match is_seal_in_future(below, reference_ms) {
        true => Bucket((reference_ms / super::BUCKET_MS).saturating_add(KEPT_AHEAD)),
        false => below,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::MAX_OP_AHEAD_MS;
    const HOUR: i64 = 3_600_000;

    #[test]
    fn a_minority_of_wrong_clocks_does_not_move_the_reference() {
        for wrong in [-HOUR, -90_000, 90_000, 365 * 24 * HOUR] {
            assert_eq!(reference_of(&[wrong, 0, 1, 2], None), Some(if wrong < 0 { 0 } else { 1 }));
            assert_eq!(reference_of(&[0, wrong, 0], None), Some(0));
            assert_eq!(reference_of(&[0, 0, wrong, wrong, 0], None), Some(0));
        }
        assert_eq!(reference_of(&[7], None), Some(7), "there is no other clock");
        assert_eq!(reference_of(&[], Some(7)), None);
        // With two clocks it is unknown which one is right: the one counts that agrees with the previous
        // reference, else the earlier one.
        assert_eq!(reference_of(&[HOUR, 0], None), Some(0));
        assert_eq!(reference_of(&[0, -HOUR], None), Some(-HOUR));
        assert_eq!(reference_of(&[0, -HOUR], Some(3)), Some(0));
        assert_eq!(reference_of(&[0, HOUR, HOUR], Some(3)), Some(HOUR), "a majority is followed");
    }

    #[test]
    fn a_clock_near_the_limit_is_not_called_wrong_and_right_in_turn() {
        assert!(!is_clock_wrong(5_000, false) && is_clock_wrong(-5_001, false));
        assert!(is_clock_wrong(-2_501, true) && !is_clock_wrong(2_500, true));
    }

    #[test]
    fn ignoring_a_seal_opens_no_bucket_in_which_an_operation_may_lie_that_a_right_clock_drew() {
        let now_ms = 1_000_000_000;
        let due = Bucket::first_open(now_ms);
        for near in [0, 1, SEAL_SLACK] {
            let seal = Bucket(due.0 + near);
            assert_eq!(without_future(seal, now_ms), seal, "clocks differ a little");
        }
        for far in [SEAL_SLACK + 1, 360, 3_153_600] {
            let left = without_future(Bucket(due.0 + far), now_ms);
            let newest_ms = now_ms + MAX_OP_AHEAD_MS;
            assert!(left.0 > newest_ms / crate::group::BUCKET_MS);
            assert!(left.0 < due.0 + far, "what lies {far} buckets ahead stays sealed");
            assert!(!is_seal_in_future(left, now_ms), "it is ignored once");
        }
    }
}
