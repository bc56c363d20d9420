//! Scrub: reads all data of an open store in the order of its addresses, and compares it with its sums.
//!
//! The owner calls [`StoreScrub::step`] at its own pace. A step reads a window of about 1 MiB in the background
//! class. The place is kept in an object of the store now and then, so that an interrupted scrub goes on there.
//!
//! Design: docs/design/object.md#tools
//! Invariants
//! - One window is pinned at a time, with the sums of its objects; nothing is pinned between two steps.
//! - No lock and no pin is held while damage is reported, so the receiver may rewrite the object.
//! - Bytes that are written while a scrub runs may be left to the next one: they are young.
//!
//! Not here: threads and clocks, which the owner has.

mod order;
mod pace;
mod place;
mod reads;
mod stream_window;
mod sums;
mod window;

pub use pace::ScrubPace;
pub use place::SCRUB_PLACE_ID;

use crate::{
    StoreCheckReport, StoreError,
    check::{
        coverage::{RangeCoverage, RangeWitness},
        fsck::{self, StoreDamage},
    },
    state::StoreCore,
    stream::read_ahead::ReadAhead,
};
use order::{PartPlace, ScrubOrder};
use reads::WindowResult;
use std::{fmt, sync::Arc};
use sums::ObjectSums;

/// Bytes after which the place is kept.
const KEEP_BYTES: u64 = 64 << 20;

/// Progress of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreScrubProgress {
    /// Bytes of all objects and streams, as far as known.
    pub total_bytes: u64,
    /// Bytes of those before the place that the scrub has reached, those of earlier sessions included.
    pub done_bytes: u64,
    /// Bytes that this session has read from the device.
    pub read_bytes: u64,
    /// Damages found, those of earlier sessions included.
    pub damages: u64,
    /// An earlier session was interrupted, and this one goes on from there.
    pub resumed: bool,
    /// Everything was read.
    pub finished: bool,
}

/// A scrub of one store. Dropping it keeps no place; see [`StoreScrub::keep_place`].
pub struct StoreScrub {
    store: Arc<StoreCore>,
    order: ScrubOrder,
    /// The metadata is read first.
    has_metadata_read: bool,
    sums: ObjectSums,
    ahead: ReadAhead,
    /// Bytes read since the place was kept.
    unkept_bytes: u64,
    progress: StoreScrubProgress,
}

impl StoreScrub {
    /// Goes on at the kept place, or begins.
    pub(crate) fn new(store: &Arc<StoreCore>) -> StoreScrub {
        let kept = place::kept(store);
        let (page, damages) = kept.map_or((0, 0), |place| (place.page, place.damages));
        StoreScrub {
            store: Arc::clone(store),
            order: ScrubOrder::new(page),
            has_metadata_read: kept.is_some(),
            sums: ObjectSums::default(),
            ahead: ReadAhead::default(),
            unkept_bytes: 0,
            progress: StoreScrubProgress {
                damages,
                resumed: kept.is_some(),
                ..StoreScrubProgress::default()
            },
        }
    }

    /// Reads the next window and reports its damages. Returns the bytes read from the device, or `None` at the end.
    /// Blocks on the device. `damaged` may commit; it sees each damage once.
    /// # Errors
    /// `Device`: the system cannot read at this time. Damage is no error.
    pub fn step(&mut self, damaged: &mut dyn FnMut(&StoreDamage)) -> Result<Option<u64>, StoreError> {
        if self.progress.finished {
            return Ok(None);
        }
        let result = if !self.has_metadata_read {
            self.has_metadata_read = true;
            self.metadata()?
        } else if self.order.plan(&self.store) {
            self.window()?
        } else {
            self.progress.finished = true;
            place::forget(&self.store);
            return Ok(None);
        };
        self.progress.read_bytes += result.read_bytes;
        self.progress.damages += result.damages.len() as u64;
        result.damages.iter().for_each(damaged);
        self.unkept_bytes += result.read_bytes;
        if self.unkept_bytes >= KEEP_BYTES {
            self.keep_place();
        }
        Ok(Some(result.read_bytes))
    }

    /// Bytes read and damages found so far.
    #[must_use]
    pub fn progress(&self) -> StoreScrubProgress {
        let page = self.store.shape.page_bytes as u64;
        let order = &self.order;
        StoreScrubProgress {
            total_bytes: order.total_pages * page,
            done_bytes: order.done_pages * page,
            ..self.progress
        }
    }

    /// Keeps the place in the store, by one ordered commit, so that the next scrub goes on there. A full or
    /// read-only store keeps none. Steps call this after 64 MiB; an owner that ends a scrub calls it too.
    pub fn keep_place(&mut self) {
        self.unkept_bytes = 0;
        if !self.progress.finished && self.has_metadata_read {
            place::keep(&self.store, self.order.place(), self.progress.damages);
        }
    }

    /// Superblocks, checkpoint and the journal behind it.
    fn metadata(&self) -> Result<WindowResult, StoreError> {
        let mut report = StoreCheckReport::default();
        let mut read_bytes = 0;
        let mut see = |range: std::ops::Range<u64>, covered| {
            if let RangeCoverage::Summed(_) = covered {
                read_bytes += range.end - range.start;
            }
        };
        let mut witness = RangeWitness::new(Some(&mut see), self.store.shape.page_bytes);
        fsck::check_metadata(&self.store, &mut report, &mut witness)?;
        Ok(WindowResult { read_bytes, damages: report.damages })
    }

    fn window(&mut self) -> Result<WindowResult, StoreError> {
        let Some(first) = self.order.first() else { return Ok(WindowResult::default()) };
        match first.within {
            PartPlace::Stream(_) => {
                let ahead = std::mem::take(&mut self.ahead);
                let (result, to, ahead) = stream_window::read(&self.store, &first, ahead)?;
                self.ahead = ahead;
                self.order.advance(to);
                Ok(result)
            }
            PartPlace::Object(_) => window::read(&self.store, &mut self.order, &mut self.sums),
        }
    }
}

impl fmt::Debug for StoreScrub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreScrub").field("progress", &self.progress).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
