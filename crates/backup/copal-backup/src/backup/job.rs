//! What travels between the threads of a backup: one job per segment that has to be written.
//!
//! Jobs are made once and go round, so their number is the bound on memory: reading waits for a job to
//! come back.

use crate::snapshot::recipe::Ref;
use copal_chunk::{ChunkId, SEGMENT_BYTES};
use std::ops::Range;

/// One run of bytes of a segment, as decided by the reader.
#[derive(Clone, Debug)]
pub(crate) struct JobEntry {
    pub(crate) length: u32,
    pub(crate) state: ChunkState,
    /// Whether the chunk is stored for this VM because nobody answered in time.
    pub(crate) is_unresolved: bool,
}

impl JobEntry {
    /// An entry that is as it is for good.
    pub(crate) fn new(length: u32, state: ChunkState) -> JobEntry {
        JobEntry { length, state, is_unresolved: false }
    }

    /// The chunk that is to be stored.
    pub(crate) fn new_id(&self) -> Option<ChunkId> {
        match &self.state {
            ChunkState::New(chunk) => Some(chunk.id),
            _ => None,
        }
    }
}

/// What is to be done about it.
#[derive(Clone, Debug)]
pub(crate) enum ChunkState {
    Hole,
    /// The repository has it there.
    Known(Ref),
    /// This backup has stored it, or is about to: a job before this one carries it.
    InFlight(ChunkId),
    /// Nobody has it.
    New(NewChunk),
}

/// A chunk to be stored.
#[derive(Clone, Debug)]
pub(crate) struct NewChunk {
    pub(crate) id: ChunkId,
    /// Its bytes in the job's segment.
    pub(crate) raw: Range<usize>,
    /// Its compressed bytes in the job's `packed`; `None`: stored as it is.
    pub(crate) packed: Option<Range<usize>>,
}

/// One segment on its way.
#[derive(Debug)]
pub(crate) struct Job {
    /// Where it begins in the disk.
    pub(crate) start: u64,
    pub(crate) segment: Vec<u8>,
    pub(crate) packed: Vec<u8>,
    pub(crate) entries: Vec<JobEntry>,
    /// Name of the recipe that will be written.
    pub(crate) recipe_id: ChunkId,
}

impl Job {
    /// Bytes a job holds at most: the segment, and what compression made of it.
    pub(crate) const MEMORY_BYTES: u64 = 2 * SEGMENT_BYTES as u64;

    pub(crate) fn new() -> Box<Job> {
        Box::new(Job {
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
pub(crate) enum Step {
    /// A whole page taken from the base, or all hole.
    Page(Option<Ref>),
    /// A segment taken from the base, or all hole.
    Segment(Option<Ref>),
    /// A segment to be written.
    Write(Box<Job>),
    /// The disk is complete and has this size.
    EndOfDisk { size_bytes: u64, data_bytes: u64 },
}

/// A step and its place in the order.
pub(crate) struct Numbered {
    pub(crate) number: u64,
    pub(crate) step: Step,
}
