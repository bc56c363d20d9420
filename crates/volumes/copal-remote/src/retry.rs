//! Pauses between tries of a request, and the end of the tries.

use crate::{
    error::{RemoteError, RemoteFailure},
    service::ServiceError,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Between two looks whether the command was stopped.
const LOOK: Duration = Duration::from_millis(50);

/// Whether the command was stopped.
pub(crate) type StopSignal = Arc<dyn Fn() -> bool + Send + Sync>;

/// Rules of repeated tries.
#[derive(Clone)]
pub(crate) struct RetryRules {
    /// Time after which a request is given up; zero: one try.
    pub(crate) retry_for: Duration,
    pub(crate) stop: StopSignal,
}

/// Tries of one request.
pub(crate) struct RetryClock<'a> {
    rules: &'a RetryRules,
    began: Instant,
    pause: Duration,
}

impl RetryRules {
    pub(crate) fn start(&self) -> RetryClock<'_> {
        RetryClock { rules: self, began: Instant::now(), pause: FIRST_PAUSE }
    }

    /// Calls `attempt` until it succeeds or fails for good; for requests whose effect may happen twice.
    /// # Errors
    /// The last one: of a request without an end, when its time is over.
    pub(crate) fn repeat<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, ServiceError>,
    ) -> Result<T, ServiceError> {
        let mut clock = self.start();
        loop {
            match attempt() {
                Err(error) if error.may_pass() => clock.wait(error)?,
                answer => return answer,
            }
        }
    }
}

impl ServiceError {
    /// Whether the same request may get another answer later.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(
            self,
            ServiceError::Conflict
                | ServiceError::Busy { .. }
                | ServiceError::Unanswered { .. }
                | ServiceError::Unreachable { .. }
        )
    }

    fn reason(&self) -> String {
        match self {
            ServiceError::NotFound => "not found".to_owned(),
            ServiceError::Taken => "the key is taken".to_owned(),
            ServiceError::Conflict => "another request on the same object is in progress".to_owned(),
            ServiceError::Busy { reason }
            | ServiceError::Unanswered { reason }
            | ServiceError::Unreachable { reason } => reason.clone(),
            ServiceError::Final(error) => error.to_string(),
        }
    }

    /// The error for the user, once no further try is made.
    pub(crate) fn give_up(&self) -> RemoteError {
        match self {
            ServiceError::Final(error) => error.clone(),
            other => RemoteError::new(RemoteFailure::Network, other.reason()),
        }
    }
}

impl RetryClock<'_> {
    /// Waits before the next try.
    /// # Errors
    /// `error`, if the time is over; `Stopped`.
    pub(crate) fn wait(&mut self, error: ServiceError) -> Result<(), ServiceError> {
        let left = self.rules.retry_for.saturating_sub(self.began.elapsed());
        if left.is_zero() {
            return Err(error);
        }
        if matches!(error, ServiceError::Busy { .. }) {
            tracing::info!("the object store takes fewer requests: {}; going on slower", error.reason());
        } else {
            tracing::debug!("a request is repeated: {}", error.reason());
        }
        let until = Instant::now() + jittered(self.pause).min(left);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        loop {
            if (self.rules.stop)() {
                return Err(ServiceError::Final(RemoteError::new(
                    RemoteFailure::Stopped,
                    "the command was stopped",
                )));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::park_timeout(left.min(LOOK));
        }
    }
}

/// Half of the pause to all of it, so that hosts do not repeat in step.
fn jittered(pause: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or(u32::MAX);
    pause / 2 + (pause / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
}
