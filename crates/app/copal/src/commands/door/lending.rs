//! The repository of a door: open while it is read from, closed again soon after, so that others may write.
//!
//! A store of one machine is locked by whoever has it open: many may read, or one may write. Where the lock is not the only
//! thing that keeps a served snapshot (`pins`), a door lets go of it whenever it rests. A repository in a cluster has no such
//! lock and stays open.

use crate::{
    arguments::Common,
    failure::{Failure, Outcome},
    repository::{self, Opened},
};
use copal_backup::{CancelFlag, Error, KeptKey, LostFrame, Repository, serve::Lender};
use copal_node::Patience;
use parking_lot::Mutex;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Whoever reads waits so long for a writer to end, then the read fails.
const WRITER: Duration = Duration::from_secs(600);
/// Nobody has read for so long: the store is closed.
const RESTED: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Lending {
    common: Common,
    cancel: CancelFlag,
    key: KeptKey,
    /// Whether the store may be closed in between.
    may_rest: bool,
    state: Mutex<State>,
}

struct State {
    opened: Option<Opened>,
    used: Instant,
    /// Damaged frames that were met.
    lost: Vec<LostFrame>,
}

impl Lending {
    pub(super) fn new(opened: Opened, common: &Common, cancel: &CancelFlag, may_rest: bool) -> Lending {
        Lending {
            common: common.clone(),
            cancel: cancel.clone(),
            key: opened.repository().kept_key(),
            may_rest: may_rest && opened.store().is_some(),
            state: Mutex::new(State {
                opened: Some(opened),
                used: Instant::now(),
                lost: Vec::new(),
            }),
        }
    }

    /// Closes the store if nobody has read for a moment.
    pub(super) fn rest(&self) {
        let mut state = self.state.lock();
        let is_used = |opened: &Opened| Arc::strong_count(opened.shared()) > 1;
        if !self.may_rest || state.used.elapsed() < RESTED || state.opened.as_ref().is_none_or(is_used) {
            return;
        }
        if let Err(failure) = state.close() {
            tracing::warn!(why = failure.sentence, "the store did not close well");
        }
    }

    /// Closes the store for good; returns the damage that was met.
    pub(super) fn end(self) -> Outcome<Vec<LostFrame>> {
        let mut state = self.state.into_inner();
        state.close()?;
        Ok(state.lost)
    }
}

impl State {
    fn close(&mut self) -> Outcome<()> {
        let Some(opened) = self.opened.take() else {
            return Ok(());
        };
        self.lost.extend(opened.repository().lost_frames());
        opened.close()
    }
}

impl Lender for Lending {
    fn lend(&self) -> Result<Arc<Repository>, Error> {
        let mut state = self.state.lock();
        let opened = match state.opened.take() {
            Some(opened) => opened,
            None => {
                let cancel = self.cancel.clone();
                let patience = Patience::new(WRITER, move || cancel.is_cancelled(), |_, _| {});
                let opened = repository::open_kept(&self.common, &self.key, &patience);
                opened.map_err(|Failure { sentence, .. }| Error::Ended { reason: sentence })?
            }
        };
        state.used = Instant::now();
        let repository = Arc::clone(opened.shared());
        state.opened = Some(opened);
        Ok(repository)
    }
}
