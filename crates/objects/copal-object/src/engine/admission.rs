//! Admission: room for one more transaction in the open group, and the wait for the journal.
//!
//! Design: docs/design/object.md#commit-on-one-flush OBJ-16

use crate::{
    StoreError,
    engine::{
        pump::wait_change,
        steps::{advance, close_group},
    },
    format::{ops::RecordOp, record},
    state::{StoreCore, StoreState, commit::group::GroupAdmission},
};
use parking_lot::MutexGuard;
use std::sync::Arc;

/// Requests room in the open group for `ops_bytes` bytes of operations (OBJ-16). `None`: the group had to be
/// closed first, or the mutex was released to wait for the journal; the caller must check everything again.
/// # Errors
/// `TooLarge`: longer than any record. `NoSpace`: neither the journal nor a checkpoint can take it. `Fenced`.
pub(crate) fn admit(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    ops_bytes: usize,
    releasing: bool,
) -> Result<Option<GroupAdmission>, StoreError> {
    if record::HEADER_LEN + ops_bytes > state.space.placement().journal().record_bytes_max() {
        return Err(StoreError::TooLarge);
    }
    let Some(admitted) = state.commit.admit(state.space.placement().journal(), ops_bytes) else {
        // The open group is full and waits for the journal or for the flush in progress.
        if !close_group(store, state) {
            wait_journal(store, state)?;
        }
        return Ok(None);
    };
    // At least one of the two ways to become durable must be open: a record or a checkpoint.
    if !state.space.fits_checkpoint() && !state.fits_journal(ops_bytes, releasing) {
        wait_journal(store, state)?;
        return Ok(None);
    }
    Ok(Some(admitted))
}

/// Like [`admit`], for one operation of the store itself.
pub(crate) fn admit_op(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    op: &RecordOp,
) -> Result<Option<GroupAdmission>, StoreError> {
    let mut encoded = Vec::new();
    op.encode(&mut encoded);
    admit(store, state, encoded.len(), false)
}

/// Enters an internal transaction of one operation; returns its position.
pub(crate) fn enter_internal(state: &mut StoreState, op: &RecordOp, admitted: GroupAdmission) -> u64 {
    let lsn = state.commit.take_lsn(admitted, false);
    state.enter(op, lsn);
    lsn
}

/// Waits for room in the journal, that is, for a checkpoint.
/// # Errors
/// `NoSpace`: there is none for a checkpoint either, and nothing in progress could change that. `Fenced`.
pub(crate) fn wait_journal(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
) -> Result<(), StoreError> {
    let before = (state.commit.open_group(), state.space.free_pages());
    advance(store, state);
    state.writable()?;
    if state.is_moving() {
        wait_change(store, state);
        return Ok(());
    }
    if before != (state.commit.open_group(), state.space.free_pages()) {
        return Ok(());
    }
    Err(state.no_checkpoint())
}
