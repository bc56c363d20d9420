//! Measurement of data servers' clocks against the ruler of the leading master.
//!
//! A server measures its own clock by the reply to each heartbeat, and reports the result with the next one.
//! The first heartbeat of a term has no result yet, and may have waited for a frozen or absent master. Its
//! clock then seems late. A clock that seems late by no more than such a wait is not judged.
//!
//! Design: docs/design/cluster.md#rules VOL-42
//! Not here: how a server measures (`own_clock`), the median of all clocks (`copal-master`).

use copal_proto::messages;
use std::time::Duration;

/// Longest request that measures a clock.
const MAX_ROUND_TRIP: Duration = Duration::from_secs(2);
/// Longest time that a heartbeat can wait, ms.
const MAX_LATE_MS: i64 = 60_000;

/// Lead of a server's clock over the ruler, ms, by a heartbeat that arrives in `term`; `None`: the heartbeat
/// does not determine it. `reference_ms`: lead of the reference over the ruler.
pub(crate) fn of_heartbeat(
    beat: &messages::Heartbeat,
    term: u64,
    ruler_ms: u64,
    reference_ms: i64,
) -> Option<i64> {
    if beat.clock_ms == 0 {
        return None;
    }
    if beat.clock_term == term {
        return Some(beat.clock_ahead_ms);
    }
    let ahead_ms = ahead_of(beat.clock_ms, ruler_ms);
    let behind_ms = reference_ms.saturating_sub(ahead_ms);
    let may_be_late = (0..=MAX_LATE_MS).contains(&behind_ms);
    (!may_be_late).then_some(ahead_ms)
}

/// Lead over the ruler, ms, of a clock that was read during a request; `None`: the request took too long.
/// `asked_ms`: the ruler at its begin.
pub(crate) fn of_answer(clock_ms: u64, asked_ms: u64, took: Duration) -> Option<i64> {
    let middle_ms = asked_ms.saturating_add(took.as_millis() as u64 / 2);
    (clock_ms > 0 && took <= MAX_ROUND_TRIP).then(|| ahead_of(clock_ms, middle_ms))
}

fn ahead_of(clock_ms: u64, time_ms: u64) -> i64 {
    i64::try_from(i128::from(clock_ms) - i128::from(time_ms)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(clock_ms: u64, measured: Option<(u64, i64)>) -> messages::Heartbeat {
        let (clock_term, clock_ahead_ms) = measured.unwrap_or_default();
        messages::Heartbeat { clock_ms, clock_term, clock_ahead_ms, ..messages::Heartbeat::default() }
    }

    /// Symptom: after a change of leader, or when a frozen one went on, the cluster's clock went back by
    /// seconds, and forward again a second later; each was an event.
    /// Cause: the first heartbeats of a term had waited for the master, and their clocks were read as if just
    /// sent.
    /// Fix: a clock that such a wait explains is not judged before the server has measured it.
    #[test]
    fn a_heartbeat_that_waited_for_the_master_does_not_set_a_clock_back() {
        let ruler_ms = 1_000_000;
        for (reference_ms, late_ms) in [(0, 0), (0, 3_000), (700, 14_000), (-90_000, 60_000)] {
            let shown_ms = ruler_ms + reference_ms - late_ms;
            let beat = beat(shown_ms as u64, None);
            assert_eq!(of_heartbeat(&beat, 7, ruler_ms as u64, reference_ms), None);
        }
    }

    #[test]
    fn a_clock_that_no_wait_explains_counts_at_once() {
        let ahead = |shown_ms| of_heartbeat(&beat(shown_ms, None), 7, 1_000_000, 200);
        assert_eq!(ahead(1_090_000), Some(90_000));
        assert_eq!(ahead(1_000_201), Some(201));
        assert_eq!(ahead(910_000), Some(-90_000));
        assert_eq!(ahead(u64::MAX), Some(i64::MAX));
        assert_eq!(ahead(0), None, "an earlier release reports no clock");
    }

    #[test]
    fn a_measurement_of_this_term_counts_and_one_of_another_does_not() {
        let measured = |term| beat(1_000_000, Some((term, -3_500)));
        assert_eq!(of_heartbeat(&measured(7), 7, 1_000_000, 0), Some(-3_500));
        assert_eq!(of_heartbeat(&measured(6), 7, 1_000_000, 0), None);
    }

    #[test]
    fn an_answer_is_read_at_the_middle_of_its_question() {
        let second = Duration::from_secs(1);
        assert_eq!(of_answer(1_000_500, 1_000_000, second), Some(0));
        assert_eq!(of_answer(1_090_500, 1_000_000, second), Some(90_000));
        assert_eq!(of_answer(1_000_500, 1_000_000, 3 * second), None);
        assert_eq!(of_answer(0, 1_000_000, second), None);
    }
}
