//! Waiting for commits to be durable.

use crate::{
    Lsn, StoreError,
    engine::pump::pump,
    state::{StoreCore, Waiter},
};
use copal_device::Completion;
use std::sync::Arc;

/// See `Store::sync`.
pub(crate) fn sync(store: &Arc<StoreCore>, upto: Lsn) -> Completion<Result<(), StoreError>> {
    let mut state = store.state.lock();
    let lsn = upto.0.min(state.groups.last_lsn);
    if lsn <= state.groups.durable_lsn {
        return Completion::ready(Ok(()));
    }
    if let Err(error) = state.writable() {
        return Completion::ready(Err(error));
    }
    let (completer, completion) = store.promise();
    state.wanted_lsn = state.wanted_lsn.max(lsn);
    let waiter = Waiter { lsn, completer };
    // Waiters stand in the order of their positions; a sync may ask for an earlier one than the last.
    let place = state.durable_waiters.partition_point(|other| other.lsn <= lsn);
    state.durable_waiters.insert(place, waiter);
    drop(state);
    pump(store);
    completion.map(|result: Result<Lsn, StoreError>| result.map(drop))
}
