//! Checkpoint: writes the tables beside the live ones and switches to them, so that the journal can be
//! reused.
//!
//! Steps, driven by the engine:
//! - Right after a record was written, when tables and journal agree, take their chunks as they are. Encode and
//!   write the chain page by page, while commits go on.
//! - Flush, write the superblock, flush.
//! - Only then free the journal before the checkpoint and the old chain.
//!
//! Every chain page is written twice, half a store apart: without the tables there is no store.
//! Design: docs/design/object.md#checkpoint
//! Invariants
//! - A checkpoint never overwrites the live one, and a flush separates it from its superblock (OBJ-8).
//! - The journal's tail moves only when the superblock that passes it is durable (OBJ-7).
//! - The superblock waits until every group in the checkpoint is complete, including the frames that its
//!   commits come after. It also waits for every later group of the epochs that it calls durable (OBJ-15).
//! - If the journal has no room for the open group, the checkpoint replaces its record. No record is written
//!   until the superblock is durable, since it would follow commits that no record holds. The checkpoint also
//!   takes the record's number: a replay from an older superblock then finds a record missing that later ones
//!   call durable.
//! - The tables in it are those of its position: commits while it is written do not change it (OBJ-35).
//!
//! Not here: encoding of the tables (`snapshot`), reading them back (`recovery`).

use crate::{
    flaw::StoreFlaw,
    format::{
        checkpoint::{self, HEAD_LEN},
        ops::{DurableFrames, mount_pages_max},
        run::PageRun,
        superblock::{COPIES, SUPERBLOCK_LEN, Superblock},
    },
    space::home::PageHome,
    state::{
        StoreCore, StoreState,
        checkpoint::{CheckpointStep, NewCheckpoint},
        queue::IoPurpose,
        stream::StreamTail,
    },
    tables::{
        chain::{ChainEncoder, ChainPlace, page_capacity},
        snapshot::{self, CheckpointParts},
    },
};
use copal_device::{AlignedBuf, Io, IoClass, IoKind};
use std::ops::Range;

/// Journal length beyond which a checkpoint is due; it bounds the reads and the memory of recovery.
const REPLAY_BYTES_MAX: u64 = 64 << 20;

/// Chain pages that are written at a time. A commit beside a checkpoint waits for no more of them.
pub(crate) const CHAIN_PAGES_IN_FLIGHT: u32 = 4;

/// Placement class of checkpoints.
pub(crate) const CHECKPOINT_CLASS: usize = 4;
const CHECKPOINT_HOME: PageHome =
    PageHome { class: CHECKPOINT_CLASS, owner: PageHome::STORE, in_group: false, is_frame: false };
/// Placement class of the second copies.
const COPY_CLASS: usize = 6;
const COPY_HOME: PageHome =
    PageHome { class: COPY_CLASS, owner: PageHome::STORE_COPY, in_group: false, is_frame: false };

/// Called after a record was submitted, when tables and journal agree.
pub(crate) fn after_close(store: &StoreCore, state: &mut StoreState) {
    let due = checkpoint_is_due(store, state);
    if due && state.checkpoint.is_idle() {
        start_checkpoint(store, state);
    }
}

/// Not before the mount is durable: a checkpoint allocates pages.
fn checkpoint_is_due(store: &StoreCore, state: &StoreState) -> bool {
    let journal = state.space.placement().journal();
    let used = journal.used_pages();
    let half_full = used * 2 > journal.pages() || store.shape.byte(used) > REPLAY_BYTES_MAX;
    ((half_full || journal.is_short()) && state.checkpoint.is_mounted()) || state.checkpoint.is_forced()
}

fn start_checkpoint(store: &StoreCore, state: &mut StoreState) {
    // The tables include the open group: without a record, this checkpoint makes it durable.
    let absorbs = !state.commit.is_open_empty();
    let chain = state.commit.chain();
    let position = snapshot::CheckpointPosition {
        uuid: store.shape.uuid,
        lsn: state.commit.last_lsn(),
        next_seq: chain.seq + u64::from(absorbs),
        journal_head: state.space.placement().journal().head(),
        epoch: state.commit.open_epoch(),
        mount_pages: match state.checkpoint.is_last() {
            true => mount_pages_max(state.tables.streams().count(), store.shape.page_bytes),
            false => 0,
        },
        segment: state.space.placement().journal().segment(),
    };
    let (chain_seed, mount) = (chain.previous, chain.mount);
    let zones = state.space.placement().written_zones();
    let hollow = hollow_ranges_to_list(store, state);
    let body_len = snapshot::encoded_len(&state.tables, zones.len() as u64, hollow.len() as u64);
    let Some(places) = chain_space(store, state, body_len as usize) else {
        return;
    };
    for (id, durable) in frames_to_name(store, state) {
        state.tables.name_frames(id, durable);
    }
    let parts = CheckpointParts::of(&state.tables, &position, &zones, &hollow);
    // A recovery that begins here knows the places and promises of all streams. One from an older checkpoint
    // expects longer frames, which is safe.
    state.tables.checkpoint_version = checkpoint::VERSION;
    let runs: Vec<PageRun> = places.iter().flat_map(ChainPlace::runs).collect();
    let absorbed = absorbs.then(|| {
        let (group, freed) = state.commit.absorb_open_group();
        state.space.quarantine(position.epoch, freed);
        group
    });
    let encoder = ChainEncoder::new(position.lsn, parts, places, store.shape.page_bytes);
    let live = state.checkpoint.superblock();
    let superblock = Superblock {
        generation: live.generation + 1,
        size_bytes: state.tables.pages * store.shape.page_bytes as u64,
        checkpoint_lsn: position.lsn,
        chain_seed,
        mount,
        profile: state.checkpoint.profile().to_owned(),
        ..live.clone()
    };
    let pending = NewCheckpoint {
        superblock,
        runs,
        tail: position.journal_head,
        next_seq: position.next_seq,
        epoch: position.epoch,
        last_group: state.commit.open_group() - 1,
        absorbed,
    };
    if store.shape.broken.by(StoreFlaw::JournalReusedEarly) && state.space.placement().segments().is_some() {
        state.space.placement_mut().journal_mut().reuse(pending.tail);
    }
    state.checkpoint.begin(pending, encoder);
    state.update_checkpoint_reserve();
}

/// Encodes the next chain page and submits its writes, one for each copy. The caller does not hold the mutex.
pub(crate) fn encode_chain_page(store: &StoreCore, mut encoder: Box<ChainEncoder>) -> Vec<Io> {
    let page = encoder.encode_page();
    store.state.lock().checkpoint.return_encoder(encoder);
    let copies = page.into_iter().flat_map(|(place, buf)| {
        let copy = place.copy.map(|copy| (copy, AlignedBuf::padded(&buf, 1)));
        copy.into_iter().chain([(place.run, buf)])
    });
    copies.flat_map(|(run, buf)| store.write_ios(run, vec![buf], IoClass::Background)).collect()
}

/// Space for the chain of a body: two runs per chain page. Shorter runs if free space is fragmented, one run
/// if there is no space for the copy.
fn chain_space(store: &StoreCore, state: &mut StoreState, body_len: usize) -> Option<Vec<ChainPlace>> {
    let page_bytes = store.shape.page_bytes;
    if store.shape.broken.by(StoreFlaw::CheckpointInPlace) {
        let live = state.checkpoint.runs().iter();
        let places: Vec<ChainPlace> = live.map(|&run| ChainPlace { run, copy: None }).collect();
        let capacity = places.iter().map(|place| page_capacity(place.run.pages, page_bytes));
        if capacity.sum::<usize>() >= body_len {
            return Some(places);
        }
    }
    let space = &mut state.space;
    // Otherwise the file of checkpoints would grow with each of them and never be removed.
    space.placement_mut().start_new_file(CHECKPOINT_HOME.owner);
    space.placement_mut().start_new_file(COPY_HOME.owner);
    let mut places: Vec<ChainPlace> = Vec::new();
    let mut left = body_len;
    while places.is_empty() || left > 0 {
        let wanted = (HEAD_LEN + left).min(store.shape.chain_page_bytes).div_ceil(page_bytes) as u32;
        let mut sizes = std::iter::successors(Some(wanted), |size| (*size > 1).then_some(size / 2));
        let found = sizes.find_map(|size| space.allocate_run(size, CHECKPOINT_HOME, false));
        let Some(run) = found else {
            tracing::warn!("no space for a checkpoint yet");
            let runs = places.iter().flat_map(ChainPlace::runs);
            runs.for_each(|run| space.release(run));
            return None;
        };
        left = left.saturating_sub(page_capacity(run.pages, page_bytes));
        places.push(ChainPlace { run, copy: None });
    }
    // If there is no space for a second copy, the page is stored once. The second copies are allocated after
    // all first ones.
    if let Some(first) = places.first() {
        space.placement_mut().aim_far_from(first.run.at, COPY_CLASS);
    }
    for place in &mut places {
        place.copy = space.allocate_run(place.run.pages, COPY_HOME, false);
    }
    Some(places)
}

/// Takes the next step once the flush it waits for has completed.
pub(crate) fn step_checkpoint(store: &StoreCore, state: &mut StoreState) -> bool {
    if state.checkpoint.is_idle()
        && checkpoint_is_due(store, state)
        && (state.commit.is_open_empty() || !state.fits_journal(0, false))
    {
        start_checkpoint(store, state);
        return !state.checkpoint.is_idle();
    }
    if let Some(mut encoder) = state.checkpoint.take_encoder(store.shape.chain_pages_in_flight) {
        if store.shape.broken.by(StoreFlaw::CheckpointOfLiveTables) {
            encoder.follow(&state.tables);
        }
        state.queue.encode(encoder);
        return true;
    }
    let flushed = state.commit.flushed_epoch();
    let one_epoch = store.shape.broken.by(StoreFlaw::CheckpointOneEpoch);
    match state.checkpoint.step() {
        CheckpointStep::Flushing(pending, epoch)
            if one_epoch || flushed >= *epoch && is_complete(store, state, pending) =>
        {
            if let Some(ios) = state.checkpoint.switch().map(superblock_ios) {
                state.queue.submit(IoPurpose::Superblock, ios);
            }
            true
        }
        CheckpointStep::Finishing(_, epoch) if flushed >= *epoch => {
            finish_checkpoint(store, state);
            true
        }
        CheckpointStep::Flushing(_, epoch) | CheckpointStep::Finishing(_, epoch) => {
            let placed = state.inline.unflushed_epoch();
            state.commit.want_epoch(placed.map_or(*epoch, |placed| placed.max(*epoch)));
            false
        }
        CheckpointStep::Idle | CheckpointStep::Writing(..) | CheckpointStep::Switching(_) => false,
    }
}

/// Whether every commit in the checkpoint, and every other commit of an epoch that it calls durable, would
/// survive without it (OBJ-15), also with its inline data (OBJ-38).
fn is_complete(store: &StoreCore, state: &StoreState, pending: &NewCheckpoint) -> bool {
    store.shape.broken.by(StoreFlaw::CheckpointAheadOfFrames)
        || state.commit.is_complete(pending.last_group, pending.epoch, pending.absorbed)
            && (store.shape.broken.by(StoreFlaw::CheckpointAheadOfInline)
                || state.inline.placed_lsn() >= pending.superblock.checkpoint_lsn)
}

fn finish_checkpoint(store: &StoreCore, state: &mut StoreState) {
    let Some(finished) = state.checkpoint.finish() else {
        return;
    };
    state.space.placement_mut().journal_mut().reuse(finished.tail);
    state.commit.pass_checkpoint(finished.next_seq, finished.epoch);
    if !store.shape.broken.by(StoreFlaw::CheckpointInPlace) {
        finished.runs.into_iter().for_each(|run| state.space.release(run));
    }
    state.streams.end_checkpoint();
    if let Some(group) = finished.absorbed {
        state.commit.end_group_write(group);
    }
    state.update_checkpoint_reserve();
}

/// A chain page is written. After the last one, the chain belongs to the epoch that is open now.
pub(crate) fn chain_page_written(state: &mut StoreState) {
    if let Some(epoch) = state.checkpoint.chain_page_written(state.commit.open_epoch()) {
        state.commit.want_epoch(epoch);
    }
}

/// The superblock is written, not yet durable.
pub(crate) fn superblock_written(store: &StoreCore, state: &mut StoreState) {
    let epoch = state.commit.open_epoch();
    let Some(pending) = state.checkpoint.superblock_written(epoch) else {
        return;
    };
    if store.shape.broken.by(StoreFlaw::JournalReusedEarly) {
        state.space.placement_mut().journal_mut().reuse(pending.tail);
    }
    state.commit.want_epoch(epoch);
}

/// Durable frames that a checkpoint names and no earlier one (OBJ-33).
fn frames_to_name(store: &StoreCore, state: &mut StoreState) -> Vec<(u64, DurableFrames)> {
    let named = state.streams.begin_checkpoint();
    if store.shape.broken.by(StoreFlaw::FramesAhead) {
        let newest = |tail: &StreamTail| DurableFrames { next: tail.next, last: None };
        return state.streams.tails().map(|(id, tail)| (id, newest(tail))).collect();
    }
    named
}

/// The hollow runs, as a checkpoint lists them.
fn hollow_ranges_to_list(store: &StoreCore, state: &StoreState) -> Vec<Range<u64>> {
    if store.shape.broken.by(StoreFlaw::HollowUnsaid) {
        return Vec::new();
    }
    state.space.placement().hollow_ranges()
}

/// Writes of a superblock to the two copies of its generation.
pub(crate) fn superblock_ios(superblock: &Superblock) -> Vec<Io> {
    Superblock::places(superblock.generation)
        .into_iter()
        .map(|copy| superblock_io(superblock, copy))
        .collect()
}

/// Write of one copy of a superblock.
pub(crate) fn superblock_io(superblock: &Superblock, copy: usize) -> Io {
    let mut buf = AlignedBuf::zeroed(SUPERBLOCK_LEN);
    buf.copy_from_slice(&superblock.encode(copy as u8));
    Io { at: COPIES[copy], kind: IoKind::Write { buf, fua: false }, class: IoClass::Background }
}

#[cfg(test)]
mod tests;
