//! Shortage of segments: callers that wait for space drive the cleaner, or a checkpoint that frees segments of records.
//!
//! Design: docs/design/object.md#cleaner OBJ-36
//! Not here: rounds of the cleaner (`cleaner`), drains and growth (`resize`).

use crate::{
    StoreError,
    engine::{
        cleaner::{begin_round, choice::CleaningNeed},
        pump::{pump, wait_change},
    },
    flaw::StoreFlaw,
    state::{StoreCore, StoreState},
};
use parking_lot::MutexGuard;
use std::sync::Arc;

/// Makes progress towards `needed` available pages by a checkpoint or by a round of the cleaner; the caller then checks
/// again. `false`: neither can help. Releases the mutex meanwhile.
/// # Errors
/// `Fenced`.
pub(crate) fn clean_for(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    needed: u64,
) -> Result<bool, StoreError> {
    let space = &state.space;
    if space.placement().segments().is_none() {
        return Ok(false);
    }
    if space.reachable_pages() < needed {
        return Ok(false);
    }
    let before = state.space.available_pages();
    run_round(store, state, CleaningNeed::Urgent, |state| {
        state.space.available_pages() >= needed.max(before + 1)
    })
}

/// Like [`clean_for`], for an operation that frees space and needs `needed` pages for it.
/// # Errors
/// `Fenced`.
pub(crate) fn clean_for_release(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    needed: u64,
) -> Result<bool, StoreError> {
    if state.space.placement().segments().is_none() {
        return Ok(false);
    }
    run_round(store, state, CleaningNeed::Releasing, |state| state.space.releasable_pages() >= needed)
}

/// Makes progress towards a free segment for records. `false`: neither a checkpoint nor the cleaner can help. Releases
/// the mutex meanwhile.
/// # Errors
/// `Fenced`.
pub(crate) fn clean_for_records(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
) -> Result<bool, StoreError> {
    run_round(store, state, CleaningNeed::Releasing, |state| {
        !state.space.placement().journal().lacks_segment()
    })
}

/// Waits until a round of the cleaner has ended or `enough` holds; a checkpoint stands in for a round without a victim.
fn run_round(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    need: CleaningNeed,
    enough: impl Fn(&StoreState) -> bool,
) -> Result<bool, StoreError> {
    // Before the mount is durable nothing is allocated (OBJ-4).
    if !state.checkpoint.is_mounted() {
        return Ok(false);
    }
    let sleeps = store.shape.broken.by(StoreFlaw::WaiterSleeps);
    if !sleeps && state.cleaner.round.is_none() && !begin_round(store, state, need) {
        return pass_records(store, state);
    }
    let rounds = state.cleaner.rounds;
    MutexGuard::unlocked(state, || pump(store));
    while state.cleaner.rounds == rounds && !enough(state) {
        state.writable()?;
        wait_change(store, state);
    }
    Ok(true)
}

/// Waits for a checkpoint, if it frees segments of records.
fn pass_records(store: &Arc<StoreCore>, state: &mut MutexGuard<'_, StoreState>) -> Result<bool, StoreError> {
    let passable = |state: &StoreState| state.space.placement().journal().passable_segments();
    if passable(state) == 0 {
        return Ok(false);
    }
    let goal = state.checkpoint.finished() + 1;
    state.checkpoint.force();
    MutexGuard::unlocked(state, || pump(store));
    while state.checkpoint.finished() < goal {
        state.writable()?;
        if state.checkpoint.is_idle() && !state.is_moving() {
            return Ok(false);
        }
        wait_change(store, state);
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
