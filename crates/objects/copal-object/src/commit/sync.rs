//! Waiting until commits are durable.

use crate::{Lsn, StoreError, engine::pump::pump, state::StoreCore};
use copal_device::Completion;
use std::sync::Arc;

/// See `Store::sync`.
pub(crate) fn sync(store: &Arc<StoreCore>, upto: Lsn) -> Completion<Result<(), StoreError>> {
    let mut state = store.state.lock();
    let lsn = upto.0.min(state.commit.last_lsn());
    if lsn <= state.commit.durable_lsn() {
        return Completion::ready(Ok(()));
    }
    if let Err(error) = state.writable() {
        return Completion::ready(Err(error));
    }
    let (completer, completion) = store.promise();
    state.commit.wait_durable(lsn, completer);
    drop(state);
    pump(store);
    completion.map(|result: Result<Lsn, StoreError>| result.map(drop))
}
