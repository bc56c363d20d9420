//! The fetch of one part of a disk, as its threads share it, and the takers of its chunks.

use crate::packs::frame_plan::FramePlan;
use crate::packs::pack::FrameLocation;
use crate::packs::pack_store::PackStore;
use crate::request::error::{Error, Result};
use crate::request::progress::CancelFlag;
use crate::snapshot::recipe::{FrameRef, SegmentRecipe};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// A chunk and its place, the meaning of which is that of the taker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedChunk {
    pub(crate) chunk: FrameRef,
    pub(crate) length: u32,
    pub(crate) place: u64,
}

impl WantedChunk {
    /// The chunks of a segment whose first byte has the place `start`.
    pub(crate) fn of_segment(recipe: &SegmentRecipe, start: u64) -> impl Iterator<Item = WantedChunk> {
        let mut at = start;
        recipe.entries.iter().filter_map(move |entry| {
            let place = at;
            at += u64::from(entry.length);
            entry.chunk.map(|chunk| WantedChunk { chunk, length: entry.length, place })
        })
    }
}

/// Takes the chunks that one thread decodes.
pub(crate) trait ChunkTaker {
    /// Takes the bytes of a chunk. Chunks come in any order; consecutive ones of a pack often have
    /// consecutive places.
    /// # Errors
    /// The fetch ends with this error.
    fn take(&mut self, wanted: &WantedChunk, raw: &[u8]) -> Result<()>;

    /// Called when the next chunk is not available yet, and after the last one.
    /// # Errors
    /// The fetch ends with this error.
    fn pause(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Makes the taker of a thread.
pub(crate) type TakerFactory<'t> = dyn Fn() -> Box<dyn ChunkTaker + 't> + Sync + 't;

/// The fetch of one part, shared by its threads.
pub(super) struct FetchJob<'f> {
    pub(super) pack_store: &'f PackStore,
    pub(super) cancel: Option<&'f CancelFlag>,
    pub(super) wanted: &'f [WantedChunk],
    pub(super) plan: &'f FramePlan,
    /// Set when a thread has failed.
    pub(super) is_stopped: AtomicBool,
    pub(super) first_error: Mutex<Option<Error>>,
    /// Requests whose frame could not be fetched, each with its damage.
    pub(super) lost: Mutex<Vec<LostChunk>>,
    pub(super) fetched_bytes: AtomicU64,
}

/// A request whose frame is damaged or gone.
pub(super) struct LostChunk {
    pub(super) request: u32,
    pub(super) location: FrameLocation,
    pub(super) error: Error,
}
