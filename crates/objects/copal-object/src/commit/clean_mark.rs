//! The clean mark of an idle store: an empty record that names what was durable, so that later damage of it
//! is told from a crash.
//!
//! The last record of a journal, the data of the last epoch and the last frame of a stream have nothing
//! behind them that says they were durable: when they rot, an open takes it for a write that a crash cut
//! short. A clean mark is the record behind them. It carries the flushed epoch, the flushed records and every
//! stream's durable frames; rot in the mark itself loses nothing. A clean close needs none, its checkpoint
//! says the same.
//! Design: docs/design/object.md#clean-mark
//! Invariants
//! - A mark claims only what was durable when it was written.
//! - Nothing happened since the last one: no write, no flush.
//!
//! Not here: when (the owner of the store looks at [`crate::Store::activity`] and marks when it stands still;
//! this crate has no clock and no thread).

use crate::{
    Lsn, StoreError,
    commit::sync::sync,
    engine::admission::{admit_op, enter_internal},
    format::ops::RecordOp,
    state::{StoreCore, StoreState, commit::clean_mark::CleanMark},
};
use std::sync::Arc;

/// Streams named in one mark, so that it fits into the smallest journal's record.
const STREAMS_MAX: usize = 64;

/// See `Store::write_clean_mark`.
pub(crate) fn write_clean_mark(store: &Arc<StoreCore>) -> Result<bool, StoreError> {
    let mut any = false;
    loop {
        let mut state = store.state.lock();
        if store.shape.read_only || state.fence.is_closed() || is_marked(&state) {
            return Ok(any);
        }
        state.writable()?;
        // What was ordered and not flushed becomes durable first: a mark can name it only then.
        let last = state.commit.last_lsn();
        if state.commit.durable_lsn() < last {
            drop(state);
            sync(store, Lsn(last)).wait()?;
            continue;
        }
        let streams = unnamed_frames(&state);
        let complete = streams.len() < STREAMS_MAX;
        let op = RecordOp::Durable { streams };
        let Some(admitted) = admit_op(store, &mut state, &op)? else {
            continue;
        };
        let lsn = enter_internal(&mut state, &op, admitted);
        state.commit.set_clean_mark(CleanMark { lsn, complete });
        drop(state);
        sync(store, Lsn(lsn)).wait()?;
        any = true;
    }
}

fn is_marked(state: &StoreState) -> bool {
    let CleanMark { lsn, complete } = state.commit.clean_mark();
    complete && lsn == state.commit.last_lsn() && unnamed_frames(state).is_empty()
}

/// Streams with durable frames that no record names yet, and how far they are durable.
fn unnamed_frames(state: &StoreState) -> Vec<(u64, u64)> {
    let unnamed = state.tables.streams().filter_map(|(id, stream)| {
        let tail = state.streams.tail(id).filter(|tail| !tail.damaged)?;
        (tail.durable > stream.durable).then_some((id, tail.durable))
    });
    unnamed.take(STREAMS_MAX).collect()
}
