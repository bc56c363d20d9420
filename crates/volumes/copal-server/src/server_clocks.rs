//! How the master that leads measures the clocks of data servers against its ruler.
//!
//! A server measures its own clock by the answer to each heartbeat, and tells the result with the next one.
//! The first heartbeat of a term has no result yet. It may have waited for a master that was frozen or not
//! there, and then its clock seems late. A clock that only seems late by such a wait is not judged.
//!
//! Design: docs/design/cluster.md#rules VOL-42
//! Not here: how a server measures (`own_clock`), the median of all clocks (`copal-master`).

use copal_proto::messages;
use std::time::Duration;

/// A question that took longer measures no clock.
const MOST: Duration = Duration::from_secs(2);
/// No heartbeat is under way for so long, ms.
const MOST_LATE_MS: i64 = 60_000;

/// How far the clock of a server is ahead of the ruler, ms, by a heartbeat that arrives in `term`; `None`:
/// the heartbeat does not tell. `reference_ms`: how far the reference is ahead of the ruler.
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
    let may_be_late = (0..=MOST_LATE_MS).contains(&behind_ms);
    (!may_be_late).then_some(ahead_ms)
}

/// How far a clock is ahead of the ruler, ms, that was read while a question was under way; `None`: that took
/// too long. `asked_ms`: the ruler when it was asked.
pub(crate) fn of_answer(clock_ms: u64, asked_ms: u64, took: Duration) -> Option<i64> {
    let middle_ms = asked_ms.saturating_add(took.as_millis() as u64 / 2);
    (clock_ms > 0 && took <= MOST).then(|| ahead_of(clock_ms, middle_ms))
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

    /// Symptom: when another master began to lead, or one that was frozen went on, the cluster's clock went
    /// back by seconds, and forward again a second later; each was an event.
    /// Cause: the first heartbeats of a term had waited for the master, and their clocks were read as if they
    /// had just been sent.
    /// Fix: a clock that a wait may explain is not judged before the server has measured it.
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
        assert_eq!(ahead(0), None, "a server of before tells no clock");
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
