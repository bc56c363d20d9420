//! Repository of an export: opened for reads and closed when idle, so that other processes can write.
//!
//! A store on one machine is locked by the process that has it open: many may read, or one may write. If a
//! pin protects the snapshot (`pins`), the export closes the store whenever it is idle. A repository in a
//! cluster has no such lock and stays open.
//! Invariant: no lock of this process is held while the store is opened or closed, since that takes as long
//! as another process writes. So a read that waits for the store delays only other reads.

use crate::{
    arguments::CommonArgs,
    failure::{Failure, Outcome},
    repository::{self, OpenRepository},
};
use copal_backup::{CancelFlag, Error, KeptKey, LostFrame, Repository, serve::Lender};
use copal_export::CloseFlag;
use copal_node::Patience;
use parking_lot::{Condvar, Mutex};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Longest wait of a read for a writer to end.
const WRITER_LIMIT: Duration = Duration::from_secs(600);
/// Idle time after which the store is closed.
const IDLE_LIMIT: Duration = Duration::from_secs(1);

/// Opens the store on demand and shares it among readers.
pub(super) struct StoreLender {
    common: CommonArgs,
    cancel: CancelFlag,
    close_flag: CloseFlag,
    key: KeptKey,
    /// Whether the store may be closed when idle.
    may_close: bool,
    state: Mutex<LenderState>,
    /// Signalled when the store was opened or closed, or failed to open.
    changed: Condvar,
}

/// State of the store.
enum StoreState {
    Open(OpenRepository),
    Closed,
    /// A thread is opening or closing it.
    Changing,
}

struct LenderState {
    store: StoreState,
    used: Instant,
    /// Damaged frames that reads have found.
    lost: Vec<LostFrame>,
    /// Number of failed openings, and the last error.
    failures: u64,
    failure: String,
}

impl StoreLender {
    pub(super) fn new(
        opened: OpenRepository,
        common: &CommonArgs,
        cancel: &CancelFlag,
        close_flag: &CloseFlag,
        may_close: bool,
    ) -> StoreLender {
        StoreLender {
            common: common.clone(),
            cancel: cancel.clone(),
            close_flag: close_flag.clone(),
            key: opened.repository().kept_key(),
            may_close: may_close && opened.store().is_some(),
            state: Mutex::new(LenderState {
                store: StoreState::Open(opened),
                used: Instant::now(),
                lost: Vec::new(),
                failures: 0,
                failure: String::new(),
            }),
            changed: Condvar::new(),
        }
    }

    /// Closes the store if it is idle. Blocks on the store.
    pub(super) fn close_if_idle(&self) {
        let opened = {
            let mut state = self.state.lock();
            let is_idle = match &state.store {
                StoreState::Open(opened) => Arc::strong_count(opened.shared()) == 1,
                StoreState::Closed | StoreState::Changing => false,
            };
            if !self.may_close || !is_idle || state.used.elapsed() < IDLE_LIMIT {
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
        state.store = StoreState::Closed;
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

    fn open(&self) -> Result<OpenRepository, Error> {
        let (cancel, close_flag) = (self.cancel.clone(), self.close_flag.clone());
        let is_ended = move || cancel.is_cancelled() || close_flag.is_closed();
        let patience = Patience::new(WRITER_LIMIT, is_ended, |_, _| {});
        let opened = repository::open_kept(&self.common, &self.key, &patience);
        opened.map_err(|Failure { sentence, .. }| self.failed(sentence))
    }

    /// The error of a read; cancellation if the export is ending.
    fn failed(&self, reason: String) -> Error {
        match self.cancel.is_cancelled() || self.close_flag.is_closed() {
            true => Error::Cancelled { kept_bytes: None },
            false => Error::Ended { reason },
        }
    }
}

impl LenderState {
    /// Takes the store in order to close it.
    fn take(&mut self) -> Option<OpenRepository> {
        match std::mem::replace(&mut self.store, StoreState::Changing) {
            StoreState::Open(opened) => Some(opened),
            other => {
                self.store = other;
                None
            }
        }
    }

    fn lend(&mut self) -> Option<Arc<Repository>> {
        let StoreState::Open(opened) = &self.store else {
            return None;
        };
        self.used = Instant::now();
        Some(Arc::clone(opened.shared()))
    }
}

impl Lender for StoreLender {
    fn lend(&self) -> Result<Arc<Repository>, Error> {
        let mut state = self.state.lock();
        let failures = state.failures;
        while matches!(state.store, StoreState::Changing) {
            self.changed.wait(&mut state);
            // All readers that wait for one opening fail with it, instead of trying one after another.
            if state.failures != failures {
                return Err(self.failed(state.failure.clone()));
            }
        }
        if let Some(repository) = state.lend() {
            return Ok(repository);
        }
        state.store = StoreState::Changing;
        drop(state);
        let opened = self.open();
        let mut state = self.state.lock();
        let lent = match opened {
            Ok(opened) => {
                state.used = Instant::now();
                let repository = Arc::clone(opened.shared());
                state.store = StoreState::Open(opened);
                Ok(repository)
            }
            Err(error) => {
                state.store = StoreState::Closed;
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
