//! Exclusive lock of a target while a restore writes to it.

use rustix::fs::{FlockOperation, flock};
use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// Longest wait for a lock. A child process of this process holds copies of all open files with their locks,
/// from `fork` until `exec`.
const MAX_WAIT: Duration = Duration::from_millis(500);
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Takes the exclusive lock of a file; returns false if another process holds it. Blocks for up to half a
/// second.
pub(super) fn take(file: impl AsFd) -> bool {
    let began = Instant::now();
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if began.elapsed() > MAX_WAIT {
            return false;
        }
        std::thread::park_timeout(RETRY_INTERVAL);
    }
    true
}
