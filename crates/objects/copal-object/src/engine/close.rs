//! A checkpoint now, and the last one of all: everything durable, nothing written any more.
//!
//! Not here: when a checkpoint is due, and its steps (`checkpointer`, `engine`).

use crate::{
    StoreError,
    engine::{pump::wait_change, steps::advance},
    state::StoreCore,
};
use std::sync::Arc;

/// Writes a checkpoint of everything up to now and waits until it is durable.
pub(crate) fn checkpoint_now(inner: &Arc<StoreCore>) -> Result<(), StoreError> {
    let mut state = inner.state.lock();
    state.writable()?;
    let mut goal = None;
    loop {
        state.writable()?;
        advance(inner, &mut state);
        match goal {
            // One that is in the making may be older than what the caller wants in it.
            None if state.checkpointer.is_idle() => {
                goal = Some(state.checkpointer.finished + 1);
                state.checkpointer.forced = true;
                continue;
            }
            Some(goal) if state.checkpointer.finished >= goal => return Ok(()),
            Some(_) if !state.is_moving() => return Err(state.no_checkpoint()),
            _ => wait_change(inner, &mut state),
        }
    }
}

/// Waiting for everything to be durable, checkpointing, and refusing writes from then on.
pub(crate) fn close(inner: &Arc<StoreCore>) -> Result<(), StoreError> {
    let closed = write_all(inner);
    // The thread that delivers an answer holds the store until its hook returns: whoever drops the last
    // handle now gives up the device, and its lock, at once.
    inner.device.wait_idle();
    closed
}

/// Makes everything durable and takes the last checkpoint; nothing is written any more.
fn write_all(inner: &Arc<StoreCore>) -> Result<(), StoreError> {
    let mut state = inner.state.lock();
    if inner.shape.read_only || state.closed {
        state.closed = true;
        return Ok(());
    }
    if let Some(error) = &state.failure {
        return Err(StoreError::Device(error.clone()));
    }
    state.closed = true;
    // Everything that is on its way becomes durable first, so that the checkpoint knows the end of every
    // stream.
    let lsn = state.groups.last_lsn;
    let epoch = state.epochs.open;
    state.wanted_lsn = state.wanted_lsn.max(lsn);
    if state.tails.values().any(|tail| !tail.pending.is_empty()) {
        state.epochs.want(epoch);
    }
    let mut checkpoint = None;
    loop {
        if let Some(error) = &state.failure {
            return Err(StoreError::Device(error.clone()));
        }
        advance(inner, &mut state);
        let settled = state.groups.durable_lsn >= lsn
            && state.groups.is_open_empty()
            && state.tails.values().all(|tail| tail.pending.is_empty());
        match checkpoint {
            None if settled && state.checkpointer.is_idle() => {
                checkpoint = Some(state.checkpointer.finished + 1);
                state.checkpointer.forced = true;
                continue;
            }
            Some(goal) if state.checkpointer.finished >= goal => return Ok(()),
            Some(_) if state.checkpointer.is_idle() && state.outbox.is_empty() => {
                // No space for it: the journal says the same.
                return Ok(());
            }
            // Neither the journal nor a checkpoint has room for what was committed last.
            None if !state.is_moving() && !state.groups.is_open_empty() => {
                return Err(state.no_checkpoint());
            }
            _ => wait_change(inner, &mut state),
        }
    }
}
