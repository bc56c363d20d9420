//! When the work of a task is to end: every call that it makes is given no more time than is left, and says
//! how much that is.
//!
//! A server works for a call until its caller has given up, and so does whoever it calls for that. Work that
//! began and must be brought to its end, whoever asked for it, says so ([`without_deadline`]). Rule: VOL-30,
//! docs/design/cluster.md.
//! Invariant: nobody is worked for longer than [`MAX_CALL_TIME`].

use crate::net::machine;
use std::{
    future::Future,
    time::{Duration, Instant},
};

/// The most that a call may take.
pub const MAX_CALL_TIME: Duration = Duration::from_secs(600);

tokio::task_local! {
    static END: Option<Instant>;
}

/// When the task's work is to end; `None`: nobody waits for it.
pub fn current_deadline() -> Option<Instant> {
    END.try_with(|end| *end).unwrap_or(None)
}

/// Whether nobody waits any more for what the task does.
pub fn deadline_passed() -> bool {
    current_deadline().is_some_and(|end| machine::now() >= end)
}

/// Runs work that is to end at `end`, or when what it is part of is to end.
pub async fn with_deadline<T>(end: Instant, work: impl Future<Output = T>) -> T {
    let end = current_deadline().map_or(end, |outer| outer.min(end));
    END.scope(Some(end), work).await
}

/// Runs work that goes on although its caller has given up.
pub async fn without_deadline<T>(work: impl Future<Output = T>) -> T {
    END.scope(None, work).await
}

/// What a call that may take `wait` is given.
pub(crate) fn given(wait: Duration) -> Duration {
    let left = current_deadline().map(|end| end.saturating_duration_since(machine::now()));
    left.map_or(wait, |left| left.min(wait)).min(MAX_CALL_TIME)
}

/// Time that is left as a frame says it: what is less than a millisecond is one.
pub(crate) fn in_ms(left: Duration) -> u32 {
    u32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn what_is_part_of_work_ends_with_it_and_nothing_lasts_for_hours() {
        assert_eq!(given(HOUR), MAX_CALL_TIME);
        let soon = machine::now() + Duration::from_secs(5);
        let (left, inner) = with_deadline(soon, async {
            let inner = with_deadline(soon + HOUR, async { current_deadline() }).await;
            (given(HOUR), inner)
        })
        .await;
        assert!(left <= Duration::from_secs(5), "{left:?}");
        assert_eq!(inner, Some(soon));
        let rest = with_deadline(soon, without_deadline(async { given(Duration::from_secs(9)) })).await;
        assert_eq!(rest, Duration::from_secs(9));
    }

    #[test]
    fn what_is_left_is_never_said_to_be_nothing() {
        assert_eq!(in_ms(Duration::from_micros(1)), 1);
        assert_eq!(in_ms(Duration::from_millis(7)), 7);
        assert_eq!(in_ms(Duration::ZERO), 0);
        assert_eq!(in_ms(Duration::MAX), u32::MAX);
    }
}
