//! Deadline of a task: its calls get at most the time that is left, and send that time to the server.
//!
//! A server works for a call until the caller's deadline, and so do the servers that it calls. Work that must be
//! completed although its caller has given up runs under [`without_deadline`].
//!
//! Rule: VOL-30, docs/design/cluster.md
//! Invariant: no call takes longer than [`MAX_CALL_TIME`].

use crate::net::machine;
use std::{
    future::Future,
    time::{Duration, Instant},
};

/// Longest time of a call.
pub const MAX_CALL_TIME: Duration = Duration::from_secs(600);

tokio::task_local! {
    static END: Option<Instant>;
}

/// Deadline of the current task; `None`: no caller waits for it.
pub fn current_deadline() -> Option<Instant> {
    END.try_with(|end| *end).unwrap_or(None)
}

/// Whether the deadline of the current task has passed.
pub fn deadline_passed() -> bool {
    current_deadline().is_some_and(|end| machine::now() >= end)
}

/// Runs work with the deadline `end`, or with that of the current task if it is earlier.
pub async fn with_deadline<T>(end: Instant, work: impl Future<Output = T>) -> T {
    let end = current_deadline().map_or(end, |outer| outer.min(end));
    END.scope(Some(end), work).await
}

/// Runs work that continues after its caller has given up.
pub async fn without_deadline<T>(work: impl Future<Output = T>) -> T {
    END.scope(None, work).await
}

/// Time of a call that may take `wait`: bounded by the current deadline and by [`MAX_CALL_TIME`].
pub(crate) fn time_left(wait: Duration) -> Duration {
    let left = current_deadline().map(|end| end.saturating_duration_since(machine::now()));
    left.map_or(wait, |left| left.min(wait)).min(MAX_CALL_TIME)
}

/// Time left in the unit of a frame: milliseconds, rounded up.
pub(crate) fn in_ms(left: Duration) -> u32 {
    u32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn an_inner_deadline_is_not_later_than_the_outer_one() {
        assert_eq!(time_left(HOUR), MAX_CALL_TIME);
        let soon = machine::now() + Duration::from_secs(5);
        let (left, inner) = with_deadline(soon, async {
            let inner = with_deadline(soon + HOUR, async { current_deadline() }).await;
            (time_left(HOUR), inner)
        })
        .await;
        assert!(left <= Duration::from_secs(5), "{left:?}");
        assert_eq!(inner, Some(soon));
        let rest = with_deadline(soon, without_deadline(async { time_left(Duration::from_secs(9)) })).await;
        assert_eq!(rest, Duration::from_secs(9));
    }

    #[test]
    fn a_rest_of_time_is_rounded_up() {
        assert_eq!(in_ms(Duration::from_micros(1)), 1);
        assert_eq!(in_ms(Duration::from_millis(7)), 7);
        assert_eq!(in_ms(Duration::ZERO), 0);
        assert_eq!(in_ms(Duration::MAX), u32::MAX);
    }
}
