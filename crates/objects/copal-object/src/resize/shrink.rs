//! Shrinking: unused space goes back to the file system, and is requested again when needed.
//!
//! The end of the file is cut off. Runs inside become *hollow* (`hollow`): their blocks are punched out.
//! Nothing is allocated there until the file system has space for them again, since a full host must not be
//! met inside a commit.
//!
//! Steps:
//! - A checkpoint, so that freed pages leave quarantine.
//! - The choice of the runs, in memory.
//! - A checkpoint with the shorter length and the hollow runs.
//! - Only then the change of the file.
//!
//! A crash in between costs nothing: a file may be longer than its store, and a run listed as hollow may
//! still have its blocks.
//! Invariants
//! - Only free pages are chosen: pages in quarantine or under a pin are not free (OBJ-3, OBJ-5).
//! - Nothing goes back before a durable checkpoint lists it: recovery reads pages that older ones name
//!   (OBJ-17), and a later mount would write where there are no blocks (OBJ-18).
//! - The store's own reserve for deletes and checkpoints, and reservations of callers, stay.
//! - Only one change of the length or of hollow runs happens at a time: pages being filled are not punched.
//!
//! Not here: files of a directory, which are removed with their content (`hostfs`).

use crate::{
    BackendKind, StoreError,
    engine::{close::checkpoint_now, pump::wait_change, steps::discard_io},
    flaw::StoreFlaw,
    format::{
        run::{PageRun, RUN_PAGES_MAX},
        superblock::STORE_BYTES_MIN,
    },
    state::{StoreCore, StoreState},
};
use copal_device::Io;
use parking_lot::MutexGuard;
use std::{ops::Range, sync::Arc};

/// Free space that stays besides the store's own reserve: this, and a share of the rest. Small commits then
/// need no space from the file system. If the file system has filled up meanwhile, upper layers can still
/// delete.
const STAYS_BYTES: u64 = 8 << 20;
const STAYS_ONE_IN: u64 = 32;
/// Shorter free runs stay: small allocations use them.
const HOLLOW_BYTES_MIN: u64 = 64 << 10;
/// Limit on the number of hollow runs, since each checkpoint lists them all.
const HOLLOW_RUNS_MAX: u64 = 1 << 18;
/// Hollow space filled beyond the request.
const FILL_STEP_BYTES: u64 = 32 << 20;
/// Granularity of the file's end.
const CUT_STEP_BYTES: u64 = 1 << 20;
/// Discards in flight.
const DISCARDS: usize = 64;

/// Space returned to the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShrinkReport {
    /// Bytes by which the file became shorter.
    pub cut_bytes: u64,
    /// Bytes inside the file that were free and are hollow now.
    pub hollow_bytes: u64,
}

/// See `Store::shrink`.
pub(crate) fn shrink(store: &Arc<StoreCore>) -> Result<ShrinkReport, StoreError> {
    if store.state.lock().space.placement().journal().has_data() {
        let what = "a store in segments keeps its length; copy it into a smaller one";
        return Err(StoreError::Unsupported { backend: BackendKind::Log.name(), what });
    }
    if !store.shape.broken.by(StoreFlaw::GiveBackEarly) {
        checkpoint_now(store)?;
    }
    if store.files.is_some() {
        return Ok(ShrinkReport::default());
    }
    let mut state = store.state.lock();
    while state.space.is_resizing() {
        state.writable()?;
        wait_change(store, &mut state);
    }
    state.writable()?;
    state.space.begin_resize();
    let early = early(store, &state);
    let hollow_bytes = release_surplus(store, &mut state);
    drop(state);
    let listed = if store.shape.broken.by(StoreFlaw::GiveBackEarly) { Ok(()) } else { checkpoint_now(store) };
    // If the checkpoint failed, nothing is lost: the runs stay hollow in memory and are filled before use.
    let shrunk = listed.and_then(|()| apply_to_file(store, early));
    store.state.lock().space.end_resize();
    store.changed.notify_all();
    Ok(ShrinkReport { cut_bytes: shrunk?, hollow_bytes })
}

/// Chooses the space to return; it is no longer free. Returns the bytes that are hollow now.
fn release_surplus(store: &StoreCore, state: &mut StoreState) -> u64 {
    let page = store.shape.page_bytes as u64;
    let (geometry, pages) = (store.device.geometry(), state.tables.pages);
    let stays = staying_pages(store, state);
    let shortest = (HOLLOW_BYTES_MIN / page).max(pages / HOLLOW_RUNS_MAX);
    let space = &mut state.space;
    space.release_extents();
    let mut free = space.placement().free_ranges();
    if store.shape.gives_lowest {
        free.reverse();
    }
    let surplus = surplus(free, stays, shortest);
    let before = space.placement().hollow_pages();
    if geometry.gives_back {
        let mut removable = [surplus.clone(), space.placement().hollow_ranges()].concat();
        removable.sort_unstable_by_key(|range| range.start);
        let mut end = pages;
        while removable.pop_if(|range| range.end == end).inspect(|range| end = range.start).is_some() {}
        // Keeps one step of the cut end, which becomes hollow: on a full file system this shows that the
        // store was larger.
        let step = CUT_STEP_BYTES / page;
        let end = (end.next_multiple_of(step) + step).max(STORE_BYTES_MIN / page);
        if end < pages {
            space.placement_mut().cut(end);
            state.tables.pages = end;
        }
    }
    let after_cut = space.placement().hollow_pages().min(before);
    if geometry.discard_unit > 0 {
        let long = surplus.into_iter().filter(|range| range.end - range.start >= shortest);
        long.for_each(|range| space.placement_mut().make_hollow(range));
    }
    let hollow = space.placement().hollow_pages() - after_cut;
    state.update_checkpoint_reserve();
    hollow * page
}

/// Free pages that stay: the store's share of the remaining space, reservations, and some for the next
/// commits.
fn staying_pages(store: &StoreCore, state: &StoreState) -> u64 {
    let space = &state.space;
    let owned = space.placement().pages() - space.placement().hollow_pages() - space.free_pages();
    let some = if store.shape.gives_lowest {
        0
    } else {
        STAYS_BYTES / store.shape.page_bytes as u64 + owned / STAYS_ONE_IN
    };
    let wanted = some + space.reserved_pages();
    wanted + space.system_pages_of(owned + wanted)
}

/// Applies the checkpoint's lists to the file; returns the bytes by which it became shorter.
fn apply_to_file(store: &StoreCore, early: Vec<PageRun>) -> Result<u64, StoreError> {
    let state = store.state.lock();
    state.writable()?;
    let end = store.shape.byte(state.tables.pages);
    let hollow = state.space.placement().hollow_ranges();
    drop(state);
    let geometry = store.device.geometry();
    let mut cut_bytes = 0;
    if geometry.gives_back && geometry.size > end {
        cut_bytes = geometry.size - store.device.cut(end)?;
    }
    // All hollow runs: an earlier shrink may have been interrupted before their discard.
    let runs = hollow.iter().flat_map(|range| {
        let starts = range.clone().step_by(RUN_PAGES_MAX as usize);
        starts.map(|at| PageRun::new(at, (range.end - at).min(RUN_PAGES_MAX.into()) as u32))
    });
    let mut runs = runs.chain(early).peekable();
    while runs.peek().is_some() {
        let ios: Vec<Io> = runs.by_ref().take(DISCARDS).map(|run| discard_io(&store.shape, run)).collect();
        let done = store.device.submit(ios).wait();
        if let Some(error) = done.into_iter().find_map(|done| done.result.err()) {
            // A hint. A run that keeps its blocks is hollow all the same, and its discard is retried by the
            // next shrink.
            tracing::warn!(%error, "unused space was not discarded");
            break;
        }
    }
    if !geometry.gives_back {
        // If the device keeps discarded blocks, the runs are usable at once.
        let mut state = store.state.lock();
        hollow.into_iter().for_each(|range| state.space.placement_mut().fill(range));
        state.update_checkpoint_reserve();
    }
    Ok(cut_bytes)
}

/// Fills hollow runs, the lowest first, until about `wanted` pages are available; `false` if none could be
/// filled.
pub(crate) fn fill(store: &Arc<StoreCore>, state: &mut MutexGuard<'_, StoreState>, wanted: u64) -> bool {
    let missing = wanted.saturating_sub(state.space.available_pages());
    let step = FILL_STEP_BYTES / store.shape.page_bytes as u64;
    // The store reserves its share of the added pages.
    let mut left = missing.saturating_add(missing / 32).saturating_add(step);
    let mut chosen = Vec::new();
    for range in state.space.placement().hollow_ranges() {
        if left == 0 {
            break;
        }
        let upto = range.end.min(range.start.saturating_add(left));
        left -= upto - range.start;
        chosen.push(range.start..upto);
    }
    if chosen.is_empty() {
        return false;
    }
    let mut filled = 0;
    MutexGuard::unlocked(state, || {
        for range in &chosen {
            let (at, end) = (store.shape.byte(range.start), store.shape.byte(range.end));
            if let Err(error) = store.device.reserve(at, end - at) {
                tracing::info!(%error, "the file system has no space for the hollow runs of the store");
                break;
            }
            filled += 1;
        }
    });
    for range in chosen.drain(..filled) {
        state.space.placement_mut().fill(range);
    }
    state.update_checkpoint_reserve();
    filled > 0
}

/// Pages in quarantine that a flaw returns too early.
fn early(store: &StoreCore, state: &StoreState) -> Vec<PageRun> {
    if !store.shape.broken.by(StoreFlaw::GiveBackEarly) {
        return Vec::new();
    }
    state.space.quarantined().copied().collect()
}

/// Free ranges without the first `stays` pages of those that have at least `shortest`.
fn surplus(free: Vec<Range<u64>>, stays: u64, shortest: u64) -> Vec<Range<u64>> {
    let mut left = stays;
    let rest = free.into_iter().map(|range| {
        let pages = range.end - range.start;
        let here = if pages < shortest { 0 } else { left.min(pages) };
        left -= here;
        range.start + here..range.end
    });
    rest.filter(|range| !range.is_empty()).collect()
}
