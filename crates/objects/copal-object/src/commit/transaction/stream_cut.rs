//! Cuts of streams: the page at which each is cut.
//!
//! Only frames themselves say where they begin, so the page is read from the device, unless the frame is still in
//! flight. A cut looks at every frame before it in its piece: a payload could contain an old frame.
//! Design: docs/design/object.md#streams OBJ-37
//!
//! Not here: the cut of the tables (`tables`), and of frames in flight (`state::stream`).

use crate::{
    FramePos, FrameReader, ObjectId, StoreError,
    engine::close,
    flaw::StoreFlaw,
    format::ops::TailCut,
    state::{StoreCore, StoreState},
    tables::StreamPiece,
};
use parking_lot::MutexGuard;
use std::{collections::HashMap, sync::Arc};

/// Pages at which streams are cut, each in its piece, by stream and first frame that goes.
#[derive(Default)]
pub(crate) struct CutPlaces {
    found: HashMap<(u64, u64), (StreamPiece, u32)>,
}

impl CutPlaces {
    /// Page of frame `from` in its piece, if it is known.
    pub(super) fn page(&self, state: &StoreState, (id, from): (u64, u64)) -> Option<u32> {
        let (_, piece) = state.tables.stream(id)?.piece_of(from)?;
        if piece.first == from {
            return Some(0);
        }
        let in_flight = state.streams.tail(id).and_then(|tail| tail.pending.page_of(from));
        let found = || self.found.get(&(id, from)).filter(|(known, _)| known.continues_as(piece));
        in_flight.or_else(|| found().map(|&(_, page)| page))
    }

    /// Reads the page of frame `from`. Releases the mutex.
    /// # Errors
    /// `Corrupt`: a frame before it is damaged. `Device`.
    pub(super) fn find(
        &mut self,
        store: &Arc<StoreCore>,
        state: &mut MutexGuard<'_, StoreState>,
        (id, from): (u64, u64),
    ) -> Result<(), StoreError> {
        let place = MutexGuard::unlocked(state, || {
            FrameReader::new(store, ObjectId(id), FramePos(from))?.place_of_next()
        })?;
        self.found.extend(place.map(|place| ((id, from), place)));
        Ok(())
    }

    /// The cut of a stream before frame `from`, whose page is known.
    pub(super) fn cut(&self, state: &mut StoreState, store: &StoreCore, (id, from): (u64, u64)) -> TailCut {
        let incarnation = state.entropy.next();
        let last = state.tables.stream(id).and_then(|stream| stream.pieces.last().copied());
        let pages = last.map_or(0, |last| last.run.pages);
        let rides = last.is_some_and(|last| last.incarnation == StreamPiece::RIDING);
        let tail = state.streams.open_tail(id);
        let (next, damaged, used) = (tail.next, tail.damaged, tail.used);
        let kept = match from == next {
            // Damage begins there.
            true => used,
            false => self.page(state, (id, from)).expect("the transaction was granted with every page known"),
        };
        // Behind damage it is unknown which pages later frames used.
        let used = if damaged || rides { pages } else { used };
        let reuses = store.shape.broken.by(StoreFlaw::CutPagesReused);
        TailCut { from, kept, used: if reuses { kept } else { used }, incarnation }
    }
}

/// Builds that know no cuts refuse the checkpoint before a record with one (checkpoint 4). Blocks where an older
/// checkpoint must be replaced.
pub(super) fn expect_known(store: &Arc<StoreCore>) -> Result<(), StoreError> {
    let knows = store.state.lock().tables.names_frames();
    if knows { Ok(()) } else { close::checkpoint_now(store) }
}
