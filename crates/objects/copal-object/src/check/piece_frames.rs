//! Frames of one piece of a stream, in order, with their places.
//!
//! Invariants
//! - It visits each page once, and twice behind damage: the work is bounded by the piece, not by numbers in it.
//!
//! Not here: the end of a stream (`stream::walk`), which an open store knows.

use crate::{
    format::frame::FrameHeader,
    stream::{read_ahead::ReadAhead, walk::ReadPages},
    tables::StreamPiece,
};
use copal_device::DeviceError;

/// A frame, or a place where one is missing.
pub(crate) enum PieceFrame {
    Whole {
        header: FrameHeader,
        /// Its first page in the piece, and its pages.
        at: u32,
        pages: u32,
        /// Bytes of its payload.
        payload: usize,
    },
    /// This frame is damaged or missing, and perhaps some behind it.
    Missing { frame: u64 },
}

/// See the module's text.
pub(crate) struct PieceFrames<'a> {
    piece: StreamPiece,
    /// Page of the next frame in the piece, and its number, unless the walk begins in the middle.
    at: u32,
    next: Option<u64>,
    /// Frames from here on do not belong to the piece, or do not count.
    limit: u64,
    ahead: ReadAhead,
    page_bytes: usize,
    read: ReadPages<'a>,
}

impl<'a> PieceFrames<'a> {
    /// The frames of `piece` below `limit`, from page `at` of it on, where a frame begins.
    pub(crate) fn new(
        piece: &StreamPiece,
        at: u32,
        limit: u64,
        page_bytes: usize,
        read: ReadPages<'a>,
    ) -> PieceFrames<'a> {
        let next = (at == 0).then_some(piece.first);
        PieceFrames { piece: *piece, at, next, limit, ahead: ReadAhead::default(), page_bytes, read }
    }

    /// Goes on with pages that an earlier walk over the piece has read ahead.
    pub(crate) fn with_ahead(self, ahead: ReadAhead) -> PieceFrames<'a> {
        PieceFrames { ahead, ..self }
    }

    pub(crate) fn into_ahead(self) -> ReadAhead {
        self.ahead
    }

    /// Number of the next frame; that of the piece's first one if it is unknown.
    pub(crate) fn number(&self) -> u64 {
        self.next.unwrap_or(self.piece.first)
    }

    /// Page in the piece at which the next frame begins.
    pub(crate) fn at(&self) -> u32 {
        self.at
    }

    /// The next frame; `None` at the end.
    /// # Errors
    /// Its pages cannot be read.
    pub(crate) fn next(&mut self) -> Result<Option<PieceFrame>, DeviceError> {
        if self.next.is_some_and(|next| next >= self.limit) || self.at >= self.piece.run.pages {
            return Ok(self.rest());
        }
        let found = self.ahead.frame(&self.piece, self.at, self.page_bytes, self.read)?;
        let Some((header, pages, payload)) =
            found.filter(|(header, ..)| self.next.is_none_or(|next| next == header.frame))
        else {
            return self.behind_damage();
        };
        if header.frame >= self.limit {
            return Ok(None);
        }
        let at = self.at;
        self.at += pages;
        self.next = Some(header.frame + 1);
        Ok(Some(PieceFrame::Whole { header, at, pages, payload: payload.len() }))
    }

    /// Frames that the end of the piece hides.
    fn rest(&mut self) -> Option<PieceFrame> {
        let frame = self.next.filter(|next| *next < self.limit)?;
        self.next = Some(self.limit);
        Some(PieceFrame::Missing { frame })
    }

    /// Goes on at the next intact frame of the piece.
    fn behind_damage(&mut self) -> Result<Option<PieceFrame>, DeviceError> {
        let Some(frame) = self.next else {
            // No frame begins here: the piece is walked from its beginning.
            (self.at, self.next) = (0, Some(self.piece.first));
            return self.next();
        };
        let (piece, page_bytes) = (&self.piece, self.page_bytes);
        let behind = self.ahead.behind_damage(piece, self.at, u64::MAX, page_bytes, self.read)?;
        match behind.filter(|(_, number)| (frame + 1..self.limit).contains(number)) {
            Some((at, number)) => (self.at, self.next) = (at, Some(number)),
            None => (self.at, self.next) = (piece.run.pages, Some(self.limit)),
        }
        Ok(Some(PieceFrame::Missing { frame }))
    }
}
