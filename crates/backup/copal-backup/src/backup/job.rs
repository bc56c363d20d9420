//! Jobs that travel between the threads of a backup: one for each segment that is written.
//!
//! A fixed number of jobs circulates, and that bounds the memory: the reader waits until a job comes back.

use crate::snapshot::recipe::FrameRef;
use copal_chunk::{ChunkId, SEGMENT_BYTES};
use std::ops::Range;

/// One run of bytes of a segment, with the reader's decision.
#[derive(Clone, Debug)]
pub(crate) struct JobEntry {
    pub(crate) length: u32,
    pub(crate) state: ChunkState,
    /// Whether the chunk is stored for this VM because no answer came in time.
    pub(crate) is_unresolved: bool,
}

impl JobEntry {
    /// An entry that got its answer, or needed none.
    pub(crate) fn new(length: u32, state: ChunkState) -> JobEntry {
        JobEntry { length, state, is_unresolved: false }
    }

    /// The id of a chunk to be stored.
    pub(crate) fn new_id(&self) -> Option<ChunkId> {
        match &self.state {
            ChunkState::New(chunk) => Some(chunk.id),
            _ => None,
        }
    }
}

/// State of the bytes of an entry.
#[derive(Clone, Debug)]
pub(crate) enum ChunkState {
    Hole,
    /// The repository has the chunk at this location.
    Known(FrameRef),
    /// This backup stores the chunk in an earlier job.
    InFlight(ChunkId),
    /// The chunk is new.
    New(NewChunk),
}

/// A chunk to be stored.
#[derive(Clone, Debug)]
pub(crate) struct NewChunk {
    pub(crate) id: ChunkId,
    /// Range of its bytes in the job's segment.
    pub(crate) raw: Range<usize>,
    /// Range of its compressed bytes in the job's `packed`; `None`: stored uncompressed.
    pub(crate) packed: Option<Range<usize>>,
}

/// One segment on its way to the packer.
#[derive(Debug)]
pub(crate) struct SegmentJob {
    /// Offset of the segment in the disk.
    pub(crate) start: u64,
    pub(crate) segment: Vec<u8>,
    pub(crate) packed: Vec<u8>,
    pub(crate) entries: Vec<JobEntry>,
    /// Id of the recipe that will be written.
    pub(crate) recipe_id: ChunkId,
}

impl SegmentJob {
    /// Most bytes of a job: the segment, and its compressed chunks.
    pub(crate) const MEMORY_BYTES: u64 = 2 * SEGMENT_BYTES as u64;

    pub(crate) fn new() -> Box<SegmentJob> {
        Box::new(SegmentJob {
            start: 0,
            segment: vec![0; SEGMENT_BYTES],
            packed: Vec::new(),
            entries: Vec::new(),
            recipe_id: ChunkId([0; 32]),
        })
    }
}

/// One step of building a disk's tree, in order.
#[derive(Debug)]
pub(crate) enum TreeStep {
    /// A page taken from the base, or a hole.
    Page(Option<FrameRef>),
    /// A segment taken from the base, or a hole.
    Segment(Option<FrameRef>),
    /// A segment to be written.
    Write(Box<SegmentJob>),
    /// The disk is complete and has this size.
    EndOfDisk { size_bytes: u64, data_bytes: u64 },
}

/// A step with its number in the order of the reader.
pub(crate) struct NumberedStep {
    pub(crate) number: u64,
    pub(crate) step: TreeStep,
}
