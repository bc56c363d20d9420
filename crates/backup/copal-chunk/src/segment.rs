//! Segments: 2 MiB of a disk, split into holes and chunks.

use crate::gear::Chunker;
use crate::hole::{BLOCK_BYTES, is_zero};

/// Length and alignment of segments, in bytes. The last segment of a disk may be shorter.
pub const SEGMENT_BYTES: usize = 2 << 20;

/// A run of bytes of a segment: one chunk, or one hole of maximum length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentPiece {
    /// First byte within the segment.
    pub start: u32,
    /// Length in bytes, never 0.
    pub length: u32,
    /// All bytes are zero, so the piece is not stored.
    pub hole: bool,
}

impl SegmentPiece {
    /// One past the last byte.
    pub fn end(&self) -> u32 {
        self.start + self.length
    }
    /// The range of the segment.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.start as usize..self.end() as usize
    }
}

/// Splits a complete segment. The pieces are ascending, adjacent, and cover it exactly.
///
/// # Panics
/// If `segment` is longer than [`SEGMENT_BYTES`].
pub fn split(chunker: &Chunker, segment: &[u8]) -> Vec<SegmentPiece> {
    assert!(segment.len() <= SEGMENT_BYTES, "a segment has at most {SEGMENT_BYTES} bytes");
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < segment.len() {
        let hole_end = zero_run_end(segment, at);
        if hole_end > at {
            pieces.push(piece(at, hole_end, true));
            at = hole_end;
            continue;
        }
        let run_end = data_run_end(segment, at);
        while at < run_end {
            let length = chunker.cut(at, &segment[at..run_end], true).unwrap_or(run_end - at);
            pieces.push(piece(at, at + length, false));
            at += length;
        }
    }
    pieces
}

/// The pieces that are chunks.
pub fn chunks_of(pieces: &[SegmentPiece]) -> impl Iterator<Item = &SegmentPiece> {
    pieces.iter().filter(|piece| !piece.hole)
}

pub(crate) fn piece(start: usize, end: usize, hole: bool) -> SegmentPiece {
    SegmentPiece { start: start as u32, length: (end - start) as u32, hole }
}

fn zero_run_end(segment: &[u8], mut at: usize) -> usize {
    while at < segment.len() {
        let end = (at + BLOCK_BYTES).min(segment.len());
        if !is_zero(&segment[at..end]) {
            break;
        }
        at = end;
    }
    at
}

fn data_run_end(segment: &[u8], mut at: usize) -> usize {
    while at < segment.len() {
        let end = (at + BLOCK_BYTES).min(segment.len());
        if is_zero(&segment[at..end]) {
            break;
        }
        at = end;
    }
    at
}

#[cfg(test)]
mod tests;
