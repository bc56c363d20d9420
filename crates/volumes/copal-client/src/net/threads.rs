//! Check that the system starts threads. It runs before a runtime is built, which would panic otherwise.

use std::{io, sync::mpsc, thread};

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

    #[test]
    fn threads_start() {
        probe_threads(3).unwrap();
        probe_threads(0).unwrap();
    }
}
