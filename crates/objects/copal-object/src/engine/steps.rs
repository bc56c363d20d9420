//! Steps of the engine: close the open group, checkpoint, flush, answer.
//!
//! A group closes when no flush is in progress (so that all transactions that arrive during a flush share the
//! next one), or when it is full. A flush starts when a caller waits for one.
//! Design: docs/design/object.md#driving
//! Invariants
//! - A record carries the epoch that is open when it is submitted (OBJ-6); the flush of that epoch waits for
//!   the record and its data.
//! - Acknowledgements come in commit order, and never after a failed write or flush (OBJ-29).

use crate::{
    StoreError,
    checkpoint::{after_close, step_checkpoint},
    engine::{cleaner::step_cleaner, inline_batch::place_inline},
    flaw::StoreFlaw,
    format::run::PageRun,
    state::{StoreCore, StoreShape, StoreState, commit::ClosedRecord, queue::IoPurpose},
};
use copal_device::{Io, IoClass, IoKind};

/// Takes every step that is possible now.
pub(crate) fn advance(store: &StoreCore, state: &mut StoreState) {
    if state.fence.failure().is_some() {
        fail_waiters(state);
        return;
    }
    loop {
        while advance_commits(store, state) {}
        free_and_answer(store, state);
        // The cleaner goes on once its victims have left the quarantine.
        if !step_cleaner(store, state, close_group) {
            break;
        }
    }
}

/// Takes one step each of groups, checkpoint, cleaner and flushes; `false`: none was possible.
fn advance_commits(store: &StoreCore, state: &mut StoreState) -> bool {
    let mut progress = want_flushes(store, state);
    progress |= write_zeros(store, state);
    progress |= write_segment_header(store, state);
    progress |= may_close_group(store, state) && close_group(store, state);
    progress |= step_checkpoint(store, state);
    progress |= place_inline(store, state);
    progress |= step_cleaner(store, state, close_group);
    progress |= state.commit.start_flush();
    progress |= submit_flush(state);
    progress
}

fn may_close_group(store: &StoreCore, state: &StoreState) -> bool {
    state.commit.may_close_group(state.space.placement().journal(), store.shape.eager)
}

/// Writes the header of the segment that records continue in next, if it is not written yet.
fn write_segment_header(store: &StoreCore, state: &mut StoreState) -> bool {
    let journal = state.space.placement_mut().journal_mut();
    let Some((run, page)) = journal.take_header() else {
        return false;
    };
    let epoch = state.commit.begin_write(&[], 0);
    let io = store.write_io(run.at, page, IoClass::Foreground);
    state.queue.submit(IoPurpose::SegmentHeader { epoch }, vec![io]);
    true
}

/// Fills a part of a segment in which records will lie. Recovery reads pages that look free until it has mounted.
fn write_zeros(store: &StoreCore, state: &mut StoreState) -> bool {
    if !state.checkpoint.is_mounted() || state.writable().is_err() {
        return false;
    }
    let Some(run) = state.space.placement_mut().journal_mut().take_zeros() else {
        return false;
    };
    let kind = IoKind::WriteZeroes(store.shape.byte(run.pages.into()));
    let io = Io { at: store.shape.byte(run.at), kind, class: IoClass::Background };
    state.queue.submit(IoPurpose::Zeros { run }, vec![io]);
    if store.shape.broken.by(StoreFlaw::ZerosNotAwaited) {
        state.space.placement_mut().journal_mut().zeros_written(run);
    }
    true
}

/// Requests flushes for waiting callers and for an overdue quarantine.
fn want_flushes(store: &StoreCore, state: &mut StoreState) -> bool {
    state.commit.limit_unflushed();
    if let Some(epoch) = state.space.overdue_quarantine() {
        state.space.want_drain(epoch);
    }
    let trusted = trusted_epoch(store, state);
    state.commit.want_drain(state.space.drain_epoch(), trusted)
}

/// The last epoch that a record may call durable.
fn trusted_epoch(store: &StoreCore, state: &StoreState) -> u64 {
    if store.shape.broken.by(StoreFlaw::FlushedAheadOfFrames) {
        return state.commit.flushed_epoch();
    }
    state.commit.trusted_epoch()
}

/// Writes the record of the open group; `false` when the journal has no room for it.
pub(crate) fn close_group(store: &StoreCore, state: &mut StoreState) -> bool {
    // A checkpoint without a record precedes any record (OBJ-16).
    let waits = !store.shape.broken.by(StoreFlaw::RecordAheadOfCheckpoint);
    if waits && state.checkpoint.absorbed().is_some() {
        return false;
    }
    let carries = trusted_epoch(store, state);
    let stale = store.shape.broken.by(StoreFlaw::StampedClosing);
    let journal = state.space.placement_mut().journal_mut();
    let Some(record) = state.commit.close_group(journal, store.shape.page_bytes, carries, stale) else {
        // A backend with segments may wait for the header of the next one.
        if let Some(epoch) = journal.awaited_epoch() {
            state.commit.want_epoch(epoch);
        }
        return false;
    };
    let ClosedRecord { group, epoch, run, buf, freed } = record;
    state.space.quarantine(epoch, freed);
    let ios = store.write_ios(run, vec![buf], IoClass::Commit);
    let counted = if stale && epoch < state.commit.open_epoch() { u64::MAX } else { epoch };
    state.queue.submit(IoPurpose::Record { group, epoch: counted, at: run.at }, ios);
    after_close(store, state);
    true
}

fn submit_flush(state: &mut StoreState) -> bool {
    let Some(epoch) = state.commit.take_flush() else {
        return false;
    };
    let flush = Io { at: 0, kind: IoKind::Flush, class: IoClass::Commit };
    state.queue.submit(IoPurpose::Flush { epoch }, vec![flush]);
    true
}

/// Frees reusable pages, and answers callers whose commits have reached their acknowledgement.
fn free_and_answer(store: &StoreCore, state: &mut StoreState) {
    state.commit.note_durable_groups();
    drain_quarantine(store, state);
    state.acknowledge_frames();
    while let Some((completer, lsn)) = state.commit.take_answer() {
        state.queue.deliver(completer, Ok(lsn));
    }
}

fn drain_quarantine(store: &StoreCore, state: &mut StoreState) {
    let broken = store.shape.broken;
    let reusable = if broken.by(StoreFlaw::ReuseAtOnce) {
        u64::MAX
    } else if broken.by(StoreFlaw::ReuseAfterFlush) {
        state.commit.flushed_epoch()
    } else if broken.by(StoreFlaw::ReuseAfterTwoFlushes) {
        state.commit.flushed_epoch().saturating_sub(1)
    } else {
        state.commit.durable_flushed()
    };
    state.space.drain(reusable);
    give_back(store, state);
}

/// Answers every waiter with the failure, and drops queued commands.
fn fail_waiters(state: &mut StoreState) {
    let Some(failure) = state.fence.failure().cloned() else {
        return;
    };
    state.queue.drop_ios();
    for completer in state.commit.take_waiters() {
        state.queue.deliver(completer, Err(StoreError::Device(failure.clone())));
    }
    for completer in state.streams.take_waiters() {
        state.queue.deliver(completer, Err(StoreError::Device(failure.clone())));
    }
}

/// Queues discards of blocks and files that have no owner any more.
pub(crate) fn give_back(store: &StoreCore, state: &mut StoreState) {
    for run in state.space.placement_mut().take_discardable() {
        let io = discard_io(&store.shape, run);
        state.queue.submit(IoPurpose::Discard { run }, vec![io]);
    }
    discard_free_space(store, state);
}

/// Queues a discard of free space, if one is due. Recovery reads pages that look free until it has mounted.
fn discard_free_space(store: &StoreCore, state: &mut StoreState) {
    if !state.space.discards().is_due() || !state.checkpoint.is_mounted() || state.writable().is_err() {
        return;
    }
    if let Some(run) = state.space.begin_discard(store.load()) {
        let io = discard_io(&store.shape, run);
        state.queue.submit(IoPurpose::Discard { run }, vec![io]);
        if store.shape.broken.by(StoreFlaw::DiscardReleasedFirst) {
            let load = store.load();
            state.space.discarded(run, true, 0, load);
        }
    }
}

/// A discard command for `run`.
pub(crate) fn discard_io(shape: &StoreShape, run: PageRun) -> Io {
    Io {
        at: shape.byte(run.at),
        kind: IoKind::Discard(shape.byte(run.pages.into())),
        class: IoClass::Background,
    }
}
