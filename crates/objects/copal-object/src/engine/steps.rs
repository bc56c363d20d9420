//! The engine: steps groups, flushes and checkpoints forward. No thread of its own: called by whoever submits
//! and by completions.
//!
//! A group closes when no flush is under way (so that everything that arrived meanwhile shares the next one),
//! or when it is full. A flush starts when somebody waits for one.
//! Design: docs/design/object.md#driving
//! Invariants
//! - A record carries the epoch open when it is submitted (OBJ-6); the flush of that epoch waits for it and
//!   its data.
//! - Acknowledgements come in commit order, and never after a failed write or flush (OBJ-29).

use crate::{
    Lsn, StoreError,
    checkpoint::{after_close, step_checkpoint},
    flaw::Flaw,
    format::{record, run::Run},
    state::{
        Shape, StoreCore, StoreState, Tag, UNFLUSHED_BYTES_MAX, Waiter,
        epoch::Flushing,
        group::{ClosedGroup, OpenGroup},
        journal::NewRecord,
    },
};
use copal_device::{AlignedBuf, Class, Io, IoKind};

/// Does everything that can be done now.
pub(crate) fn advance(store: &StoreCore, state: &mut StoreState) {
    if state.failure.is_some() {
        fail_waiters(state);
        return;
    }
    loop {
        let mut progress = want_what_is_needed(store, state);
        progress |= may_close_group(store, state) && close_group(store, state);
        progress |= step_checkpoint(store, state);
        progress |= start_flush(state);
        progress |= submit_flush(state);
        if !progress {
            break;
        }
    }
    publish_landed(store, state);
}

/// Turns what callers wait for into epochs that have to be flushed.
fn want_what_is_needed(store: &StoreCore, state: &mut StoreState) -> bool {
    if state.unflushed_bytes > UNFLUSHED_BYTES_MAX {
        let open = state.epochs.open;
        state.epochs.want(open);
        state.unflushed_bytes = 0;
    }
    if let Some(epoch) = state.space.overdue_quarantine() {
        state.drain_epoch = state.drain_epoch.max(epoch);
    }
    if state.drain_epoch <= state.epochs.durable_flushed {
        return false;
    }
    // OBJ-3: first the freeing epoch has to be flushed, then a record that says so.
    if state.epochs.flushed < state.drain_epoch {
        let epoch = state.drain_epoch;
        state.epochs.want(epoch);
        return false;
    }
    // A group may still wait for a frame: when that is written, a record can say so.
    if trusted_epoch(store, state) < state.drain_epoch {
        return false;
    }
    let carried = state.groups.closed.iter().find(|group| group.carries >= state.drain_epoch);
    if let Some(group) = carried {
        let epoch = group.epoch;
        state.epochs.want(epoch);
        return false;
    }
    if state.groups.open.forced {
        return false;
    }
    state.groups.open.forced = true;
    state.groups.open.releasing = true;
    true
}

/// The last epoch that a record may call durable.
fn trusted_epoch(store: &StoreCore, state: &StoreState) -> u64 {
    if store.shape.broken.by(Flaw::FlushedAheadOfFrames) {
        return state.epochs.flushed;
    }
    state.groups.trusted_epoch(state.epochs.flushed)
}

fn may_close_group(store: &StoreCore, state: &StoreState) -> bool {
    if state.groups.is_open_empty() {
        return false;
    }
    let full = state.groups.open.ops.len() > state.journal.record_bytes_max() / 2
        || state.groups.open.transactions > 4096;
    let idle = state.groups.records == 0 && (state.epochs.flushing.is_none() || store.shape.eager);
    full || idle || flush_is_due(state)
}

/// Writes the record of the open group; `false` when the journal has no room for it.
pub(crate) fn close_group(store: &StoreCore, state: &mut StoreState) -> bool {
    // What a checkpoint without a record stands for comes before any record (OBJ-16).
    if state.checkpointer.absorbed().is_some() {
        return false;
    }
    let group = &state.groups.open;
    let Some(position) = state.journal.position_of(group.ops.len(), group.releasing) else {
        return false;
    };
    let pages = record::pages_for(group.ops.len(), store.shape.page_bytes) as u64;
    assert!(
        record::HEADER_LEN + group.ops.len() <= state.journal.record_bytes_max(),
        "a record is no longer than recovery reads"
    );
    let mut group = std::mem::take(&mut state.groups.open);
    state.groups.open = OpenGroup { number: group.number + 1, ..OpenGroup::default() };
    let stale = store.shape.broken.by(Flaw::StampedClosing);
    let epoch = match state.epochs.flushing {
        Some(Flushing::Closing(epoch) | Flushing::Submitted(epoch)) if stale => epoch,
        _ => state.epochs.begin_write(),
    };
    let mut buf = AlignedBuf::zeroed(pages as usize * store.shape.page_bytes);
    let carries = trusted_epoch(store, state);
    let first_lsn = if group.transactions == 0 { state.groups.last_lsn + 1 } else { group.first_lsn };
    let record = NewRecord {
        position,
        ops: &group.ops,
        transactions: group.transactions,
        first_lsn,
        epoch,
        flushed_epoch: carries,
    };
    state.journal.write(&record, &mut buf);
    state.space.quarantine(epoch, std::mem::take(&mut group.freed));
    let last_lsn = first_lsn + u64::from(group.transactions) - 1;
    state.groups.records += 1;
    state.groups.closed.push_back(ClosedGroup {
        number: group.number,
        epoch,
        last_lsn,
        next_seq: state.journal.seq,
        carries,
        outstanding: group.outstanding + 1,
    });
    let run = state.journal.run(position, pages);
    state.unflushed_bytes += buf.len() as u64;
    let ios = store.write_ios(run, vec![buf], Class::Commit);
    let counted = if stale && epoch < state.epochs.open { u64::MAX } else { epoch };
    state.outbox.push((Tag::Record { group: group.number, epoch: counted }, ios));
    after_close(store, state);
    true
}

/// Whether a flush should start as soon as none is under way.
fn flush_is_due(state: &StoreState) -> bool {
    if state.epochs.flushing.is_some() {
        return false;
    }
    state.wanted_lsn > state.groups.durable_lsn || state.epochs.wanted > state.epochs.flushed
}

/// Closes the open epoch when somebody waits for something in it.
fn start_flush(state: &mut StoreState) -> bool {
    if state.epochs.flushing.is_some() {
        return false;
    }
    // A group whose epoch is flushed may still wait for a frame; another flush would not help it.
    let flushed = state.epochs.flushed;
    let commits = state.wanted_lsn > state.groups.durable_lsn
        && state.groups.closed.back().is_some_and(|group| group.epoch > flushed);
    if !commits && state.epochs.wanted <= state.epochs.flushed {
        return false;
    }
    state.epochs.close();
    state.unflushed_bytes = 0;
    true
}

fn submit_flush(state: &mut StoreState) -> bool {
    let Some(epoch) = state.epochs.take_ready() else {
        return false;
    };
    state.outbox.push((Tag::Flush { epoch }, vec![Io { at: 0, kind: IoKind::Flush, class: Class::Commit }]));
    true
}

/// Groups whose epoch is flushed and whose writes, the frames they depend on among them, have completed.
fn note_durable_groups(state: &mut StoreState) {
    let flushed = state.epochs.flushed;
    if let Some((carried, seq)) = state.groups.flushed(flushed) {
        state.epochs.durable_flushed = state.epochs.durable_flushed.max(carried);
        state.journal.flushed_seq = state.journal.flushed_seq.max(seq);
    }
}

/// Gives back what may be reused, and answers those whose turn has come.
pub(crate) fn publish_landed(store: &StoreCore, state: &mut StoreState) {
    note_durable_groups(state);
    drain_quarantine(store, state);
    state.acknowledge_frames();
    let (written, durable) = (state.groups.written_lsn, state.groups.durable_lsn);
    while state.written_waiters.front().is_some_and(|waiter| waiter.lsn <= written) {
        let Some(Waiter { lsn, completer }) = state.written_waiters.pop_front() else {
            break;
        };
        state.deliver(completer, Ok(Lsn(lsn)));
    }
    while state.durable_waiters.front().is_some_and(|waiter| waiter.lsn <= durable) {
        let Some(Waiter { lsn, completer }) = state.durable_waiters.pop_front() else {
            break;
        };
        state.deliver(completer, Ok(Lsn(lsn)));
    }
}

fn drain_quarantine(store: &StoreCore, state: &mut StoreState) {
    let broken = store.shape.broken;
    let reusable = if broken.by(Flaw::ReuseAtOnce) {
        u64::MAX
    } else if broken.by(Flaw::ReuseAfterFlush) {
        state.epochs.flushed
    } else if broken.by(Flaw::ReuseAfterTwoFlushes) {
        state.epochs.flushed.saturating_sub(1)
    } else {
        state.epochs.durable_flushed
    };
    let recent = &mut state.recent;
    state.space.drain(reusable, |run| recent.forget(run));
    give_back(store, state);
}

fn fail_waiters(state: &mut StoreState) {
    let Some(failure) = state.failure.clone() else {
        return;
    };
    state.outbox.clear();
    let waiters: Vec<Waiter> =
        state.written_waiters.drain(..).chain(state.durable_waiters.drain(..)).collect();
    for waiter in waiters {
        state.deliver(waiter.completer, Err(StoreError::Device(failure.clone())));
    }
    state.fail_frames(&failure);
}

/// Queues what the device may forget: blocks and files that nothing owns any more.
pub(crate) fn give_back(store: &StoreCore, state: &mut StoreState) {
    for run in state.space.allocator.take_gone() {
        let io = discard_io(&store.shape, run);
        state.outbox.push((Tag::Discard { run }, vec![io]));
    }
}

/// Tells the device that `run` is not needed any more.
pub(crate) fn discard_io(shape: &Shape, run: Run) -> Io {
    Io {
        at: shape.byte(run.at),
        kind: IoKind::Discard(shape.byte(run.pages.into())),
        class: Class::Background,
    }
}
