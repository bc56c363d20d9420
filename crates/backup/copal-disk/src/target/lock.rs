//! The lock of what a restore writes to.

use rustix::fs::{FlockOperation, flock};
use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// How long a lock that somebody has is asked for again. A program that is being started anywhere in this
/// process holds copies of all its open files, with their locks, until it runs.
const LONGEST: Duration = Duration::from_millis(500);
const STEP: Duration = Duration::from_millis(5);

/// Takes the lock of a file alone; whether it could. Blocks for up to half a second where somebody has it.
pub(super) fn take(file: impl AsFd) -> bool {
    let began = Instant::now();
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if began.elapsed() > LONGEST {
            return false;
        }
        std::thread::park_timeout(STEP);
    }
    true
}
