//! Placing: inline pages are written to their places, in the order of their addresses.
//!
//! Design: docs/design/object.md#inline-data
//! Invariants
//! - One batch is in flight. Its pages are pinned, so that none is reused before the write has ended.

use crate::{
    flaw::StoreFlaw,
    format::run::PageRun,
    state::{StoreCore, StoreState, queue::IoPurpose},
};
use copal_device::IoClass;

/// Submits the next batch, if one is due.
pub(crate) fn place_inline(store: &StoreCore, state: &mut StoreState) -> bool {
    // Before the mount, only a checkpoint in its place needs the pages.
    if store.shape.read_only || !state.checkpoint.is_mounted() && state.checkpoint.is_idle() {
        return false;
    }
    let needed = match store.shape.broken.by(StoreFlaw::CheckpointAheadOfInline) {
        true => None,
        false => state.checkpoint.pending().map(|pending| pending.superblock.checkpoint_lsn),
    };
    let Some(batch) = state.inline.take(needed, store.shape.io_pages()) else {
        return false;
    };
    let runs: Vec<PageRun> = batch.runs.iter().map(|(run, _)| *run).collect();
    let pin = state.space.pin(runs);
    let ios = batch.runs.into_iter().map(|(run, buf)| store.write_io(run.at, buf, IoClass::Background));
    let ios = ios.collect();
    state.queue.submit(IoPurpose::Placing { pin }, ios);
    true
}

/// A batch is written, not yet durable.
pub(crate) fn batch_placed(state: &mut StoreState, pin: u64) {
    let pins = state.inline.written(state.commit.open_epoch());
    pins.into_iter().chain([pin]).for_each(|pin| {
        state.space.unpin(pin);
    });
    if state.checkpoint.pending().is_some() {
        state.commit.want_epoch(state.commit.open_epoch());
    }
}
