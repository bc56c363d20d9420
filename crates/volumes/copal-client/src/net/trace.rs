//! The number of an operation, drawn where it begins and sent with every call that is made for it, so that
//! lines in the logs of many servers can be put together.
//!
//! Not here: who prints it (`copal-server`, the binary).

use std::{
    cell::Cell,
    future::Future,
    sync::atomic::{AtomicU64, Ordering},
};

tokio::task_local! {
    static CURRENT: u64;
}

thread_local! {
    static LAST: Cell<u64> = const { Cell::new(0) };
}

/// A number for an operation that begins now; never 0. It tells nothing but that it is one.
fn draw() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if NEXT.load(Ordering::Relaxed) == 0 {
        // Without randomness operations of two processes may share numbers, which costs a look at who called.
        let drawn = copal_volume::random_incarnation().unwrap_or(u64::from(std::process::id()) << 32);
        let _ = NEXT.compare_exchange(0, drawn | 1, Ordering::Relaxed, Ordering::Relaxed);
    }
    NEXT.fetch_add(2, Ordering::Relaxed)
}

/// The operation that the task works for; 0: none.
pub fn current_trace() -> u64 {
    CURRENT.try_with(|trace| *trace).unwrap_or(0)
}

/// Runs what is done for an operation: calls below carry its number.
pub async fn with_trace<T>(trace: u64, work: impl Future<Output = T>) -> T {
    CURRENT.scope(trace, work).await
}

/// Runs an operation under a number of its own, unless it is part of one.
pub(crate) async fn traced<T>(work: impl Future<Output = T>) -> T {
    let trace = match current_trace() {
        0 => draw(),
        part_of => part_of,
    };
    LAST.set(trace);
    tracing::debug!(trace = %trace_text(trace), "an operation begins");
    with_trace(trace, work).await
}

/// The operation that this thread waited for last; `None`: it has waited for none.
pub fn last_trace() -> Option<u64> {
    Some(LAST.get()).filter(|trace| *trace != 0)
}

/// How the number is printed, everywhere.
pub fn trace_text(trace: u64) -> String {
    format!("{trace:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_operation_has_one_number_and_what_is_part_of_it_the_same() {
        assert_eq!(current_trace(), 0);
        let (outer, inner) =
            traced(async { (current_trace(), traced(async { current_trace() }).await) }).await;
        assert_eq!(outer, inner);
        assert_eq!(last_trace(), Some(outer));
        let next = traced(async { current_trace() }).await;
        assert!(next != outer && next != 0);
        assert_eq!(current_trace(), 0);
    }
}
