//! A process that `copal serve` has started ends with it.

use crate::failure::{Failure, Outcome};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// From here on the end of the parent, whose number is given, ends this process, as SIGTERM does.
pub(super) fn end_with_parent(parent: u32) -> Outcome<()> {
    let asked = set_parent_process_death_signal(Some(Signal::TERM));
    asked.map_err(|error| Failure::plain("start", format!("cannot follow the parent process: {error}")))?;
    // It may have ended before this was asked for. Its own number tells, not that of process 1: in a
    // container `copal serve` is process 1.
    match getppid().is_some_and(|now| now.as_raw_nonzero().get().unsigned_abs() == parent) {
        true => Ok(()),
        false => Err(Failure::plain("start", "the process that started this one has ended")),
    }
}
