//! Says that there are too many connections: the first time at once, then once a minute, with how many times
//! it was.

use parking_lot::Mutex;
use std::{
    fmt::Display,
    time::{Duration, Instant},
};
use tracing::warn;

/// Pause between two lines of the log.
const EVERY: Duration = Duration::from_secs(60);

/// What was said, and what was not said since.
#[derive(Default)]
pub(super) struct Crowd(Mutex<(Option<Instant>, u64)>);

impl Crowd {
    /// Says what there is too much of, and of whom or why.
    pub(super) fn tell(&self, what: &str, whom: &dyn Display) {
        let mut state = self.0.lock();
        state.1 += 1;
        if state.0.is_some_and(|told| told.elapsed() < EVERY) {
            return;
        }
        warn!(%whom, times = state.1, "{what}");
        *state = (Some(Instant::now()), 0);
    }
}
