//! Free ranges: a run of free bytes of the device for bytes that are no content of the store.
//!
//! Invariants
//! - The pages are free pages of the store, taken as those of a staged object are: in memory only. A crash gives them
//!   back.
//! - The store's own reserve and reservations of callers stay.

use crate::{
    StoreError,
    format::run::{PageRun, RUN_PAGES_MAX},
    object::writer::StagedSpace,
    state::StoreCore,
};
use std::{ops::Range, sync::Arc};

/// Bytes of the device that belong to the caller until they are dropped. Their content does not matter to the store.
pub struct FreeRange {
    _space: StagedSpace,
    bytes: Range<u64>,
}

impl FreeRange {
    /// First byte, and the byte behind the last one.
    #[must_use]
    pub fn bytes(&self) -> Range<u64> {
        self.bytes.clone()
    }
}

impl std::fmt::Debug for FreeRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FreeRange").field("bytes", &self.bytes).finish()
    }
}

/// See `Store::free_range`.
pub(crate) fn lend(store: &Arc<StoreCore>, sizes: Range<u64>) -> Result<FreeRange, StoreError> {
    let page = store.shape.page_bytes as u64;
    let mut state = store.state.lock();
    state.writable()?;
    state.space.release_extents();
    let space = &mut state.space;
    let (available, placement) = (space.available_pages(), space.placement_mut());
    let granule = placement.free_granule();
    let longest = placement.longest_free();
    let most = (longest.end - longest.start).min(available).min(sizes.end / page);
    let pages = most / granule * granule;
    if pages * page < sizes.start {
        return Err(StoreError::NoSpace { needed_bytes: sizes.start, free_bytes: pages * page });
    }
    let taken = longest.start..longest.start + pages;
    let step = (u64::from(RUN_PAGES_MAX) / granule).max(1) * granule;
    let mut runs = Vec::new();
    for at in taken.clone().step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
        let run = PageRun::new(at, step.min(taken.end - at) as u32);
        if placement.take_free(run) {
            runs.push(run);
        }
    }
    debug_assert_eq!(crate::format::run::pages_of(&runs), pages, "free pages can be taken");
    space.stage(pages);
    let bytes = store.shape.byte(taken.start)..store.shape.byte(taken.end);
    drop(state);
    Ok(FreeRange { _space: StagedSpace::new(store, runs), bytes })
}
