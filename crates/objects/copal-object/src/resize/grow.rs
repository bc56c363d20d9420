//! Making pages available: draining the quarantine, filling hollow space, growing the store.
//!
//! Design: docs/design/object.md#space
//! Invariants
//! - `NoSpace` is returned before anything is written and poisons nothing.
//! - A full host is detected while growing, never inside a commit.

use crate::{
    StoreError, WritableSpace,
    engine::{
        admission::{admit_op, enter_internal, wait_journal},
        pump::{pump, wait_change},
        shortage::clean_for,
        steps::close_group,
    },
    format::{ops::RecordOp, superblock::STORE_BYTES_MAX},
    resize::shrink::fill,
    space::growth_step_bytes,
    state::{StoreCore, StoreState},
};
use parking_lot::MutexGuard;
use std::sync::Arc;

/// Possible new sizes of a store, in bytes.
struct GrownSizes {
    /// A whole step.
    usual: u64,
    /// Just enough.
    least: u64,
}

/// Lets operations use the store's own reserve, except the part for the next checkpoint, until this is
/// dropped.
pub struct SystemLoan {
    inner: Arc<StoreCore>,
}

impl Drop for SystemLoan {
    fn drop(&mut self) {
        if self.inner.files.is_none() {
            self.inner.state.lock().space.end_loan();
        }
    }
}

impl std::fmt::Debug for SystemLoan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SystemLoan").finish_non_exhaustive()
    }
}

/// See [`crate::Store::lend_system_space`]. In a directory that reserve is a separate file and is not lent.
pub(crate) fn lend_system_space(store: &Arc<StoreCore>) -> SystemLoan {
    if store.files.is_none() {
        store.state.lock().space.lend();
    }
    SystemLoan { inner: Arc::clone(store) }
}

/// Makes progress towards `wanted` available pages; the caller then checks again. `NoSpace` if fewer than
/// `needed` can become available. Releases the mutex meanwhile.
pub(crate) fn make_available(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    wanted: u64,
    needed: u64,
) -> Result<(), StoreError> {
    let freed = crate::format::run::pages_of(state.commit.open_freed());
    let held = state.space.held_pages();
    let discarding = state.space.discarding_pages();
    if discarding > 0 && state.space.available_pages() + discarding >= needed {
        wait_change(store, state);
        return Ok(());
    }
    let waiting = state.space.quarantine_pages() - held - discarding + freed;
    if waiting > 0 && state.space.available_pages() + waiting >= needed {
        return drain(store, state);
    }
    if clean_for(store, state, needed)? || grow(store, state, wanted, needed)? {
        return Ok(());
    }
    if waiting > 0 {
        // Another transaction may have taken pages that this one counted on.
        drain(store, state)?;
        if state.space.available_pages() >= needed || grow(store, state, wanted, needed)? {
            return Ok(());
        }
    }
    let passing = held - state.space.lasting_pages();
    if passing > 0 && state.space.available_pages() + passing >= needed {
        // Pins of reads end by themselves; that of a raw extent ends only when its owner drops it.
        wait_change(store, state);
        return Ok(());
    }
    Err(state.no_space(needed))
}

/// Waits until the pages now in quarantine, or some of them, are reusable: a flush, an empty record, a flush
/// (OBJ-3).
fn drain(store: &Arc<StoreCore>, state: &mut MutexGuard<'_, StoreState>) -> Result<(), StoreError> {
    if !state.commit.is_open_empty() && !close_group(store, state) {
        return wait_journal(store, state);
    }
    let Some(epoch) = state.space.quarantine_epoch() else {
        return Ok(());
    };
    state.space.want_drain(epoch);
    // A pin may keep some of them for long, and the rest may be enough.
    let before = state.space.available_pages();
    MutexGuard::unlocked(state, || pump(store));
    while state.space.is_quarantined(epoch) && state.space.available_pages() <= before {
        state.writable()?;
        wait_change(store, state);
    }
    Ok(())
}

/// Fills hollow space, or grows the store by a step that covers `wanted` more available pages, or `needed` if
/// that is too much. `false`, with nothing grown, if it cannot.
fn grow(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    wanted: u64,
    needed: u64,
) -> Result<bool, StoreError> {
    if store.files.is_some() {
        return Ok(query_host(state, wanted.max(needed)));
    }
    if state.space.is_resizing() {
        // The thread that resizes now may make enough available.
        wait_change(store, state);
        return Ok(true);
    }
    state.space.begin_resize();
    let resized = if fill(store, state, wanted.max(needed)) {
        Ok(true)
    } else {
        lengthen(store, state, wanted, needed)
    };
    state.space.end_resize();
    store.changed.notify_all();
    resized
}

/// Grows the store if it has no free run of `pages` pages, though as many are free. `false` if it cannot.
pub(crate) fn grow_for_run(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    pages: u64,
) -> Result<bool, StoreError> {
    if store.files.is_some() || state.space.is_growth_refused() {
        return Ok(false);
    }
    grow(store, state, pages, pages)
}

/// Like [`grow`], by lengthening the device only.
fn lengthen(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    wanted: u64,
    needed: u64,
) -> Result<bool, StoreError> {
    let before = state.tables.pages;
    let Some(sizes) = grown_sizes(store, state, wanted.max(needed), needed) else {
        return Ok(false);
    };
    let page = store.shape.page_bytes as u64;
    let most = largest_size(store);
    let grown = MutexGuard::unlocked(state, || {
        let grown = store.device.grow(sizes.usual);
        // The host may have space for this request but not for a whole step.
        if grown.is_err() && sizes.least < sizes.usual {
            return store.device.grow(sizes.least);
        }
        grown
    });
    let new_size = match grown {
        Ok(new_size) => new_size.min(most),
        Err(error) => {
            if !state.space.refuse_growth(true) {
                tracing::warn!(%error, "the store cannot grow");
            }
            return Ok(false);
        }
    };
    if state.space.refuse_growth(false) {
        tracing::info!(bytes = new_size, "the store grows again");
    }
    let op = RecordOp::Grow { pages: new_size / page };
    let admitted = loop {
        state.writable()?;
        if let Some(admitted) = admit_op(store, state, &op)? {
            break admitted;
        }
    };
    let pages = new_size / page;
    if pages > state.tables.pages {
        enter_internal(state, &op, admitted);
        state.space.placement_mut().grow(pages);
        state.update_checkpoint_reserve();
    }
    Ok(pages > before)
}

/// See [`crate::Store::grow_again`].
pub(crate) fn grow_again(store: &Arc<StoreCore>) -> Result<(), StoreError> {
    let mut state = store.state.lock();
    if !state.space.is_growth_refused() || state.space.is_resizing() {
        return Ok(());
    }
    state.writable()?;
    state.space.begin_resize();
    let pages = state.space.available_pages() + 1;
    let resized = lengthen(store, &mut state, pages, pages);
    state.space.end_resize();
    store.changed.notify_all();
    resized.map(drop)
}

/// See [`crate::Store::room`].
pub(crate) fn room(store: &StoreCore) -> WritableSpace {
    let state = store.state.lock();
    let page = store.shape.page_bytes as u64;
    let size = state.space.placement().pages() * page;
    let limit = largest_size(store);
    let grows = store.files.is_some() || (store.device.can_grow() && !state.space.is_growth_refused());
    let of_bytes = if grows && limit < STORE_BYTES_MAX { limit.max(size) } else { size };
    let grown = state.space.system_pages_of(of_bytes / page) * page;
    let kept = state.space.system_pages() * page;
    // The store reserves its share of the growth.
    let growth = (of_bytes - size).saturating_sub(grown.saturating_sub(kept));
    WritableSpace {
        bytes: state.space.writable_pages() * page + growth,
        of_bytes,
        is_open_ended: grows && store.files.is_none() && limit == STORE_BYTES_MAX,
    }
}

fn largest_size(store: &StoreCore) -> u64 {
    store.shape.max_size_bytes.min(STORE_BYTES_MAX)
}

/// Sizes that leave `wanted` pages available, or `needed` pages if `wanted` exceeds the largest size. `None`:
/// both exceed it.
fn grown_sizes(store: &StoreCore, state: &StoreState, wanted: u64, needed: u64) -> Option<GrownSizes> {
    let page = store.shape.page_bytes as u64;
    let size = state.tables.pages * page;
    let most = largest_size(store);
    let available = state.space.available_pages();
    // The store reserves two hundredths of the added pages.
    let step_for = |pages: u64| {
        let missing = pages.saturating_sub(available).checked_mul(page)?;
        let step = missing.checked_add(missing / 32 + page)?;
        let target = size.checked_add(step.checked_next_multiple_of(1 << 20)?)?;
        (target <= most).then_some(target)
    };
    let least = step_for(wanted).or_else(|| step_for(needed));
    let usual = size.saturating_add(growth_step_bytes(size)).min(most);
    let (usual, least) = match least {
        Some(least) => (usual.max(least), step_for(needed).unwrap_or(least)),
        // The largest size may be less than a whole step away, and still enough.
        None => {
            let left = (most.saturating_sub(size) / page).checked_sub(1)?;
            let enough = available.saturating_add(left - left / 32) >= needed;
            enough.then_some((most, most))?
        }
    };
    (usual > size).then_some(GrownSizes { usual, least })
}

/// Queries the host's free space again. Returns whether more pages are available than before, and at least
/// `pages`.
fn query_host(state: &mut StoreState, pages: u64) -> bool {
    let before = state.space.available_pages();
    let unwritten_bytes = state.commit.in_flight_bytes();
    state.space.placement_mut().query_host(unwritten_bytes);
    // A caller that lacks pages retries only after an increase; otherwise it would query without end.
    let now = state.space.available_pages();
    now > before && now >= pages
}
