//! Whether the system starts threads: asked before a runtime is built, which panics where it starts none.

use std::{io, sync::mpsc, thread};

/// Starts so many threads at once, which end at once.
/// # Errors
/// The system refuses one of them.
pub fn probe_threads(count: usize) -> io::Result<()> {
    let mut started = Vec::with_capacity(count);
    let mut refused = Ok(());
    for _ in 0..count {
        // Each lives until its sender is dropped, so that all are there at a time.
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
        // It does nothing that could panic.
        let _ = thread.join();
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_found() {
        probe_threads(3).unwrap();
        probe_threads(0).unwrap();
    }
}
