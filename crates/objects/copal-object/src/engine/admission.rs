//! Admission: the wait for room in the open group and in the journal.
//!
//! Design: docs/design/object.md#commit-on-one-flush OBJ-16

use crate::{
    StoreError,
    engine::{
        pump::wait_change,
        shortage::clean_for_records,
        steps::{advance, close_group},
    },
    format::ops::RecordOp,
    state::{
        StoreCore, StoreState,
        commit::group::{GroupAdmission, GroupRoom},
    },
};
use parking_lot::MutexGuard;
use std::sync::Arc;

/// Closes the full group, or waits for the journal or for the flush in progress. May release the mutex, so the
/// caller must hold no pages of the open group.
/// # Errors
/// `NoSpace`: neither the journal nor a checkpoint can take the group. `Fenced`.
pub(crate) fn close_full_group(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
) -> Result<(), StoreError> {
    if !state.commit.is_open_empty() && close_group(store, state) {
        return Ok(());
    }
    wait_journal(store, state)
}

/// Requests room, for a caller that holds no pages of the open group. `None`: the group had to be closed first,
/// or the mutex was released to wait; the caller must check everything again.
/// # Errors
/// As `StoreState::find_room` and [`close_full_group`].
pub(crate) fn admit(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    ops_bytes: usize,
    releasing: bool,
) -> Result<Option<GroupAdmission>, StoreError> {
    match state.find_room(ops_bytes, releasing)? {
        GroupRoom::Admitted(admitted) => return Ok(Some(admitted)),
        GroupRoom::GroupFull => close_full_group(store, state)?,
        GroupRoom::JournalFull => wait_journal(store, state)?,
    }
    Ok(None)
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

/// Waits for room in the journal, that is, for a checkpoint or for the cleaner.
/// # Errors
/// `NoSpace`: there is none for a checkpoint either, and nothing in progress could change that. `Fenced`.
pub(crate) fn wait_journal(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
) -> Result<(), StoreError> {
    let before = (state.commit.open_group(), state.space.free_pages());
    // The next group may begin in a segment whose header is not durable yet.
    if let Some(epoch) = state.space.placement().journal().awaited_epoch() {
        state.commit.want_epoch(epoch);
    }
    advance(store, state);
    state.writable()?;
    if state.space.placement().journal().awaited_epoch().is_some() {
        wait_change(store, state);
        return Ok(());
    }
    if state.is_moving() {
        wait_change(store, state);
        return Ok(());
    }
    if before != (state.commit.open_group(), state.space.free_pages())
        || (state.space.placement().journal().lacks_segment() && clean_for_records(store, state)?)
    {
        return Ok(());
    }
    Err(state.no_checkpoint())
}

#[cfg(test)]
mod tests;
