//! Explicit checkpoints, and closing a store: everything becomes durable, and writes end.
//!
//! Not here: when a checkpoint is due, and its steps (`checkpoint`, `steps`).

use crate::{
    StoreError,
    engine::{pump::wait_change, steps::advance},
    state::StoreCore,
};
use std::sync::Arc;

/// Writes a checkpoint of everything committed so far and waits until it is durable.
pub(crate) fn checkpoint_now(inner: &Arc<StoreCore>) -> Result<(), StoreError> {
    let mut state = inner.state.lock();
    state.writable()?;
    let mut goal = None;
    loop {
        state.writable()?;
        advance(inner, &mut state);
        match goal {
            // A checkpoint already in progress may be older than the caller's commits.
            None if state.checkpoint.is_idle() => {
                goal = Some(state.checkpoint.finished() + 1);
                state.checkpoint.force();
                continue;
            }
            Some(goal) if state.checkpoint.finished() >= goal => return Ok(()),
            Some(_) if !state.is_moving() => return Err(state.no_checkpoint()),
            _ => wait_change(inner, &mut state),
        }
    }
}

/// Makes everything durable, writes a checkpoint, and refuses writes from then on.
pub(crate) fn close(inner: &Arc<StoreCore>) -> Result<(), StoreError> {
    let closed = write_all(inner);
    // The thread that delivers an answer holds the store until its hook returns. Waiting here lets a caller
    // that drops the last handle release the device and its lock at once.
    inner.device.wait_idle();
    closed
}

/// Makes everything durable and writes the last checkpoint; later writes are refused.
fn write_all(inner: &Arc<StoreCore>) -> Result<(), StoreError> {
    let mut state = inner.state.lock();
    if inner.shape.read_only || state.fence.is_closed() {
        state.fence.close();
        return Ok(());
    }
    if let Some(error) = state.fence.failure() {
        return Err(StoreError::Device(error.clone()));
    }
    state.fence.close();
    // Everything in flight becomes durable first, so that the checkpoint knows the end of every stream.
    let lsn = state.commit.last_lsn();
    let epoch = state.commit.open_epoch();
    state.commit.want_durable(lsn);
    if state.streams.has_pending_frames() {
        state.commit.want_epoch(epoch);
    }
    let mut checkpoint = None;
    loop {
        if let Some(error) = state.fence.failure() {
            return Err(StoreError::Device(error.clone()));
        }
        advance(inner, &mut state);
        let settled = state.commit.durable_lsn() >= lsn
            && state.commit.is_open_empty()
            && !state.cleaner.is_copying()
            && !state.streams.has_pending_frames();
        match checkpoint {
            None if settled && state.checkpoint.is_idle() => {
                checkpoint = Some(state.checkpoint.finished() + 1);
                state.checkpoint.force_last();
                continue;
            }
            Some(goal) if state.checkpoint.finished() >= goal => return Ok(()),
            Some(_) if state.checkpoint.is_idle() && !state.queue.has_ios() => {
                // No space for a checkpoint: the journal holds the same state.
                return Ok(());
            }
            // Neither the journal nor a checkpoint has room for the last commits.
            None if !state.is_moving() && !state.commit.is_open_empty() => {
                return Err(state.no_checkpoint());
            }
            _ => wait_change(inner, &mut state),
        }
    }
}
