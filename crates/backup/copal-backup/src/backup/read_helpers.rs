//! Helpers for reading a disk: filling buffers, and recipes as pieces.

use crate::request::DiskSource;
use crate::request::error::{Error, Result};
use crate::snapshot::recipe::RecipeEntry;
use copal_chunk::SegmentPiece;
use copal_disk::source::{Source, SourceError};

/// Bytes of the entries that are not holes.
pub(crate) fn data_of(entries: &[RecipeEntry]) -> u64 {
    entries.iter().filter(|entry| entry.chunk.is_some()).map(|entry| u64::from(entry.length)).sum()
}

/// The pieces of a recipe.
pub(crate) fn pieces_of(entries: &[RecipeEntry]) -> Vec<SegmentPiece> {
    let mut start = 0;
    let piece = |entry: &RecipeEntry| {
        let piece = SegmentPiece { start, length: entry.length, hole: entry.chunk.is_none() };
        start += entry.length;
        piece
    };
    entries.iter().map(piece).collect()
}

/// Fills `buffer` or fails: a source that ends early was cut while it was read.
pub(crate) fn read_exactly(disk: &DiskSource, offset: u64, buffer: &mut [u8]) -> Result<()> {
    let failed = |error| Error::Source { disk: disk.name.clone(), error };
    let read = read_fully(&*disk.source, offset, buffer).map_err(failed)?;
    if read < buffer.len() {
        let error = SourceError::Short {
            what: disk.name.clone(),
            at: offset + read as u64,
            expected: offset + buffer.len() as u64,
        };
        return Err(failed(error));
    }
    Ok(())
}

/// Reads until `buffer` is full or the source ends.
pub(crate) fn read_fully(
    source: &dyn Source,
    offset: u64,
    buffer: &mut [u8],
) -> std::result::Result<usize, SourceError> {
    let mut done = 0;
    while done < buffer.len() {
        match source.read_at(offset + done as u64, &mut buffer[done..])? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}
