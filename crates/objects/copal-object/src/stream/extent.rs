//! Extents: the space of streams, each entered by a record, so that the appends into it change no metadata.
//!
//! An extent comes, in this order, from:
//! - one that was prepared for streams, or that a stream gave up;
//! - written space, halved down to 64 KiB if there is no longer run;
//! - new space of that length, which is filled with zeros first, or which the store grows by;
//! - shorter runs, down to one frame.
//!
//! Design: docs/design/object.md#streams
//!
//! Not here: the appends (`append`), the length that is asked for (`space`).

use crate::{
    StoreError,
    engine::admission::{admit, enter_internal},
    format::{ops::RecordOp, run::PageRun},
    resize::grow::{grow_for_run, make_available},
    space::{self, home::PageHome},
    state::{StoreCore, StoreState},
    stream::new_frame::STREAM_CLASS,
};
use copal_device::{Io, IoClass, IoKind};
use parking_lot::MutexGuard;
use std::sync::Arc;

/// Most bytes of the operation that gives a stream space, in a record and in a checkpoint.
const EXTENT_OP_BYTES: usize = 64;

/// An extent that a stream needs.
struct ExtentNeed {
    home: PageHome,
    /// Pages of the extent while free space has a run of them.
    wanted: u32,
    /// Pages to which it is halved before new space is prepared.
    least: u32,
    /// Pages of the frame that needs it.
    frame: u32,
}

impl ExtentNeed {
    /// Lengths to look for, the longest first.
    fn lengths(&self) -> impl Iterator<Item = u32> {
        halves(self.wanted, self.least)
    }

    /// Lengths to look for if there is no space of [`ExtentNeed::lengths`].
    fn short_lengths(&self) -> impl Iterator<Item = u32> {
        halves(self.least, self.frame).skip(1)
    }

    /// The first run of one of `lengths` in written or in any space; it does not exceed the available pages.
    fn find(
        &self,
        state: &mut StoreState,
        lengths: impl Iterator<Item = u32>,
        written: bool,
    ) -> Option<PageRun> {
        let available = state.space.available_pages();
        lengths
            .filter(|&pages| u64::from(pages) <= available)
            .find_map(|pages| state.space.allocate_run(pages, self.home, written))
    }
}

/// `from`, its half, and so on, down to `to`.
fn halves(from: u32, to: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(from.max(to)), move |&pages| (pages > to).then(|| (pages / 2).max(to)))
}

/// Enters one more extent for the stream, or prepares one; the caller checks again.
pub(crate) fn extend_stream(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    stream: u64,
    pages: u32,
    expected_log2: u8,
) -> Result<(), StoreError> {
    let missing = state.pages_for_tables(EXTENT_OP_BYTES as u64, false);
    if missing > 0 {
        return make_available(store, state, missing, missing);
    }
    let Some(admitted) = admit(store, state, EXTENT_OP_BYTES, false)? else {
        return Ok(());
    };
    let need = need(store, state, stream, pages, expected_log2);
    let run = match state.space.take_spare_extent(pages) {
        Some(run) => Some(run),
        None => {
            state.query_host_when_due();
            existing_extent(state, &need)
        }
    };
    let Some(run) = run else {
        return prepare_extent(store, state, &need);
    };
    let incarnation = state.entropy.next();
    let first = state.streams.open_tail(stream).next;
    enter_internal(state, &RecordOp::StreamExtent { id: stream, run, first, incarnation }, admitted);
    state.streams.begin_piece(stream);
    Ok(())
}

fn need(store: &StoreCore, state: &StoreState, stream: u64, pages: u32, expected_log2: u8) -> ExtentNeed {
    let (shape, page_bytes) = (&store.shape, store.shape.page_bytes);
    let smallest = shape.stream_extent_pages.max(pages.into());
    let pieces = state.tables.stream(stream).into_iter().flat_map(|entry| &entry.pieces);
    let held = pieces.map(|piece| u64::from(piece.run.pages)).sum();
    let available = state.space.available_pages();
    let wanted = space::stream_extent_pages(held, available, expected_log2, smallest, page_bytes) as u32;
    let least = space::stream_extent_least(page_bytes).min(shape.stream_extent_pages) as u32;
    let home = PageHome { class: STREAM_CLASS, owner: stream, in_group: false, is_frame: false };
    ExtentNeed { home, wanted, least: least.max(pages).min(wanted), frame: pages }
}

/// An extent in written space.
fn existing_extent(state: &mut StoreState, need: &ExtentNeed) -> Option<PageRun> {
    if u64::from(need.wanted) <= state.space.available_pages()
        && let Some(run) = state.space.take_freed_extent(need.wanted, need.least)
    {
        return Some(run);
    }
    need.find(state, need.lengths(), true)
}

/// Allocates space that was never written, writes zeros over it, and keeps it for streams. If there is none of
/// at least the least length, grows the store, or uses short runs.
fn prepare_extent(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    need: &ExtentNeed,
) -> Result<(), StoreError> {
    let found = match need.find(state, need.lengths(), false) {
        None if grow_for_run(store, state, need.wanted.into())? => return Ok(()),
        found => found,
    };
    let found = match found {
        // A short run in written space needs no zeros.
        None => match need.find(state, need.short_lengths(), true) {
            Some(run) => {
                state.space.stage(run.pages.into());
                state.space.add_spare_extent(run);
                return Ok(());
            }
            None => need.find(state, need.short_lengths(), false),
        },
        found => found,
    };
    let Some(run) = found else {
        return make_available(store, state, need.wanted.into(), need.frame.into());
    };
    state.space.stage(run.pages.into());
    let len = run.pages as usize * store.shape.page_bytes;
    let io = Io {
        at: store.shape.byte(run.at),
        kind: IoKind::WriteZeroes(len as u64),
        class: IoClass::Foreground,
    };
    let done = MutexGuard::unlocked(state, || store.device.submit(vec![io]).wait());
    if let Err(error) = done.into_iter().try_for_each(|done| done.result) {
        state.fence.fail(error.clone());
        return Err(StoreError::Device(error));
    }
    state.space.add_spare_extent(run);
    state.update_checkpoint_reserve();
    Ok(())
}
