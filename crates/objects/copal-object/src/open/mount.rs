//! The mount: its record, or a checkpoint in its place, makes the recovered state the only valid one.
//!
//! Design: docs/design/object.md#recovery OBJ-4, OBJ-9, OBJ-13

use crate::{
    StoreError,
    backend::hostfs::HostFiles,
    engine::{
        pump::{pump, wait_change},
        steps::{advance, close_group},
    },
    flaw::StoreFlaw,
    format::{
        ops::{RecordOp, StreamCut},
        run::PageRun,
    },
    space::SpaceState,
    state::{StoreCore, StoreState},
};
use copal_device::DeviceError;
use parking_lot::MutexGuard;
use std::sync::Arc;

/// The write that makes the mount durable.
enum MountStep {
    /// The record of this group.
    Record { group: u64 },
    /// The checkpoint after `finished` completed ones. The pages `held` are not reused until then.
    Checkpoint { finished: u64, held: Vec<PageRun> },
}

impl MountStep {
    fn is_done(&self, state: &StoreState) -> bool {
        match self {
            MountStep::Record { group } => state.commit.is_group_durable(*group),
            MountStep::Checkpoint { finished, .. } => state.checkpoint.finished() > *finished,
        }
    }

    /// Whether the checkpoint has not begun and cannot: it finds no space.
    fn is_stuck(&self, state: &StoreState) -> bool {
        let is_checkpoint = matches!(self, MountStep::Checkpoint { .. });
        is_checkpoint && !state.queue.has_ios() && state.checkpoint.is_idle()
    }
}

/// Writes the mount record and waits until it is durable. If the journal has no room for the record, a
/// checkpoint with a new chain seed replaces it (OBJ-9). The pages `needed` are not written before.
pub(super) fn mount(inner: &Arc<StoreCore>, needed: &[PageRun]) -> Result<(), StoreError> {
    let mut state = inner.state.lock();
    let mount = state.entropy.next();
    let cuts = cut_streams(inner, &mut state);
    // The mount names the frames of every stream that it cuts, and the next checkpoint their places.
    for cut in &cuts {
        if let Some(durable) = state.streams.tail(cut.id).map(|tail| tail.durable) {
            state.tables.name_frames(cut.id, durable);
        }
    }
    state.streams.name_frames(cuts.iter().map(|cut| cut.id));
    let op = RecordOp::Mount { mount, cuts };
    let old_mount = state.commit.set_mount(mount);
    let has_room = has_room(inner, &state, &op);
    let lsn = state.commit.last_lsn();
    state.enter(&op, lsn);
    let step = if has_room {
        by_record(inner, &mut state)
    } else {
        by_checkpoint(inner, &mut state, old_mount, needed)?
    };
    await_step(inner, &mut state, &step)?;
    if let MountStep::Checkpoint { held, .. } = &step {
        held.iter().for_each(|&run| state.space.release(run));
    }
    state.checkpoint.set_mounted();
    // Mount records may have filled the journal: a checkpoint starts before the first group has to wait for
    // it.
    drop(state);
    pump(inner);
    Ok(())
}

/// Whether the record fits into the journal exactly at the head. A dropped record may still stand there: if
/// the mount record skipped it, recovery would find it again.
fn has_room(inner: &StoreCore, state: &StoreState, op: &RecordOp) -> bool {
    let mut encoded = Vec::new();
    op.encode(&mut encoded);
    let journal = state.space.placement().journal();
    journal.fits_at_head(encoded.len()) && (!inner.shape.mount_by_checkpoint || journal.has_data())
}

fn by_record(inner: &StoreCore, state: &mut StoreState) -> MountStep {
    let group = state.commit.open_group();
    state.commit.force_record();
    // In segments, the record may have to wait for the header of the next one.
    let closed = close_group(inner, state);
    debug_assert!(closed || state.space.placement().journal().has_data(), "the record was measured");
    MountStep::Record { group }
}

/// Makes the mount durable by a checkpoint: the tables are as the record would have left them.
fn by_checkpoint(
    inner: &StoreCore,
    state: &mut StoreState,
    old_mount: u64,
    needed: &[PageRun],
) -> Result<MountStep, StoreError> {
    let epoch = state.commit.open_epoch();
    let freed = state.commit.drop_open_ops();
    state.space.quarantine(epoch, freed);
    // If this is interrupted, the next recovery reads the same pages again, so the checkpoint goes elsewhere.
    let files = inner.files.as_deref().map(|files| (files, inner.shape.page_bytes as u64));
    let held = hold(&mut state.space, files, needed)?;
    if inner.shape.broken.by(StoreFlaw::KeepChain) {
        state.commit.set_mount(old_mount);
    } else {
        // It takes the record's number: from an older superblock on, this record is missing.
        let seed = state.entropy.next();
        state.commit.begin_chain(seed);
    }
    state.checkpoint.force();
    let finished = state.checkpoint.finished();
    Ok(MountStep::Checkpoint { finished, held })
}

fn await_step(
    inner: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    step: &MountStep,
) -> Result<(), StoreError> {
    loop {
        if let Some(error) = state.fence.failure() {
            return Err(StoreError::Device(error.clone()));
        }
        if let MountStep::Record { group } = step {
            state.commit.want_group(*group);
        }
        advance(inner, state);
        if step.is_done(state) {
            return Ok(());
        }
        if step.is_stuck(state) {
            let page = inner.shape.page_bytes as u64;
            return Err(StoreError::NoSpace { needed_bytes: page, free_bytes: 0 });
        }
        wait_change(inner, state);
    }
}

/// Allocates those of `runs` that are free, checking each page once. Dropped records may name pages beyond
/// the store's size or, in a directory, behind the end of a file. No data was read there, so nothing has to
/// be preserved. `files` comes with the page size in bytes.
pub(super) fn hold(
    space: &mut SpaceState,
    files: Option<(&HostFiles, u64)>,
    runs: &[PageRun],
) -> Result<Vec<PageRun>, DeviceError> {
    let clipped = runs.iter().filter_map(|&run| space.placement().clip(run)).filter_map(|run| match files {
        Some((files, page_bytes)) => files.clip(run, page_bytes).transpose(),
        None => Some(Ok(run)),
    });
    let mut runs = clipped.collect::<Result<Vec<PageRun>, DeviceError>>()?;
    runs.sort_unstable();
    let mut held: Vec<PageRun> = Vec::new();
    let mut from = 0;
    for run in runs {
        let first = held.len();
        for at in run.at.max(from)..run.end() {
            let page = PageRun::new(at, 1);
            if !space.take(page) {
                continue;
            }
            match held[first..].last_mut() {
                Some(last) if last.end() == at => last.pages += 1,
                _ => held.push(page),
            }
        }
        from = from.max(run.end());
    }
    Ok(held)
}

/// Place where each open stream continues, under a new incarnation (OBJ-13). A damaged stream is not cut, so
/// that the damage is found again.
fn cut_streams(inner: &StoreCore, state: &mut StoreState) -> Vec<StreamCut> {
    let ids: Vec<u64> = state.streams.tails().map(|(id, _)| id).collect();
    let mut cuts = Vec::new();
    for id in ids {
        let (Some(tail), Some(stream)) = (state.streams.tail(id), state.tables.stream(id)) else {
            continue;
        };
        let Some(piece) = stream.pieces.get(tail.piece) else {
            continue;
        };
        if tail.damaged {
            continue;
        }
        let incarnation = if inner.shape.broken.by(StoreFlaw::KeepIncarnation) {
            piece.incarnation
        } else {
            state.entropy.next()
        };
        cuts.push(StreamCut { id, piece: tail.piece as u32, kept: tail.used, next: tail.next, incarnation });
        if tail.used < piece.run.pages {
            state.streams.begin_piece(id);
        }
    }
    cuts
}
