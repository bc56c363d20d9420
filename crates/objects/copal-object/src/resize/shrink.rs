//! Shrinking: space that nothing lies in goes back to the file system, and is asked for again when it is
//! wanted.
//!
//! The end of the file is cut off. Runs inside become *hollow* (`hollow`): their blocks are punched out, and
//! nothing is allocated there until the file system has space for them again, as a full host must not be met
//! inside a commit.
//!
//! Steps: a checkpoint, so that what was freed leaves quarantine; the choice, made in memory; a checkpoint
//! that knows the store shorter and those runs as hollow; and only then the file. Dying in between costs
//! nothing: a file may be longer than its store, and a run that is called hollow may have its blocks.
//! Invariants
//! - Only free pages go: what quarantine or a look at pages holds is not free (OBJ-3, OBJ-5).
//! - Nothing goes back before a durable checkpoint has said so: recovery reads what older ones name (OBJ-17),
//!   and a later mount would write where nothing is (OBJ-18).
//! - What the store keeps for deletes and checkpoints, and what callers reserved, stays.
//! - One change of the length or of hollow runs at a time: pages that are being filled are not punched.
//!
//! Not here: files of a directory, which go with what they hold (`hostfs`).

use crate::{
    StoreError,
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

/// Free space that stays besides what the store keeps: this, and a share of what is left. Small commits need
/// nothing of the file system then, and where that has filled up meanwhile the layers above can still delete.
const STAYS_BYTES: u64 = 8 << 20;
const STAYS_ONE_IN: u64 = 32;
/// Free runs shorter than this stay: they are where small things go.
const HOLLOW_BYTES_MIN: u64 = 64 << 10;
/// There are no more of them than this, as each checkpoint lists them all.
const HOLLOW_RUNS_MAX: u64 = 1 << 18;
/// Hollow space that is filled beyond what is wanted at once.
const FILL_STEP_BYTES: u64 = 32 << 20;
/// The end of a file moves by this much.
const CUT_STEP_BYTES: u64 = 1 << 20;
/// Discards on their way at once.
const DISCARDS: usize = 64;

/// What a store gave back to its file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShrinkReport {
    /// Bytes by which the file is shorter.
    pub cut_bytes: u64,
    /// Bytes inside the file that were free and are hollow now.
    pub hollow_bytes: u64,
}

/// See `Store::shrink`.
pub(crate) fn shrink(store: &Arc<StoreCore>) -> Result<ShrinkReport, StoreError> {
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
    let hollow_bytes = let_go(store, &mut state);
    drop(state);
    let said = if store.shape.broken.by(StoreFlaw::GiveBackEarly) { Ok(()) } else { checkpoint_now(store) };
    // Where nothing was said, nothing was lost: hollow runs are filled before they are used, as if it had
    // been.
    let shrunk = said.and_then(|()| hand_over(store, early));
    store.state.lock().space.end_resize();
    store.changed.notify_all();
    Ok(ShrinkReport { cut_bytes: shrunk?, hollow_bytes })
}

/// Chooses what goes: all but what has to stay is no longer free. Returns the bytes that are hollow now.
fn let_go(store: &StoreCore, state: &mut StoreState) -> u64 {
    let page = store.shape.page_bytes as u64;
    let (geometry, pages) = (store.device.geometry(), state.tables.pages);
    let stays = staying_pages(store, state);
    let shortest = (HOLLOW_BYTES_MIN / page).max(pages / HOLLOW_RUNS_MAX);
    let space = &mut state.space;
    let mut free = space.placement().free_ranges();
    if store.shape.gives_lowest {
        free.reverse();
    }
    let surplus = surplus(free, stays, shortest);
    let before = space.placement().hollow_pages();
    if geometry.gives_back {
        let mut gone = [surplus.clone(), space.placement().hollow_ranges()].concat();
        gone.sort_unstable_by_key(|range| range.start);
        let mut end = pages;
        while gone.pop_if(|range| range.end == end).inspect(|range| end = range.start).is_some() {}
        // The last of it becomes hollow: that there was more is seen by who finds the file system full.
        let step = CUT_STEP_BYTES / page;
        let end = (end.next_multiple_of(step) + step).max(STORE_BYTES_MIN / page);
        if end < pages {
            space.cut(end);
            state.tables.pages = end;
        }
    }
    let after_cut = space.placement().hollow_pages().min(before);
    if geometry.discard_unit > 0 {
        let long = surplus.into_iter().filter(|range| range.end - range.start >= shortest);
        long.for_each(|range| space.make_hollow(range));
    }
    let hollow = space.placement().hollow_pages() - after_cut;
    state.reckon_checkpoint();
    hollow * page
}

/// Free pages that stay: what the store keeps of what is left, what is reserved, and some for what comes
/// next.
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

/// The file follows what the checkpoint says; returns the bytes that it is shorter.
fn hand_over(store: &StoreCore, early: Vec<PageRun>) -> Result<u64, StoreError> {
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
    // All of them: an earlier time may have died before it came so far.
    let runs = hollow.iter().flat_map(|range| {
        let starts = range.clone().step_by(RUN_PAGES_MAX as usize);
        starts.map(|at| PageRun::new(at, (range.end - at).min(RUN_PAGES_MAX.into()) as u32))
    });
    let mut runs = runs.chain(early).peekable();
    while runs.peek().is_some() {
        let ios: Vec<Io> = runs.by_ref().take(DISCARDS).map(|run| discard_io(&store.shape, run)).collect();
        let done = store.device.submit(ios).wait();
        if let Some(error) = done.into_iter().find_map(|done| done.result.err()) {
            // A hint. What kept its blocks is hollow all the same, and tried again the next time.
            tracing::warn!(%error, "space that nothing uses was not given back");
            break;
        }
    }
    if !geometry.gives_back {
        // A device that keeps its blocks has them still.
        let mut state = store.state.lock();
        hollow.into_iter().for_each(|range| state.space.fill(range));
        state.reckon_checkpoint();
    }
    Ok(cut_bytes)
}

/// Fills hollow runs, the lowest first, until about `wanted` pages are available; `false` when none could
/// be.
pub(crate) fn fill(store: &Arc<StoreCore>, state: &mut MutexGuard<'_, StoreState>, wanted: u64) -> bool {
    let missing = wanted.saturating_sub(state.space.available_pages());
    let step = FILL_STEP_BYTES / store.shape.page_bytes as u64;
    // Of what is added the store keeps its share.
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
                tracing::info!(%error, "the store cannot have back what it gave to its file system");
                break;
            }
            filled += 1;
        }
    });
    for range in chosen.drain(..filled) {
        state.space.fill(range);
    }
    state.reckon_checkpoint();
    filled > 0
}

/// What a flaw gives back besides: pages in quarantine.
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
