//! Cleaner: empties segments in which most pages have no owner, so that they can be used again.
//!
//! A round takes the segments with the fewest owned pages, finds the owners in the tables, copies the pages to a head
//! of their own and records the moves. The old pages then pass through the quarantine like any freed page.
//!
//! Design: docs/design/object.md#cleaner OBJ-20, OBJ-36
//! Invariants
//! - A move is recorded after its copy is written, with the sum of the copy; until the record is durable, the old
//!   pages stay.
//! - A caller that waits for space drives the cleaner by the same number of available pages that made it wait.
//!
//! Not here: the segments (`backend::log`), the operation on the tables (`tables::moves`).

pub(crate) mod choice;
pub(crate) mod copy;

use crate::{
    flaw::StoreFlaw,
    format::{ops::RecordOp, run::PageRun},
    state::{
        StoreCore, StoreState,
        cleaner::{BatchCopy, CleaningRound, RoundStep, StuckSegment, plan::PartSearch},
        commit::group::GroupRoom,
    },
};
use choice::{CleaningNeed, CleaningVictims, choose_victims, due_need};
use std::collections::{BTreeSet, VecDeque};

/// Most bytes that a part adds to the tables: its extent is cut at both ends.
const TABLE_BYTES_PER_PART: u64 = 2 * 16;
/// Bytes of a move in a record, without its parts.
const MOVE_BYTES: usize = 1 + 12 + 4 + 8 + 4;

/// Closes the open group; `false`: its record has no room.
type CloseGroup = fn(&StoreCore, &mut StoreState) -> bool;

/// Takes the next step of the cleaner.
pub(crate) fn step_cleaner(store: &StoreCore, state: &mut StoreState, close_group: CloseGroup) -> bool {
    if state.fence.is_closed() {
        return abandon(state);
    }
    let Some(round) = &mut state.cleaner.round else {
        return due_need(store, state).is_some_and(|need| begin_round(store, state, need));
    };
    match std::mem::replace(&mut round.step, RoundStep::Copying) {
        RoundStep::Ready if round.parts.is_empty() => state.cleaner.set_step(RoundStep::Draining(None)),
        RoundStep::Ready => copy::start(store, state),
        RoundStep::Planning => {
            round.step = RoundStep::Planning;
            false
        }
        RoundStep::Copying => false,
        RoundStep::Copied(copy) => enter_moves(store, state, copy, close_group),
        RoundStep::Draining(epoch) => drain(store, state, epoch, close_group),
    }
}

/// Begins a round. `false`: no segment is worth it.
pub(crate) fn begin_round(store: &StoreCore, state: &mut StoreState, need: CleaningNeed) -> bool {
    let CleaningVictims { segments: victims, borrows } = choose_victims(store, state, need);
    if victims.is_empty() {
        state.cleaner.searched_at = Some(state.space.placement().ownerless_pages());
        return false;
    }
    state.cleaner.searched_at = None;
    state.space.placement_mut().lend_to_survivors(borrows);
    if let Some(segments) = state.space.placement().segments() {
        state.queue.search_parts(PartSearch::new(&state.tables, segments, &victims));
        let parts = VecDeque::new();
        let (step, changed) = (RoundStep::Planning, BTreeSet::new());
        state.cleaner.round = Some(CleaningRound { victims, parts, step, is_cut_short: false, changed });
    }
    true
}

/// The store is being closed: drops a round that has nothing in flight.
fn abandon(state: &mut StoreState) -> bool {
    state.space.placement_mut().lend_to_survivors(false);
    match state.cleaner.round.take() {
        Some(CleaningRound { step: RoundStep::Copied(copy), .. }) => {
            drop_copy(state, copy.pin, copy.to);
            true
        }
        Some(round) if matches!(round.step, RoundStep::Copying) => {
            state.cleaner.round = Some(round);
            false
        }
        Some(_) => true,
        None => false,
    }
}

/// The pages of a copy are not needed.
fn drop_copy(state: &mut StoreState, pin: u64, to: PageRun) {
    state.space.unpin(pin);
    state.space.release(to);
    state.cleaner.copy_pages = 0;
}

/// Enters the moves of those parts that nobody has changed meanwhile.
fn enter_moves(store: &StoreCore, state: &mut StoreState, copy: BatchCopy, close_group: CloseGroup) -> bool {
    let mut parts = copy.parts.clone();
    state.keep_unchanged_parts(&mut parts);
    if parts.is_empty() {
        drop_copy(state, copy.pin, copy.to);
        return state.cleaner.set_step(RoundStep::Ready);
    }
    let ops_bytes = MOVE_BYTES + parts.len() * crate::format::moved_part::MovedPart::LEN;
    let table_bytes = TABLE_BYTES_PER_PART * parts.len() as u64;
    let admitted = match state.find_room(ops_bytes, true) {
        Ok(GroupRoom::Admitted(admitted)) if state.pages_for_tables(table_bytes, true) == 0 => admitted,
        Ok(GroupRoom::GroupFull) => {
            let epoch = state.space.placement().journal().awaited_epoch();
            epoch.into_iter().for_each(|epoch| state.commit.want_epoch(epoch));
            state.cleaner.set_step(RoundStep::Copied(copy));
            return !state.commit.is_open_empty() && close_group(store, state);
        }
        Ok(GroupRoom::JournalFull) => {
            state.cleaner.set_step(RoundStep::Copied(copy));
            return false;
        }
        // The next checkpoint would not fit.
        Ok(GroupRoom::Admitted(_)) | Err(_) => {
            drop_copy(state, copy.pin, copy.to);
            return state.cleaner.cut_short();
        }
    };
    let lsn = state.commit.take_lsn(admitted, true);
    for run in uncovered(copy.to, &parts) {
        state.space.release(run);
    }
    state.cleaner.moved_pages += u64::from(copy.to.pages);
    let op = RecordOp::Move { to: copy.to, sum: copy.sum, epoch: copy.epoch, parts };
    let freed = state.commit.open_freed().len();
    state.enter(&op, lsn);
    state.cleaner.copy_pages = 0;
    state.space.unpin(copy.pin);
    if store.shape.broken.by(StoreFlaw::MovedPagesReusedAtOnce) {
        state.commit.take_open_freed(freed).into_iter().for_each(|run| state.space.release(run));
    }
    state.cleaner.set_step(RoundStep::Ready)
}

/// Pages of `to` that no part has, for parts in the order of their places.
fn uncovered(to: PageRun, parts: &[crate::format::moved_part::MovedPart]) -> Vec<PageRun> {
    let mut covered = 0;
    let mut gaps = Vec::new();
    let ends = parts.iter().map(|part| (part.offset, part.offset + part.from.pages));
    for (from, end) in ends.chain([(to.pages, to.pages)]) {
        if from > covered {
            gaps.push(PageRun::new(to.at + u64::from(covered), from - covered));
        }
        covered = covered.max(end);
    }
    gaps
}

/// Waits until the victims are free: their group closes, its epoch is flushed, a record says so.
fn drain(store: &StoreCore, state: &mut StoreState, epoch: Option<u64>, close_group: CloseGroup) -> bool {
    let Some(epoch) = epoch else {
        if !state.commit.open_freed().is_empty() && !close_group(store, state) {
            state.cleaner.set_step(RoundStep::Draining(None));
            return false;
        }
        return match state.space.quarantine_epoch() {
            Some(epoch) => {
                state.space.want_drain(epoch);
                state.cleaner.set_step(RoundStep::Draining(Some(epoch)))
            }
            None => end_round(state),
        };
    };
    if state.space.is_quarantined(epoch) {
        state.cleaner.set_step(RoundStep::Draining(Some(epoch)));
        return false;
    }
    end_round(state)
}

fn end_round(state: &mut StoreState) -> bool {
    let Some(round) = state.cleaner.round.take() else {
        return false;
    };
    state.space.placement_mut().lend_to_survivors(false);
    let quarantined = choice::quarantined_pages(state);
    let room = state.space.placement().segments_for_survivors(state.space.checkpoint_pages());
    let room = round.is_cut_short.then_some(room);
    if let Some(segments) = state.space.placement().segments() {
        for victim in round.victims.into_iter().filter(|victim| !round.changed.contains(victim)) {
            let owned = segments.owned_pages(victim);
            // Pages of readers become free by themselves.
            if owned > quarantined.get(&victim).copied().unwrap_or(0) {
                state.cleaner.stuck.insert(victim, StuckSegment { owned, room });
            }
        }
    }
    state.cleaner.rounds += 1;
    true
}

#[cfg(test)]
mod tests;
