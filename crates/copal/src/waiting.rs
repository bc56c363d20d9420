//! How long a command waits for a store that somebody else has open.

use crate::{holder, human, output::Output};
use copal_backup::CancelFlag;
use copal_device::OpenError as DeviceOpenError;
use copal_object::OpenError;
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// How long a lock is waited for, whatever was asked for.
///
/// The kernel takes down an io_uring in the background after its process ended, and the ring's reference to the file keeps
/// the lock until then: some milliseconds, more on a loaded machine.
const LEAST: Duration = Duration::from_secs(2);
const FIRST_STEP: Duration = Duration::from_millis(10);
/// Between two tries once somebody is known to be at work.
const STEP: Duration = Duration::from_millis(100);

/// The patience of one command.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    patience: Duration,
    cancel: CancelFlag,
    output: Output,
}

impl Waiting {
    /// As long as `--wait` says; Ctrl-C ends it.
    pub(crate) fn new(patience: Duration, cancel: &CancelFlag, output: Output) -> Waiting {
        Waiting {
            patience,
            cancel: cancel.clone(),
            output,
        }
    }

    /// Opens what `path` names; while somebody else has it locked, tries again.
    /// # Errors
    /// Those of `open`; `Locked` when patience ended or the user did.
    pub(crate) fn open<T>(
        &self,
        path: &Path,
        open: impl Fn() -> Result<T, OpenError>,
    ) -> Result<T, OpenError> {
        let began = Instant::now();
        let mut told = false;
        loop {
            let outcome = open();
            let is_locked = matches!(outcome, Err(OpenError::Open(DeviceOpenError::Locked { .. })));
            if !is_locked || self.cancel.is_cancelled() || began.elapsed() >= self.patience.max(LEAST) {
                return outcome;
            }
            if began.elapsed() < LEAST {
                std::thread::park_timeout(FIRST_STEP);
                continue;
            }
            if !told {
                told = true;
                self.tell(path);
            }
            std::thread::park_timeout(STEP);
        }
    }

    fn tell(&self, path: &Path) {
        let who = match holder::as_text(&holder::holders(path)) {
            who if who.is_empty() => "another process".to_owned(),
            who => who,
        };
        self.output.notice(&format!(
            "waiting up to {} for {who} to end, which is using {}",
            human::age(self.patience.as_secs()),
            path.display()
        ));
    }
}
