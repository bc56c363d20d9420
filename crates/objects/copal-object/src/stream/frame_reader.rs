//! Reading a stream frame by frame.
//!
//! Not here: finding the end after a crash (`walk`); in an open store the end of a stream is known.

use crate::{
    FramePos, ObjectId, StoreError, engine::pump::wait_change, format::run::PageRun, state::StoreCore,
    stream::walk::ReadAhead, tables::StreamPiece,
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
        let inner = Arc::clone(&self.inner);
        let mut state = inner.state.lock();
        let (piece, trimmed, ticket) = loop {
            let stream = state.tables.stream(self.id).ok_or(StoreError::NotFound(ObjectId(self.id)))?;
            self.next = self.next.max(stream.trimmed);
            let Some(tail) = state.streams.tail(self.id) else {
                return Ok(None);
            };
            if self.next >= tail.next {
                return if tail.damaged { Err(self.corrupt()) } else { Ok(None) };
            }
            if tail.pending.is_in_flight(self.next) {
                // After a failed write or flush, frames in flight are no longer awaited.
                if let Some(failure) = state.fence.failure() {
                    return Err(StoreError::Device(failure.clone()));
                }
                wait_change(&inner, &mut state);
                continue;
            }
            let behind = stream.pieces.partition_point(|piece| piece.first <= self.next);
            let found = behind.checked_sub(1).and_then(|index| stream.pieces.get(index)).copied();
            let piece = found.ok_or_else(|| self.corrupt())?;
            if piece.incarnation == StreamPiece::RIDING && state.is_unwritten(piece.run) {
                if let Some(failure) = state.fence.failure() {
                    return Err(StoreError::Device(failure.clone()));
                }
                wait_change(&inner, &mut state);
                continue;
            }
            let trimmed = stream.trimmed;
            let ticket = state.space.pin(vec![piece.run]);
            break (piece, trimmed, ticket);
        };
        drop(state);
        let result = self.read(&piece, trimmed);
        inner.unpin(ticket);
        result.map(Some)
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

    /// Reads frame `next` of `piece`, and the unread ones before it. A damaged frame is skipped if it lies
    /// before `trimmed`, or in any place for salvage.
    fn read(&mut self, piece: &StreamPiece, trimmed: u64) -> Result<(FramePos, Bytes), StoreError> {
        let (mut at, mut number) = match self.place {
            Some((current, at, number)) if current.continues_as(piece) && number <= self.next => (at, number),
            _ => (0, piece.first),
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
            at += pages;
            number += 1;
            if header.frame == self.next {
                self.next += 1;
                self.place = Some((*piece, at, number));
                return Ok((FramePos(header.frame), Bytes::from(payload)));
            }
        }
    }
}

impl std::fmt::Debug for FrameReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameReader").field("id", &self.id).field("next", &self.next).finish_non_exhaustive()
    }
}
