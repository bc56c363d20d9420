//! Reads of many ranges of a file: as few calls as their limits allow.
//!
//! Invariants
//! - All ranges are of one file: the one that the name has when the read begins.
//! - A range that is damaged on one replica is read from another.
//! - A server of an older release, which does not know the call, is asked range by range.

use copal_proto::{CHAIN_BYTES, RANGES_MAX};
use std::ops::Range;

/// Most bytes of one call.
pub(super) const CALL_BYTES: u64 = CHAIN_BYTES as u64;

/// Ranges of one call: numbers and bytes.
pub(super) struct RangeCall {
    pub(super) numbers: Vec<usize>,
    pub(super) ranges: Vec<Range<u64>>,
}

/// Divides ranges of a file of `size` bytes into calls, in the order of their places. Empty ranges, also those
/// behind the end, are in none.
pub(super) fn calls(ranges: &[Range<u64>], size: u64) -> Vec<RangeCall> {
    let inside = |range: &Range<u64>| range.start.min(size)..range.end.min(size);
    let mut order: Vec<usize> = (0..ranges.len()).filter(|&n| !inside(&ranges[n]).is_empty()).collect();
    order.sort_by_key(|&number| ranges[number].start);
    let mut calls: Vec<RangeCall> = Vec::new();
    let mut bytes = 0;
    for number in order {
        let range = inside(&ranges[number]);
        let len = range.end - range.start;
        match calls.last_mut() {
            Some(call) if bytes + len <= CALL_BYTES && call.numbers.len() < RANGES_MAX => {
                bytes += len;
                call.numbers.push(number);
                call.ranges.push(range);
            }
            _ => {
                bytes = len;
                calls.push(RangeCall { numbers: vec![number], ranges: vec![range] });
            }
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_keep_to_their_limits_and_hold_each_range_once() {
        let mut ranges: Vec<Range<u64>> = (0..3000).rev().map(|n| n * 100..n * 100 + 50).collect();
        let reversed = Range { start: 9, end: 3 };
        ranges.extend([0..0, reversed, 1 << 40..u64::MAX, 0..3 << 20, 0..3 << 20, 5..u64::MAX]);
        let size = 20 << 20;
        let calls = calls(&ranges, size);
        let mut seen = vec![0; ranges.len()];
        for call in &calls {
            let bytes: u64 = call.ranges.iter().map(|range| range.end - range.start).sum();
            assert!(call.ranges.len() <= RANGES_MAX);
            assert!(bytes <= CALL_BYTES || call.ranges.len() == 1);
            for (&number, range) in call.numbers.iter().zip(&call.ranges) {
                seen[number] += 1;
                assert_eq!(*range, ranges[number].start..ranges[number].end.min(size));
            }
        }
        let expected = [vec![1; 3000], vec![0, 0, 0, 1, 1, 1]].concat();
        assert_eq!(seen, expected);
        assert!(calls.len() <= 9, "{} calls", calls.len());
        assert!(super::calls(&[], 10).is_empty());
    }
}
