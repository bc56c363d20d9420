//! Moves: pages of objects and streams that the cleaner has copied, in the tables.
//!
//! Invariants
//! - Sums stay as they are, so damage that was copied is still found.
//! - An owner that is not named keeps the old pages.

use super::{ObjectTables, OpEffect, OpMisfit, StreamPiece, TableEntry};
use crate::format::{moved_part::MovedPart, run::PageRun};
use std::sync::Arc;

impl ObjectTables {
    /// The parts, in the order of their places, now lie in `to`. Parts of several owners may have one place.
    pub(super) fn move_parts(
        &mut self,
        to: PageRun,
        parts: &[MovedPart],
        effect: &mut OpEffect,
    ) -> Result<(), OpMisfit> {
        let (mut before, mut covered) = (0, 0);
        for part in parts {
            let misfit = |what| OpMisfit { id: part.id, what };
            let run = part.place_in(to).filter(|_| part.offset >= before);
            let run = run.ok_or(misfit("its parts are moved out of order"))?;
            self.inside(part.id, run)?;
            if !self.relocate(part, run.at) {
                return Err(misfit("it has no such pages to move"));
            }
            self.shared.release(vec![part.from], &mut effect.freed);
            let shared = part.from.pages.min(u32::saturating_sub(covered, part.offset));
            if shared > 0 {
                self.shared.share(PageRun::new(run.at, shared));
            }
            (before, covered) = (part.offset, covered.max(part.offset + part.from.pages));
        }
        Ok(())
    }

    fn relocate(&mut self, part: &MovedPart, to: u64) -> bool {
        let page_bytes = self.page_bytes;
        match self.entries.get_mut(part.id) {
            Some(TableEntry::Object(object)) => {
                let unit = object.unit(page_bytes);
                Arc::make_mut(&mut object.map).relocate(part.at, part.from, to, unit)
            }
            Some(TableEntry::Stream(stream)) => {
                let piece = Arc::make_mut(stream).pieces.iter_mut().find(|piece| is_part(piece, part));
                piece.is_some_and(|piece| {
                    piece.run.at = to;
                    true
                })
            }
            None => false,
        }
    }

    /// Whether the pages of `part` are still where they were.
    pub(crate) fn holds_part(&self, part: &MovedPart) -> bool {
        match self.entries.get(part.id) {
            Some(TableEntry::Object(object)) => {
                object.map.is_movable(part.at, part.from, object.unit(self.page_bytes))
            }
            Some(TableEntry::Stream(stream)) => stream.pieces.iter().any(|piece| is_part(piece, part)),
            None => false,
        }
    }
}

/// Whether `part` is the whole piece.
fn is_part(piece: &StreamPiece, part: &MovedPart) -> bool {
    (piece.first, piece.run, piece.incarnation) == (part.at, part.from, StreamPiece::RIDING)
}
