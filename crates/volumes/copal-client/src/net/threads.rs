//! Threads of a runtime: their number, and a check that the system starts them. The check runs before a runtime
//! is built, which would panic otherwise.

use crate::net::machine;
use std::{io, sync::mpsc, thread};

/// Fewest threads for connections: while one waits for a lock or for memory, the other one works.
const LEAST: usize = 2;

/// Number of threads for the connections of a process: one for each processor that it may use, at most `most`.
/// They encrypt, decode and check all bytes that it sends and receives.
#[must_use]
pub fn connection_threads(most: usize) -> usize {
    threads_for(machine::processors(), most)
}

fn threads_for(processors: usize, most: usize) -> usize {
    processors.min(most).max(LEAST)
}

/// Starts `count` threads that exist at the same time and end at once. Blocks until they have ended.
/// # Errors
/// The system refuses one of them.
pub fn probe_threads(count: usize) -> io::Result<()> {
    let mut started = Vec::with_capacity(count);
    let mut refused = Ok(());
    for _ in 0..count {
        // Each thread waits until its sender is dropped, so that all exist at the same time.
        let (alive, ended) = mpsc::channel::<()>();
        let thread = thread::Builder::new().name("probe".to_owned());
        match thread.spawn(move || ended.recv().is_err()) {
            Ok(thread) => started.push((alive, thread)),
            Err(error) => {
                let reason = format!(
                    "the system starts no more threads ({error}); raise its limit (ulimit -u, pids.max)"
                );
                refused = Err(io::Error::new(error.kind(), reason));
                break;
            }
        }
    }
    for (alive, thread) in started {
        drop(alive);
        // The thread does nothing that could panic.
        let _ = thread.join();
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: a data server on 16 processors decrypted and decoded on two of them.
    /// Cause: the number of threads was a constant. Fix: it follows the processors.
    #[test]
    fn connections_have_a_thread_for_each_processor() {
        let threads = [1, 2, 8, 16, 64].map(|processors| threads_for(processors, 16));
        assert_eq!(threads, [2, 2, 8, 16, 16]);
        assert_eq!(threads_for(8, 1), 2);
    }

    #[test]
    fn threads_start() {
        probe_threads(3).unwrap();
        probe_threads(0).unwrap();
    }
}
