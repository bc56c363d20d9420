//! Walk over the frames of a stream: its end, and whether a crash or damage caused it.
//!
//! Design: docs/design/object.md#streams
//! Invariants
//! - The end is the first frame with a wrong sum, incarnation or number, or with a lost commit.
//! - A hole before a valid frame that calls the hole durable is damage, not a crash.
//! - Damaged or lost trimmed frames are skipped, since no caller needs them. A stream never ends before its
//!   trim, since new frames there would be invisible.
//! - For salvage every damaged frame is skipped: the end is behind the last valid one.

use crate::{
    format::{
        frame::{self, FRAME_BYTES_MAX, FrameHeader},
        run::PageRun,
    },
    tables::StreamPiece,
};
use copal_device::DeviceError;

/// Reads whole pages.
pub(crate) type ReadPages<'a> = &'a dyn Fn(PageRun) -> Result<Vec<u8>, DeviceError>;

/// The end of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamEnd {
    /// Number of the next frame.
    pub(crate) next: u64,
    /// Piece of the next frame, and used pages of the piece. Without pieces: 0 and 0.
    pub(crate) piece: usize,
    pub(crate) used: u32,
    /// Later frames show that the frame at the end was durable.
    pub(crate) damaged: bool,
}

/// Pages read at once while walking.
const WINDOW_PAGES: u32 = 64;

/// A read window over one piece, so that small frames do not cost a read each.
struct PieceWindow<'a> {
    read: ReadPages<'a>,
    piece: PageRun,
    page_bytes: usize,
    at: u32,
    bytes: Vec<u8>,
}

impl<'a> PieceWindow<'a> {
    fn new(read: ReadPages<'a>, piece: PageRun, page_bytes: usize) -> PieceWindow<'a> {
        PieceWindow { read, piece, page_bytes, at: 0, bytes: Vec::new() }
    }

    /// Pages `at..at+pages` of the piece; `None` beyond its end.
    fn pages(&mut self, at: u32, pages: u32) -> Result<Option<&[u8]>, DeviceError> {
        if at.checked_add(pages).is_none_or(|end| end > self.piece.pages) {
            return Ok(None);
        }
        let held = (self.bytes.len() / self.page_bytes) as u32;
        if at < self.at || at + pages > self.at + held {
            let count = pages.max(WINDOW_PAGES).min(self.piece.pages - at);
            // Freed first: a window is as long as the longest frame.
            self.bytes = Vec::new();
            self.bytes = (self.read)(PageRun::new(self.piece.at + u64::from(at), count))?;
            self.at = at;
        }
        let from = (at - self.at) as usize * self.page_bytes;
        Ok(Some(&self.bytes[from..from + pages as usize * self.page_bytes]))
    }
}

/// Header, pages and payload of a frame.
type FoundDamage<'w> = (FrameHeader, u32, &'w [u8]);

/// A valid frame at page `at` of a piece: its header, pages and payload.
fn frame_at<'w>(
    window: &'w mut PieceWindow<'_>,
    at: u32,
    incarnation: u64,
) -> Result<Option<FoundDamage<'w>>, DeviceError> {
    let page_bytes = window.page_bytes;
    let Some(first) = window.pages(at, 1)? else {
        return Ok(None);
    };
    let Ok((claimed, payload)) = frame::claimed(first) else {
        return Ok(None);
    };
    if claimed.incarnation != incarnation {
        return Ok(None);
    }
    let pages = frame::pages_for(payload, page_bytes) as u32;
    let Some(bytes) = window.pages(at, pages)? else {
        return Ok(None);
    };
    match frame::decode(bytes) {
        Ok((header, payload)) => {
            Ok(Some((header, pages, &bytes[frame::HEADER_LEN..frame::HEADER_LEN + payload])))
        }
        Err(_) => Ok(None),
    }
}

/// Place where a piece continues behind a damaged frame at page `at`: page and number of the next valid
/// frame. `None` if the number exceeds `wanted`, since a requested frame would be missed.
fn behind_damage(
    window: &mut PieceWindow<'_>,
    at: u32,
    incarnation: u64,
    wanted: u64,
) -> Result<Option<(u32, u64)>, DeviceError> {
    for at in at + 1..window.piece.pages {
        if let Some((header, ..)) = frame_at(window, at, incarnation)? {
            return Ok(Some((at, header.frame)).filter(|(_, frame)| *frame <= wanted));
        }
    }
    Ok(None)
}

/// Finds the end of a stream, which is at `trimmed` or later; frames before `trimmed` are not needed. Frames
/// whose `after` lies beyond `last_lsn` do not count. `each` receives every frame that was read and counts;
/// pieces that end before `trimmed` are not read. `salvage`: see the module's text.
pub(crate) fn walk(
    pieces: &[StreamPiece],
    trimmed: u64,
    last_lsn: u64,
    page_bytes: usize,
    salvage: bool,
    read: ReadPages<'_>,
    each: impl FnMut(u64, &[u8]),
) -> Result<StreamEnd, DeviceError> {
    let (mut end, lost) = frames_that_count(pieces, trimmed, last_lsn, page_bytes, salvage, read, each)?;
    let unread = trimmed.saturating_sub(end.next);
    end.next = end.next.max(trimmed);
    // If a commit is lost, no frame behind it was durable either.
    end.damaged = !lost && was_durable(pieces, &end, unread, page_bytes, read)?;
    if unread > 0 {
        // No frame of this piece is needed: all of it is reused.
        end.used = 0;
    }
    Ok(end)
}

/// End of the consecutive frames, and whether a lost commit is its cause.
fn frames_that_count(
    pieces: &[StreamPiece],
    trimmed: u64,
    last_lsn: u64,
    page_bytes: usize,
    salvage: bool,
    read: ReadPages<'_>,
    mut each: impl FnMut(u64, &[u8]),
) -> Result<(StreamEnd, bool), DeviceError> {
    let wanted = if salvage { u64::MAX } else { trimmed };
    // Pieces before that of the first needed frame are skipped.
    let first = pieces.iter().rposition(|piece| piece.first <= trimmed).unwrap_or(0);
    let mut end = StreamEnd {
        next: pieces.get(first).map_or(0, |piece| piece.first),
        piece: first,
        used: 0,
        damaged: false,
    };
    for (index, piece) in pieces.iter().enumerate().skip(first) {
        if piece.first != end.next {
            break;
        }
        let limit = pieces.get(index + 1).map(|next| next.first);
        let mut window = PieceWindow::new(read, piece.run, page_bytes);
        end.piece = index;
        end.used = 0;
        while limit.is_none_or(|limit| end.next < limit) {
            let found = frame_at(&mut window, end.used, piece.incarnation)?;
            let Some((header, pages, payload)) = found.filter(|(header, ..)| header.frame == end.next) else {
                let next = match end.next < wanted {
                    true => behind_damage(&mut window, end.used, piece.incarnation, wanted)?,
                    false => None,
                };
                let Some((at, frame)) = next.filter(|(_, frame)| *frame > end.next) else {
                    break;
                };
                (end.used, end.next) = (at, frame);
                continue;
            };
            if header.after > last_lsn {
                return Ok((end, true));
            }
            each(header.frame, payload);
            end.next += 1;
            end.used += pages;
        }
        match limit {
            // The last frames of this piece are lost; the first number of the next piece tells how many.
            Some(limit) if salvage => end.next = end.next.max(limit),
            Some(limit) if end.next >= limit => {}
            _ => break,
        }
    }
    Ok((end, false))
}

/// Whether a later frame calls the frame at the end durable. Before the end lie the pages of `unread` frames
/// that are not needed.
fn was_durable(
    pieces: &[StreamPiece],
    end: &StreamEnd,
    unread: u64,
    page_bytes: usize,
    read: ReadPages<'_>,
) -> Result<bool, DeviceError> {
    let Some(piece) = pieces.get(end.piece) else {
        return Ok(false);
    };
    let frame_pages = (FRAME_BYTES_MAX / page_bytes) as u32;
    let mut window = PieceWindow::new(read, piece.run, page_bytes);
    // The next frame starts within the pages of the longest possible frames before it.
    let reach = u64::from(frame_pages).saturating_mul(unread.saturating_add(1));
    let reach = u32::try_from(reach).unwrap_or(u32::MAX);
    let last = piece.run.pages.min(end.used.saturating_add(reach).saturating_add(1));
    let mut at = end.used;
    let mut found = None;
    while at < last {
        match frame_at(&mut window, at, piece.incarnation)? {
            Some((header, pages, _)) if header.frame > end.next => {
                if header.flushed_frame > end.next {
                    return Ok(true);
                }
                found = Some(at + pages);
                break;
            }
            _ => at += 1,
        }
    }
    // From there on frames follow one another again.
    while let Some(at) = found {
        found = match frame_at(&mut window, at, piece.incarnation)? {
            Some((header, ..)) if header.flushed_frame > end.next => return Ok(true),
            Some((_, pages, _)) => Some(at + pages),
            None => None,
        };
    }
    // The next piece exists only if this one was full; its frames may also show durability.
    for piece in pieces.iter().skip(end.piece + 1) {
        let mut window = PieceWindow::new(read, piece.run, page_bytes);
        let mut at = 0;
        while let Some((header, pages, _)) = frame_at(&mut window, at, piece.incarnation)? {
            if header.frame > end.next && header.flushed_frame > end.next {
                return Ok(true);
            }
            at += pages;
        }
    }
    Ok(false)
}

/// Pages of a piece read ahead, in an open store whose stream end is known.
#[derive(Default)]
pub(crate) struct ReadAhead {
    piece: Option<PageRun>,
    at: u32,
    bytes: Vec<u8>,
}

impl ReadAhead {
    /// See [`behind_damage`].
    pub(crate) fn behind_damage(
        &mut self,
        piece: &StreamPiece,
        at: u32,
        wanted: u64,
        page_bytes: usize,
        read: ReadPages<'_>,
    ) -> Result<Option<(u32, u64)>, DeviceError> {
        let mut window = PieceWindow::new(read, piece.run, page_bytes);
        behind_damage(&mut window, at, piece.incarnation, wanted)
    }

    /// The valid frame at page `at` of `piece`. Tries the pages read ahead first, then reads them again: the
    /// frame may have been appended since.
    pub(crate) fn frame(
        &mut self,
        piece: &StreamPiece,
        at: u32,
        page_bytes: usize,
        read: ReadPages<'_>,
    ) -> Result<Option<(FrameHeader, u32, Vec<u8>)>, DeviceError> {
        if self.piece != Some(piece.run) {
            *self = ReadAhead { piece: Some(piece.run), ..ReadAhead::default() };
        }
        let bytes = std::mem::take(&mut self.bytes);
        let mut window = PieceWindow { read, piece: piece.run, page_bytes, at: self.at, bytes };
        let mut found = frame_at(&mut window, at, piece.incarnation)?.map(owned);
        if found.is_none() {
            window.bytes.clear();
            found = frame_at(&mut window, at, piece.incarnation)?.map(owned);
        }
        self.at = window.at;
        self.bytes = window.bytes;
        Ok(found)
    }
}

fn owned((header, pages, payload): FoundDamage<'_>) -> (FrameHeader, u32, Vec<u8>) {
    (header, pages, payload.to_vec())
}
