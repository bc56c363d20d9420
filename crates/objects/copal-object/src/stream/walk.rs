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
        frame::{self, FrameHeader},
        ops::DurableFrames,
        record::COUNTER_MAX,
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
    /// First page of the frame before the end, if it was found in this piece.
    pub(crate) last: Option<u32>,
    /// Later frames show that the frame at the end was durable.
    pub(crate) damaged: bool,
}

/// Frames that a walk found one behind the other.
struct FoundFrames {
    end: StreamEnd,
    /// A lost commit is the cause of the end.
    lost: bool,
    /// Pages of the longest one.
    longest: u32,
}

/// Most bytes read at once, unless a frame is longer.
const WINDOW_BYTES: usize = 1 << 20;
/// Fewest bytes read at first.
const FIRST_BYTES: usize = 16 << 10;

/// A read window over one piece at a time, so that small frames do not cost a read each. Pages behind the
/// requested ones may be unreadable, which does not concern the request.
pub(super) struct PieceWindow<'a> {
    pub(super) read: ReadPages<'a>,
    pub(super) page_bytes: usize,
    pub(super) piece: PageRun,
    /// First page held, in the piece.
    pub(super) at: u32,
    pub(super) bytes: Vec<u8>,
    /// Pages of the next read, and of the longest.
    pub(super) ahead: u32,
    pub(super) ahead_max: u32,
}

impl PieceWindow<'_> {
    /// From now on pages belong to `piece`.
    fn enter(&mut self, piece: PageRun) {
        if self.piece != piece {
            self.piece = piece;
            self.bytes = Vec::new();
        }
    }

    /// Pages `at..at+pages` of the piece; `None` beyond its end.
    fn pages(&mut self, at: u32, pages: u32) -> Result<Option<&[u8]>, DeviceError> {
        if at.checked_add(pages).is_none_or(|end| end > self.piece.pages) {
            return Ok(None);
        }
        let held = (self.bytes.len() / self.page_bytes) as u32;
        if at < self.at || at + pages > self.at + held {
            let read = |pages| (self.read)(PageRun::new(self.piece.at + u64::from(at), pages));
            // Freed first: a window is as long as the longest frame.
            self.bytes = Vec::new();
            let window = pages.max(self.ahead).min(self.piece.pages - at);
            self.bytes = read(window).or_else(|error| match error.is_passing() {
                true => Err(error),
                false => read(pages),
            })?;
            self.at = at;
            self.ahead = self.ahead.saturating_mul(2).min(self.ahead_max);
        }
        let from = (at - self.at) as usize * self.page_bytes;
        Ok(Some(&self.bytes[from..from + pages as usize * self.page_bytes]))
    }
}

/// Header, pages and payload of a frame.
pub(super) type FoundDamage<'w> = (FrameHeader, u32, &'w [u8]);

/// A valid frame at page `at` of a piece: its header, pages and payload.
pub(super) fn frame_at<'w>(
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
    // Numbers continue from there, so none is near the end of its counter.
    if claimed.incarnation != incarnation || claimed.frame > COUNTER_MAX {
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
pub(super) fn behind_damage(
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

/// The search for the end of a stream.
pub(crate) struct FrameWalk<'a> {
    pub(crate) pieces: &'a [StreamPiece],
    /// Frames before this are not needed; the stream ends here or later.
    pub(crate) trimmed: u64,
    /// Frames known to be durable: the search begins at the last of them, if it is found in its place.
    pub(crate) durable: DurableFrames,
    /// Pages of the longest frame.
    pub(crate) pages_max: u32,
    /// Frames whose `after` lies beyond do not count.
    pub(crate) last_lsn: u64,
    pub(crate) page_bytes: usize,
    /// See the module's text.
    pub(crate) salvage: bool,
    pub(crate) read: ReadPages<'a>,
}

impl FrameWalk<'_> {
    /// Finds the end. Blocks.
    /// # Errors
    /// The device cannot read a page.
    pub(crate) fn end(&self) -> Result<StreamEnd, DeviceError> {
        let most = (WINDOW_BYTES / self.page_bytes) as u32;
        // A frame known to be durable, the next one, and a page behind it: usually nothing else is read.
        let first = self.pages_max.saturating_mul(2).saturating_add(1);
        let mut window = PieceWindow {
            read: self.read,
            page_bytes: self.page_bytes,
            piece: PageRun::new(0, 0),
            at: 0,
            bytes: Vec::new(),
            ahead: first.max((FIRST_BYTES / self.page_bytes) as u32).min(most),
            ahead_max: most,
        };
        let start = self.start(&mut window)?;
        let FoundFrames { mut end, lost, longest } = self.frames_that_count(start, &mut window)?;
        let unread = self.trimmed.saturating_sub(end.next);
        end.next = end.next.max(self.trimmed);
        // If a commit is lost, no frame behind it was durable either.
        end.damaged = !lost && self.was_durable(&end, unread, longest, &mut window)?;
        if unread > 0 {
            // No frame of this piece is needed: all of it is reused.
            (end.used, end.last) = (0, None);
        }
        Ok(end)
    }

    /// Place where the search begins: behind the last frame known to be durable, if it is found in its place;
    /// otherwise at the begin of a piece. Pieces before that of the first needed or unknown frame are skipped.
    fn start(&self, window: &mut PieceWindow<'_>) -> Result<StreamEnd, DeviceError> {
        let DurableFrames { next, last } = self.durable;
        let first = self.pieces.iter().rposition(|piece| piece.first <= self.trimmed.max(next)).unwrap_or(0);
        let mut start = StreamEnd { next: 0, piece: first, used: 0, last: None, damaged: false };
        let Some(piece) = self.pieces.get(first) else {
            return Ok(start);
        };
        start.next = piece.first;
        let Some(at) = last.filter(|_| piece.first < next) else {
            return Ok(start);
        };
        window.enter(piece.run);
        match frame_at(window, at, piece.incarnation)? {
            Some((header, pages, _)) if header.frame == next - 1 => {
                Ok(StreamEnd { next, used: at + pages, last: Some(at), ..start })
            }
            _ => Ok(start),
        }
    }

    /// The consecutive frames from `start` on.
    fn frames_that_count(
        &self,
        start: StreamEnd,
        window: &mut PieceWindow<'_>,
    ) -> Result<FoundFrames, DeviceError> {
        let wanted = if self.salvage { u64::MAX } else { self.trimmed };
        let first = start.piece;
        let mut longest = start.last.map_or(0, |last| start.used - last);
        let mut end = start;
        for (index, piece) in self.pieces.iter().enumerate().skip(first) {
            if index > first {
                if piece.first != end.next {
                    break;
                }
                (end.piece, end.used, end.last) = (index, 0, None);
            }
            let limit = self.pieces.get(index + 1).map(|next| next.first);
            window.enter(piece.run);
            while limit.is_none_or(|limit| end.next < limit) {
                let found = frame_at(window, end.used, piece.incarnation)?;
                let Some((header, pages, _)) = found.filter(|(header, ..)| header.frame == end.next) else {
                    let next = match end.next < wanted {
                        true => behind_damage(window, end.used, piece.incarnation, wanted)?,
                        false => None,
                    };
                    let Some((at, frame)) = next.filter(|(_, frame)| *frame > end.next) else {
                        break;
                    };
                    (end.used, end.next, end.last) = (at, frame, None);
                    continue;
                };
                if header.after > self.last_lsn {
                    return Ok(FoundFrames { end, lost: true, longest });
                }
                longest = longest.max(pages);
                end.last = Some(end.used);
                end.next += 1;
                end.used += pages;
            }
            match limit {
                // The last frames of this piece are lost; the first number of the next piece tells how many.
                Some(limit) if self.salvage => end.next = end.next.max(limit),
                Some(limit) if end.next >= limit => {}
                _ => break,
            }
        }
        Ok(FoundFrames { end, lost: false, longest })
    }

    /// Whether a later frame calls the frame at the end durable. Before the end lie the pages of `unread`
    /// frames that are not needed.
    fn was_durable(
        &self,
        end: &StreamEnd,
        unread: u64,
        longest: u32,
        window: &mut PieceWindow<'_>,
    ) -> Result<bool, DeviceError> {
        let Some(piece) = self.pieces.get(end.piece) else {
            return Ok(false);
        };
        window.enter(piece.run);
        // The next frame starts within the pages of the longest possible frames before it.
        // A promise that a frame breaks limits nothing.
        let most = if longest > self.pages_max { frame::pages_max(self.page_bytes) } else { self.pages_max };
        let reach = u64::from(most).saturating_mul(unread.saturating_add(1));
        let reach = u32::try_from(reach).unwrap_or(u32::MAX);
        let last = piece.run.pages.min(end.used.saturating_add(reach).saturating_add(1));
        let mut at = end.used;
        let mut found = None;
        while at < last {
            match frame_at(window, at, piece.incarnation)? {
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
            found = match frame_at(window, at, piece.incarnation)? {
                Some((header, ..)) if header.flushed_frame > end.next => return Ok(true),
                Some((_, pages, _)) => Some(at + pages),
                None => None,
            };
        }
        // The next piece exists only if this one was full; its frames may also show durability.
        for piece in self.pieces.iter().skip(end.piece + 1) {
            window.enter(piece.run);
            let mut at = 0;
            while let Some((header, pages, _)) = frame_at(window, at, piece.incarnation)? {
                if header.frame > end.next && header.flushed_frame > end.next {
                    return Ok(true);
                }
                at += pages;
            }
        }
        Ok(false)
    }
}
