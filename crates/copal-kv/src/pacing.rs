//! What a written byte pays so that merges keep up: nothing without debt, more as debt grows, no steps.
//!
//! A byte pays `(debt / limit)^2` of the merge time that a user byte has cost so far: a quarter of it at half
//! the limit, all of it at the limit, where writers go exactly as fast as the merges.
//! Invariant: debt is bytes still to be written, not a count of files.

use std::time::Duration;

/// Longest single payment, so that one large batch does not wait for ever on an estimate.
const LONGEST: Duration = Duration::from_millis(100);
/// Payments below this are not worth a sleep; they are remembered by the debt itself.
const SHORTEST: Duration = Duration::from_micros(50);

/// Measured so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) merge_nanos: u64,
    pub(crate) flushed_bytes: u64,
}

/// The delay for writing `bytes` at `debt`; `None`: go on.
pub(crate) fn price(bytes: u64, debt: u64, limit: u64, measured: Measured) -> Option<Duration> {
    if debt == 0 || measured.flushed_bytes == 0 {
        return None;
    }
    let share = (debt as f64 / limit.max(1) as f64).min(4.0);
    let nanos_per_user_byte = measured.merge_nanos as f64 / measured.flushed_bytes as f64;
    let nanos = bytes as f64 * share * share * nanos_per_user_byte;
    let delay = Duration::from_nanos(nanos as u64).min(LONGEST);
    (delay >= SHORTEST).then_some(delay)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: Measured = Measured {
        merge_nanos: 1_000_000,
        flushed_bytes: 1000,
    };

    #[test]
    fn the_price_grows_with_the_square_of_the_debt() {
        let at = |debt| price(1000, debt, 1000, MEASURED);
        assert_eq!(at(0), None);
        assert_eq!(at(1000), Some(Duration::from_millis(1)));
        assert_eq!(at(500), Some(Duration::from_micros(250)));
        assert_eq!(at(1), None);
        assert_eq!(price(1 << 40, 1000, 1000, MEASURED), Some(LONGEST));
    }
}
