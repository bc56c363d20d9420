//! Reading a stream frame by frame.
//!
//! Not here: finding the end after a crash (`walk`); in an open store the end of a stream is known.

use crate::{
    FramePos, ObjectId, StoreError,
    engine::pump::wait_change,
    format::run::PageRun,
    state::{StoreCore, stream::StreamTail},
    stream::read_ahead::{FrameSearch, ReadAhead, SEARCHED_PAGES_MAX},
    tables::{StreamEntry, StreamPiece},
};
use bytes::Bytes;
use std::sync::Arc;

/// Frames in order. The end of the log is `Ok(None)`, damage is `Err(Corrupt)`.
pub struct FrameReader {
    inner: Arc<StoreCore>,
    id: u64,
    next: u64,
    /// The current piece, page in it, and number of the frame there.
    place: Option<(StreamPiece, u32, u64)>,
    ahead: ReadAhead,
    /// Pages of the frames read, if a check requested them.
    seen: Option<Vec<PageRun>>,
}

/// The piece of the next frame, which stays in place.
struct PinnedPiece {
    piece: StreamPiece,
    /// First kept frame of the stream.
    trimmed: u64,
    /// Page of the frame, if it is known.
    page: Option<u32>,
    /// Where it can be searched for.
    search: Option<FrameSearch>,
    ticket: u64,
}

/// A frame in its piece.
struct FoundFrame {
    at: u32,
    pages: u32,
    payload: Vec<u8>,
}

impl FrameReader {
    pub(crate) fn new(
        inner: &Arc<StoreCore>,
        id: ObjectId,
        from: FramePos,
    ) -> Result<FrameReader, StoreError> {
        let state = inner.state.lock();
        let Some(stream) = state.tables.stream(id.0) else {
            let known = state.tables.entries.contains(id.0);
            return Err(if known { StoreError::WrongKind(id) } else { StoreError::NotFound(id) });
        };
        let next = from.0.max(stream.trimmed);
        Ok(FrameReader {
            inner: Arc::clone(inner),
            id: id.0,
            next,
            place: None,
            ahead: ReadAhead::default(),
            seen: None,
        })
    }

    /// The next frame, or `None` at the end; a later call returns frames appended meanwhile. Blocks on the
    /// device.
    /// # Errors
    /// `Corrupt`: an acknowledged frame is damaged. `NotFound`: the stream was deleted meanwhile. `Device`.
    pub fn next_frame(&mut self) -> Result<Option<(FramePos, Bytes)>, StoreError> {
        let Some(piece) = self.pin_piece()? else {
            return Ok(None);
        };
        let found = self.search(&piece).and_then(|page| self.find(&piece, page));
        self.inner.unpin(piece.ticket);
        let FoundFrame { at, pages, payload } = found?;
        let number = self.next;
        self.next += 1;
        self.place = Some((piece.piece, at + pages, self.next));
        Ok(Some((FramePos(number), Bytes::from(payload))))
    }

    /// Piece of the next frame, and its page there. `None` at the end. Reads every frame before it in its piece, unless
    /// its page is in memory. Blocks on the device.
    /// # Errors
    /// As [`FrameReader::next_frame`].
    pub(crate) fn place_of_next(&mut self) -> Result<Option<(StreamPiece, u32)>, StoreError> {
        let Some(piece) = self.pin_piece()? else {
            return Ok(None);
        };
        let found = self.find(&piece, piece.page);
        self.inner.unpin(piece.ticket);
        Ok(Some((piece.piece, found?.at)))
    }

    /// Pins the piece of the next frame, once that frame is on the device. `None` at the end.
    fn pin_piece(&mut self) -> Result<Option<PinnedPiece>, StoreError> {
        let inner = Arc::clone(&self.inner);
        let mut state = inner.state.lock();
        loop {
            let stream = state.tables.stream(self.id).ok_or(StoreError::NotFound(ObjectId(self.id)))?;
            self.next = self.next.max(stream.trimmed);
            let Some(tail) = state.streams.tail(self.id) else {
                return Ok(None);
            };
            if self.next >= tail.next {
                return if tail.damaged { Err(self.corrupt()) } else { Ok(None) };
            }
            let piece = stream.piece_of(self.next).map(|(_, piece)| *piece).ok_or_else(|| self.corrupt())?;
            let rides = piece.incarnation == StreamPiece::RIDING;
            if tail.pending.is_in_flight(self.next) || rides && state.is_unwritten(piece.run) {
                // After a failed write or flush, frames in flight are no longer awaited.
                if let Some(failure) = state.fence.failure() {
                    return Err(StoreError::Device(failure.clone()));
                }
                wait_change(&inner, &mut state);
                continue;
            }
            // Frames before it may be in flight, so that they cannot lead to it.
            let page = tail.pending.page_of(self.next).filter(|_| self.seen.is_none());
            let search = (!rides).then(|| search(stream, tail, self.next));
            let trimmed = stream.trimmed;
            let ticket = state.space.pin(vec![piece.run]);
            return Ok(Some(PinnedPiece { piece, trimmed, page, search, ticket }));
        }
    }

    /// Records the pages of a frame; adjacent frames stay separate.
    fn saw(&mut self, frame: PageRun) {
        if let Some(seen) = &mut self.seen {
            seen.push(frame);
        }
    }

    /// From here on the pages of frames are recorded.
    pub(crate) fn note_seen(&mut self) {
        self.seen = Some(Vec::new());
    }

    /// Pages of every frame read since [`FrameReader::note_seen`], including those before the first requested
    /// one.
    pub(crate) fn take_seen(&mut self) -> Vec<PageRun> {
        self.seen.take().unwrap_or_default()
    }

    fn corrupt(&self) -> StoreError {
        StoreError::Corrupt { id: ObjectId(self.id), range: self.next..self.next + 1 }
    }

    /// Page of frame `next`, if it is in memory or a search finds it. A check reads all frames instead, and salvage
    /// expects damage.
    fn search(&mut self, pinned: &PinnedPiece) -> Result<Option<u32>, StoreError> {
        let PinnedPiece { piece, page, search, .. } = pinned;
        let is_next = |place: &(StreamPiece, u32, u64)| place.0.continues_as(piece) && place.2 == self.next;
        let reads_all = self.seen.is_some() || self.inner.shape.salvage;
        let Some(search) =
            search.filter(|_| page.is_none() && !reads_all && !self.place.as_ref().is_some_and(is_next))
        else {
            return Ok(*page);
        };
        if search.frame == search.low.1 {
            return Ok(Some(search.low.0));
        }
        if search.pages_max > SEARCHED_PAGES_MAX {
            return Ok(None);
        }
        let inner = Arc::clone(&self.inner);
        let page_bytes = inner.shape.page_bytes;
        let left = inner.device.geometry().size / page_bytes as u64;
        Ok(self.ahead.search(&piece.within(left), search, page_bytes, &|run| inner.read_pages(run))?)
    }

    /// Finds frame `next` in its piece, and reads the unread ones before it. A damaged frame is skipped if it lies
    /// before the trim, or in any place for salvage.
    fn find(&mut self, pinned: &PinnedPiece, page: Option<u32>) -> Result<FoundFrame, StoreError> {
        let &PinnedPiece { ref piece, trimmed, .. } = pinned;
        let (mut at, mut number) = match self.place {
            Some((current, at, number)) if current.continues_as(piece) && number == self.next => (at, number),
            _ => page.map_or((0, piece.first), |page| (page, self.next)),
        };
        // If the end of the store was cut off and it is open read-only, the rest of the piece holds all frames.
        let left = self.inner.device.geometry().size / self.inner.shape.page_bytes as u64;
        let piece = &match self.inner.shape.salvage {
            true => *piece,
            false => piece.within(left),
        };
        let wanted = match self.inner.shape.salvage {
            true => self.next,
            false => trimmed,
        };
        loop {
            let inner = Arc::clone(&self.inner);
            let found = self.ahead.frame(piece, at, inner.shape.page_bytes, &|run| inner.read_pages(run))?;
            let Some((header, pages, payload)) = found.filter(|(header, ..)| header.frame == number) else {
                let read = |run: PageRun| inner.read_pages(run);
                let page_bytes = inner.shape.page_bytes;
                let next = match number < wanted {
                    true => self.ahead.behind_damage(piece, at, wanted, page_bytes, &read)?,
                    false => None,
                };
                let Some(next) = next.filter(|(_, frame)| *frame > number) else {
                    return Err(self.corrupt());
                };
                (at, number) = next;
                continue;
            };
            self.saw(PageRun::new(piece.run.at + u64::from(at), pages));
            if header.frame == self.next {
                return Ok(FoundFrame { at, pages, payload });
            }
            at += pages;
            number += 1;
        }
    }
}

/// The search for frame `frame` of a stream.
fn search(stream: &StreamEntry, tail: &StreamTail, frame: u64) -> FrameSearch {
    let index = stream.piece_of(frame).map_or(0, |(index, _)| index);
    let piece = &stream.pieces[index];
    let (mut low, mut high) = ((0, piece.first), (piece.run.pages, tail.next));
    match stream.pieces.get(index + 1) {
        Some(later) => high.1 = later.first,
        None if !tail.damaged => high.0 = tail.used,
        None => {}
    }
    // The last durable frame, if it is in this piece.
    let known = tail.durable.next.checked_sub(1).zip(tail.durable.last);
    if let Some((number, page)) = known.filter(|(number, _)| (low.1..high.1).contains(number)) {
        match number <= frame {
            true => low = (page, number),
            false => high = (page, number),
        }
    }
    FrameSearch { frame, low, high, pages_max: stream.frame_pages_max }
}

impl std::fmt::Debug for FrameReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameReader").field("id", &self.id).field("next", &self.next).finish_non_exhaustive()
    }
}
