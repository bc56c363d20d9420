//! Repository of an export: opened for reads and closed when idle, so that other processes can write.
//!
//! A store on one machine is locked by the process that has it open: many may read, or one may write. If a
//! pin protects the snapshot (`pins`), the export closes the store whenever it is idle. A repository in a
//! cluster has no such lock and stays open.
//! Invariant: no lock of this process is held while the store is opened or closed, since that takes as long
//! as another process writes. So a read that waits for the store delays only other reads.

use crate::{
    arguments::Common,
    failure::{Failure, Outcome},
    repository::{self, Opened},
};
use copal_backup::{CancelFlag, Error, KeptKey, LostFrame, Repository, serve::Lender};
use copal_export::Closing;
use copal_node::Patience;
use parking_lot::{Condvar, Mutex};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Longest wait of a read for a writer to end.
const WRITER: Duration = Duration::from_secs(600);
/// Idle time after which the store is closed.
const RESTED: Duration = Duration::from_secs(1);

/// Opens the store on demand and shares it among readers.
pub(super) struct Lending {
    common: Common,
    cancel: CancelFlag,
    closing: Closing,
    key: KeptKey,
    /// Whether the store may be closed when idle.
    may_rest: bool,
    state: Mutex<State>,
    /// Signalled when the store was opened or closed, or failed to open.
    changed: Condvar,
}

/// State of the store.
enum Ground {
    Open(Opened),
    Closed,
    /// A thread is opening or closing it.
    Changing,
}

struct State {
    ground: Ground,
    used: Instant,
    /// Damaged frames that reads have found.
    lost: Vec<LostFrame>,
    /// Number of failed openings, and the last error.
    failures: u64,
    failure: String,
}

impl Lending {
    pub(super) fn new(
        opened: Opened,
        common: &Common,
        cancel: &CancelFlag,
        closing: &Closing,
        may_rest: bool,
    ) -> Lending {
        Lending {
            common: common.clone(),
            cancel: cancel.clone(),
            closing: closing.clone(),
            key: opened.repository().kept_key(),
            may_rest: may_rest && opened.store().is_some(),
            state: Mutex::new(State {
                ground: Ground::Open(opened),
                used: Instant::now(),
                lost: Vec::new(),
                failures: 0,
                failure: String::new(),
            }),
            changed: Condvar::new(),
        }
    }

    /// Closes the store if it is idle. Blocks on the store.
    pub(super) fn rest(&self) {
        let opened = {
            let mut state = self.state.lock();
            let is_idle = match &state.ground {
                Ground::Open(opened) => Arc::strong_count(opened.shared()) == 1,
                Ground::Closed | Ground::Changing => false,
            };
            if !self.may_rest || !is_idle || state.used.elapsed() < RESTED {
                return;
            }
            state.take()
        };
        let Some(opened) = opened else { return };
        let lost = opened.repository().lost_frames();
        if let Err(failure) = opened.close() {
            tracing::warn!(error = failure.sentence, "closing the store failed");
        }
        let mut state = self.state.lock();
        state.lost.extend(lost);
        state.ground = Ground::Closed;
        drop(state);
        self.changed.notify_all();
    }

    /// Closes the store for good; returns the damage that reads have found.
    pub(super) fn end(self) -> Outcome<Vec<LostFrame>> {
        let mut state = self.state.into_inner();
        if let Some(opened) = state.take() {
            state.lost.extend(opened.repository().lost_frames());
            opened.close()?;
        }
        Ok(state.lost)
    }

    fn open(&self) -> Result<Opened, Error> {
        let (cancel, closing) = (self.cancel.clone(), self.closing.clone());
        let is_ended = move || cancel.is_cancelled() || closing.is_closed();
        let patience = Patience::new(WRITER, is_ended, |_, _| {});
        let opened = repository::open_kept(&self.common, &self.key, &patience);
        opened.map_err(|Failure { sentence, .. }| self.failed(sentence))
    }

    /// The error of a read; cancellation if the export is ending.
    fn failed(&self, reason: String) -> Error {
        match self.cancel.is_cancelled() || self.closing.is_closed() {
            true => Error::Cancelled { kept_bytes: None },
            false => Error::Ended { reason },
        }
    }
}

impl State {
    /// Takes the store in order to close it.
    fn take(&mut self) -> Option<Opened> {
        match std::mem::replace(&mut self.ground, Ground::Changing) {
            Ground::Open(opened) => Some(opened),
            other => {
                self.ground = other;
                None
            }
        }
    }

    fn lend(&mut self) -> Option<Arc<Repository>> {
        let Ground::Open(opened) = &self.ground else {
            return None;
        };
        self.used = Instant::now();
        Some(Arc::clone(opened.shared()))
    }
}

impl Lender for Lending {
    fn lend(&self) -> Result<Arc<Repository>, Error> {
        let mut state = self.state.lock();
        let failures = state.failures;
        while matches!(state.ground, Ground::Changing) {
            self.changed.wait(&mut state);
            // All readers that wait for one opening fail with it, instead of trying one after another.
            if state.failures != failures {
                return Err(self.failed(state.failure.clone()));
            }
        }
        if let Some(repository) = state.lend() {
            return Ok(repository);
        }
        state.ground = Ground::Changing;
        drop(state);
        let opened = self.open();
        let mut state = self.state.lock();
        let lent = match opened {
            Ok(opened) => {
                state.used = Instant::now();
                let repository = Arc::clone(opened.shared());
                state.ground = Ground::Open(opened);
                Ok(repository)
            }
            Err(error) => {
                state.ground = Ground::Closed;
                state.failures += 1;
                state.failure = error.to_string();
                Err(error)
            }
        };
        drop(state);
        self.changed.notify_all();
        lent
    }
}
