//! Ends of streams, also on a truncated device: the remaining pages must show that no frame is missing.

use super::RecoverySource;
use crate::{
    StoreOpenError,
    flaw::StoreFlaw,
    format::{frame, ops::DurableFrames, run::PageRun},
    stream::walk::{FrameWalk, StreamEnd},
    tables::{ObjectTables, StreamEntry, StreamPiece},
};

/// The end of the frames of `stream`. On a truncated device all that remains of its pieces is checked.
/// # Errors
/// `Truncated`: an acknowledged frame may have been cut off. `Device`.
pub(super) fn end_of(
    source: &RecoverySource<'_>,
    tables: &ObjectTables,
    stream: &StreamEntry,
    last_lsn: u64,
) -> Result<StreamEnd, StoreOpenError> {
    let StreamEntry { pieces, trimmed, .. } = stream;
    if !is_cut(source, pieces) {
        return end_of_whole(source, stream, last_lsn);
    }
    let left = StreamEntry {
        pieces: pieces.iter().map(|piece| piece.within(source.whole_pages())).collect(),
        durable: DurableFrames::default(),
        ..stream.clone()
    };
    let end = end_of_whole(source, &left, last_lsn)?;
    if end_is_visible(source, pieces, &end, *trimmed)? { Ok(end) } else { Err(truncated(source, tables)) }
}

/// Whether the device ends before one of the pieces does. For salvage this is always `false`.
pub(super) fn is_cut(source: &RecoverySource<'_>, pieces: &[StreamPiece]) -> bool {
    let pages = source.whole_pages();
    !source.salvage && pieces.iter().any(|piece| piece.run.end() > pages)
}

pub(super) fn truncated(source: &RecoverySource<'_>, tables: &ObjectTables) -> StoreOpenError {
    StoreOpenError::Truncated {
        store_bytes: tables.pages.saturating_mul(source.page_bytes as u64),
        device_bytes: source.device.geometry().size,
    }
}

/// Whether the page of the next frame exists and holds no frame. Frames follow one another page by page, so
/// the truncated part held none either. If that page is missing, an acknowledged frame cannot be
/// distinguished from unused space.
fn end_is_visible(
    source: &RecoverySource<'_>,
    pieces: &[StreamPiece],
    end: &StreamEnd,
    trimmed: u64,
) -> Result<bool, StoreOpenError> {
    let Some(piece) = pieces.get(end.piece) else {
        return Ok(true);
    };
    let is_last = end.piece + 1 == pieces.len();
    // If trimmed frames are missing, the page of the next frame is unknown.
    let is_passed_over = end.used == 0 && end.next <= trimmed && end.next > piece.first;
    // A stream without frames may be a raw extent: all of it belongs to a caller, and nothing says which
    // bytes count.
    let is_raw = end.used == 0 && end.piece == 0;
    if end.damaged || !is_last || is_passed_over || is_raw {
        return Ok(false);
    }
    if end.used == piece.run.pages {
        return Ok(true);
    }
    let at = piece.run.at + u64::from(end.used);
    if at >= source.whole_pages() {
        return Ok(false);
    }
    let page = source.read(PageRun::new(at, 1))?;
    let is_frame = frame::claimed(&page).is_ok_and(|(header, _)| header.incarnation == piece.incarnation);
    Ok(!is_frame)
}

fn end_of_whole(
    source: &RecoverySource<'_>,
    stream: &StreamEntry,
    last_lsn: u64,
) -> Result<StreamEnd, StoreOpenError> {
    let read = |run: PageRun| source.read(run);
    let walk = FrameWalk {
        pieces: &stream.pieces,
        trimmed: if source.broken.by(StoreFlaw::TrimBehindTheEnd) { 0 } else { stream.trimmed },
        // Salvage reads every frame that is left.
        durable: if source.salvage { DurableFrames::default() } else { stream.durable },
        pages_max: stream.frame_pages_max,
        last_lsn,
        page_bytes: source.page_bytes,
        salvage: source.salvage,
        read: &read,
    };
    Ok(walk.end()?)
}
