//! The end of waits for answers once the command was stopped.

use crate::retry::StopSignal;
use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

/// Between two looks whether the command was stopped.
const LOOK: Duration = Duration::from_millis(50);
/// Time of a stopped command for requests that tidy up: an export removes its pin, a backup ends its session.
const TIDYING: Duration = Duration::from_secs(5);

/// See the module.
pub(super) struct StopWatch {
    stop: StopSignal,
    /// When a call first noticed that the command was stopped.
    stopped: OnceLock<Instant>,
}

impl StopWatch {
    pub(super) fn new(stop: StopSignal) -> StopWatch {
        StopWatch { stop, stopped: OnceLock::new() }
    }

    /// Ends when the wait of a call has to end: at once when the command is stopped meanwhile, and after [`TIDYING`] when
    /// it was stopped before.
    pub(super) async fn ended(&self) {
        if (self.stop)() {
            let since = *self.stopped.get_or_init(Instant::now);
            return tokio::time::sleep_until((since + TIDYING).into()).await;
        }
        while !(self.stop)() {
            tokio::time::sleep(LOOK).await;
        }
        self.stopped.get_or_init(Instant::now);
    }
}
