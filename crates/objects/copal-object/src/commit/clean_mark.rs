//! The clean mark of an idle store: an empty record that lists the durable data, so that later damage is
//! distinguished from a crash.
//!
//! Nothing follows the last record of a journal, the data of the last epoch and the last frame of a stream,
//! so nothing says that they were durable. If they rot, an opening takes the damage for an interrupted write.
//! A clean mark is a record behind them. It carries the flushed epoch, the flushed records and every stream's
//! durable frames; rot in the mark itself loses nothing. A clean close needs no mark, since its checkpoint
//! says the same.
//! Design: docs/design/object.md#clean-mark
//! Invariants
//! - A mark claims only data that was durable when the mark was written.
//! - No write and no flush happened since the last mark.
//!
//! Not here: the time of a mark. The owner of the store watches [`crate::Store::activity`] and writes a mark
//! when it stops growing; this crate has no clock and no thread.

use crate::{
    Lsn, StoreError,
    commit::sync::sync,
    engine::{
        admission::{admit_op, enter_internal},
        pump::pump,
    },
    format::ops::{RecordOp, StreamFrames},
    state::{StoreCore, StoreState, commit::clean_mark::CleanMark},
};
use std::sync::Arc;

/// Streams named in one mark, so that it fits into a record of the smallest journal.
const STREAMS_MAX: usize = 64;

/// See `Store::write_clean_mark`.
pub(crate) fn write_clean_mark(store: &Arc<StoreCore>) -> Result<bool, StoreError> {
    let mut any = false;
    loop {
        let mut state = store.state.lock();
        if store.shape.read_only || state.fence.is_closed() || is_marked(&state) {
            let discards = state.space.discards().is_due();
            drop(state);
            if discards {
                // The device was busy when the last one ended.
                pump(store);
            }
            return Ok(any);
        }
        state.writable()?;
        // Unflushed commits become durable first, since a mark can list only durable ones.
        let last = state.commit.last_lsn();
        if state.commit.durable_lsn() < last {
            drop(state);
            sync(store, Lsn(last)).wait()?;
            continue;
        }
        let streams = unnamed_frames(&state);
        let complete = streams.len() < STREAMS_MAX;
        let named: Vec<u64> = streams.iter().map(|frames| frames.id).collect();
        let op = match state.tables.names_frames() {
            true => RecordOp::Frames { streams },
            // An older release may still read this journal.
            false => RecordOp::Durable {
                streams: streams.iter().map(|frames| (frames.id, frames.durable.next)).collect(),
            },
        };
        let Some(admitted) = admit_op(store, &mut state, &op)? else {
            continue;
        };
        let lsn = enter_internal(&mut state, &op, admitted);
        state.streams.name_frames(named.into_iter());
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

/// Streams with durable frames that no record names yet, and these frames.
fn unnamed_frames(state: &StoreState) -> Vec<StreamFrames> {
    let unnamed = state.streams.unnamed_frames().filter_map(|(id, durable)| {
        let pages_max = state.tables.stream(id)?.frame_pages_max;
        Some(StreamFrames { id, durable, pages_max })
    });
    unnamed.take(STREAMS_MAX).collect()
}
