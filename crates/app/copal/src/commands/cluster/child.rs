//! Ends a process when its parent, `copal serve`, ends.

use crate::failure::{Failure, Outcome};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// From now on, the end of the parent with the given number ends this process, like SIGTERM.
pub(super) fn end_with_parent(parent: u32) -> Outcome<()> {
    let asked = set_parent_process_death_signal(Some(Signal::TERM));
    asked.map_err(|error| Failure::plain("start", format!("cannot follow the parent process: {error}")))?;
    // The parent may have ended before the call. Its own number shows that; process 1 does not, since in a
    // container `copal serve` is process 1.
    match getppid().is_some_and(|now| now.as_raw_nonzero().get().unsigned_abs() == parent) {
        true => Ok(()),
        false => Err(Failure::plain("start", "the process that started this one has ended")),
    }
}
