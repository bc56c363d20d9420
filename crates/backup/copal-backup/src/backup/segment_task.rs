//! A segment that may have changed, before and after it was read.

use super::in_flight_chunks::LookUp;
use super::job::SegmentJob;
use crate::request::BackupCounts;
use crate::snapshot::recipe::{FrameRef, SegmentRecipe};
use copal_chunk::{BlockChange, ChunkId};
use std::ops::Range;

/// A segment to be read.
pub(super) struct SegmentTask {
    pub(super) number: u64,
    /// Number of the disk in the request.
    pub(super) disk: usize,
    /// Bytes of the disk.
    pub(super) range: Range<u64>,
    /// Recipe of the base at the same place.
    pub(super) reference: Option<FrameRef>,
    pub(super) reading: SegmentReading,
}

/// Bytes of a segment that are read.
pub(super) enum SegmentReading {
    /// All but the blocks that are zero; one entry per block.
    Whole(Vec<BlockChange>),
    /// The changed blocks, and the old recipe, with which they are cut.
    Changed {
        blocks: Vec<BlockChange>,
        old: SegmentRecipe,
        /// Bytes that the list of changes names, for the progress.
        dirty_bytes: u64,
    },
    /// None: a stream has been read already, into the job.
    Done,
}

/// A segment that was read.
pub(super) struct PreparedSegment {
    pub(super) job: SegmentJob,
    /// Bytes that are not holes, now and in the base.
    pub(super) data_bytes: u64,
    pub(super) old_data_bytes: u64,
    pub(super) counts: BackupCounts,
    pub(super) content: SegmentContent,
}

/// The content of a segment.
pub(super) enum SegmentContent {
    Hole,
    /// That of the base.
    Same(FrameRef),
    /// Chunks in the job's `entries`: known ones, and new ones unless the rows of this look-up say otherwise.
    Chunks(LookedUpChunks),
}

/// Chunks of a segment that are neither in the base at this place nor decided.
pub(super) struct LookedUpChunks {
    pub(super) look_up: LookUp,
    /// Each with its entry in the job, and its frame in the index.
    pub(super) chunks: Vec<LookedUpChunk>,
}

/// A chunk that was looked up.
pub(super) struct LookedUpChunk {
    pub(super) entry: usize,
    pub(super) id: ChunkId,
    pub(super) raw: Range<usize>,
    pub(super) found: Option<FrameRef>,
}
