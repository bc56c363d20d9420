//! Jobs that travel between the threads of a backup: one for each segment that is read.
//!
//! A fixed number of jobs circulates, and that bounds the memory: the reader waits until a job comes back.

use super::compress::ChunkCompressor;
use crate::packs::pack::writer::{PlacedFrame, SealScratch};
use crate::packs::pack_cipher::TAG_BYTES;
use crate::request::error::Result;
use crate::snapshot::recipe::FrameRef;
use copal_chunk::{ChunkId, SEGMENT_BYTES};
use std::ops::Range;

/// One run of bytes of a segment, with the decision about it.
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
    /// `None` until it is packed.
    pub(crate) packed: Option<PackedChunk>,
}

/// A chunk whose payload and room for a tag lie in the job's buffer.
#[derive(Clone, Debug)]
pub(crate) struct PackedChunk {
    pub(crate) frame: Range<usize>,
    pub(crate) is_compressed: bool,
}

impl PackedChunk {
    /// Length without the tag.
    pub(crate) fn payload_bytes(&self) -> usize {
        self.frame.len() - TAG_BYTES
    }
}

/// A frame of a job that has its place in a pack.
pub(crate) struct JobFrame {
    pub(crate) range: Range<usize>,
    pub(crate) placed: PlacedFrame,
}

/// One segment on its way to the packer.
pub(crate) struct SegmentJob {
    /// Offset of the segment in the disk.
    pub(crate) start: u64,
    /// Some room, then the segment. Payloads replace the chunks in front of them, so one buffer is enough: a payload is
    /// at most as long as its chunk, and the room takes the tags.
    pub(crate) buffer: Vec<u8>,
    /// Length of the room.
    room: usize,
    pub(crate) entries: Vec<JobEntry>,
    pub(crate) frames: Vec<JobFrame>,
    /// Id of the recipe that will be written.
    pub(crate) recipe_id: ChunkId,
}

/// Room for the tags of a segment of the smallest chunks of the paper.
const ROOM_BYTES: usize = TAG_BYTES * (SEGMENT_BYTES / 2048);

impl SegmentJob {
    /// Bytes of a job: the room and the segment.
    pub(crate) const MEMORY_BYTES: u64 = (SEGMENT_BYTES + ROOM_BYTES) as u64;

    pub(crate) fn new() -> SegmentJob {
        SegmentJob {
            start: 0,
            buffer: vec![0; ROOM_BYTES + SEGMENT_BYTES],
            room: ROOM_BYTES,
            entries: Vec::new(),
            frames: Vec::new(),
            recipe_id: ChunkId([0; 32]),
        }
    }

    /// The bytes of the segment, until its chunks are packed.
    pub(crate) fn segment(&self) -> &[u8] {
        &self.buffer[self.room..]
    }

    pub(crate) fn segment_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.room..]
    }

    /// Packs the new chunks, in order: payload, then room for a tag. The segment is gone afterwards.
    pub(crate) fn pack(&mut self, compressor: &mut ChunkCompressor) {
        self.make_room(TAG_BYTES * self.entries.iter().filter_map(JobEntry::new_id).count());
        let SegmentJob { buffer, room, entries, .. } = self;
        let mut end = 0;
        for entry in entries {
            let ChunkState::New(chunk) = &mut entry.state else {
                continue;
            };
            let raw = chunk.raw.start + *room..chunk.raw.end + *room;
            // At most the bytes of the chunks before and their tags: no byte of a later chunk is overwritten.
            let start = end;
            let packed = compressor.compress(&buffer[raw.clone()]);
            let is_compressed = packed.is_some();
            end += match packed {
                Some(packed) => {
                    buffer[start..start + packed.len()].copy_from_slice(packed);
                    packed.len()
                }
                None => {
                    buffer.copy_within(raw.clone(), start);
                    raw.len()
                }
            };
            end += TAG_BYTES;
            chunk.packed = Some(PackedChunk { frame: start..end, is_compressed });
        }
    }

    /// Encrypts the frames that have their places.
    /// # Errors
    /// `SelfCheck`.
    pub(crate) fn seal(&mut self, scratch: &mut SealScratch) -> Result<()> {
        let SegmentJob { buffer, frames, .. } = self;
        frames.iter().try_for_each(|frame| frame.placed.seal(&mut buffer[frame.range.clone()], scratch))
    }

    /// The sealed frames, in the order of their places.
    pub(crate) fn sealed(&self) -> impl Iterator<Item = &[u8]> {
        self.frames.iter().map(|frame| &self.buffer[frame.range.clone()])
    }

    /// Moves the segment so that at least `bytes` lie before it.
    fn make_room(&mut self, bytes: usize) {
        if bytes > self.room {
            let missing = bytes - self.room;
            self.buffer.splice(..0, std::iter::repeat_n(0, missing));
            self.room = bytes;
        }
    }
}

/// One step of building a disk's tree, in order.
pub(crate) enum TreeStep {
    /// A page taken from the base, or a hole.
    Page(Option<FrameRef>),
    /// A segment taken from the base, or a hole.
    Segment(Option<FrameRef>),
    /// A segment to be written.
    Write(SegmentJob),
    /// The disk is complete and has this size.
    EndOfDisk { size_bytes: u64, data_bytes: u64 },
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_testkit::Random;

    /// Payloads replace the chunks before them in the same buffer; even if none of them shrinks and there are more tags than
    /// the buffer has room for, no chunk is overwritten before it is packed.
    #[test]
    fn packing_in_place_loses_no_byte() {
        let mut random = Random::new(4);
        for (average, is_text) in
            [(300, false), (300, true), (16_384, false), (16_384, true), (65_536, false)]
        {
            let mut job = SegmentJob::new();
            match is_text {
                true => random.text(job.segment_mut()),
                false => random.fill(job.segment_mut()),
            }
            let original = job.segment().to_vec();
            let mut at = 0;
            while at < SEGMENT_BYTES {
                let length = (1 + random.index(2 * average)).min(SEGMENT_BYTES - at);
                let chunk = NewChunk { id: ChunkId([1; 32]), raw: at..at + length, packed: None };
                let state = if random.one_in(5) { ChunkState::Hole } else { ChunkState::New(chunk) };
                job.entries.push(JobEntry::new(length as u32, state));
                at += length;
            }
            job.pack(&mut ChunkCompressor::new().unwrap());
            let mut end = 0;
            for entry in &job.entries {
                let ChunkState::New(NewChunk { raw, packed: Some(packed), .. }) = &entry.state else {
                    assert!(matches!(entry.state, ChunkState::Hole), "each new chunk is packed");
                    continue;
                };
                assert_eq!(packed.frame.start, end, "payloads lie one behind the other");
                end = packed.frame.end;
                let payload = &job.buffer[packed.frame.start..packed.frame.end - TAG_BYTES];
                let raw = &original[raw.clone()];
                match packed.is_compressed {
                    true => assert_eq!(zstd::bulk::decompress(payload, raw.len()).unwrap(), raw),
                    false => assert_eq!(payload, raw),
                }
            }
            assert!(end > 0);
        }
    }
}
