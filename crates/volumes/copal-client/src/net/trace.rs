//! Trace number of an operation: drawn where the operation begins, and sent with every call that is part of it.
//! It connects the log lines of many servers.
//!
//! Not here: output of the number (`copal-server`, the binary).

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

/// A new trace number; never 0. It carries no information.
fn draw() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if NEXT.load(Ordering::Relaxed) == 0 {
        // Without randomness two processes may use the same numbers. Then the log lines also need the caller.
        let drawn = copal_volume::random_incarnation().unwrap_or(u64::from(std::process::id()) << 32);
        let _ = NEXT.compare_exchange(0, drawn | 1, Ordering::Relaxed, Ordering::Relaxed);
    }
    NEXT.fetch_add(2, Ordering::Relaxed)
}

/// Trace number of the current task; 0: none.
pub fn current_trace() -> u64 {
    CURRENT.try_with(|trace| *trace).unwrap_or(0)
}

/// Runs a part of an operation: its calls carry the number `trace`.
pub async fn with_trace<T>(trace: u64, work: impl Future<Output = T>) -> T {
    CURRENT.scope(trace, work).await
}

/// Runs an operation under a new number, unless it is part of another operation.
pub(crate) async fn traced<T>(work: impl Future<Output = T>) -> T {
    let trace = match current_trace() {
        0 => draw(),
        outer => outer,
    };
    LAST.set(trace);
    tracing::debug!(trace = %trace_text(trace), "an operation begins");
    with_trace(trace, work).await
}

/// Number of the last operation that this thread waited for; `None`: there was none.
pub fn last_trace() -> Option<u64> {
    Some(LAST.get()).filter(|trace| *trace != 0)
}

/// The printed form of a trace number, in all logs.
pub fn trace_text(trace: u64) -> String {
    format!("{trace:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_operation_and_its_parts_have_one_number() {
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
