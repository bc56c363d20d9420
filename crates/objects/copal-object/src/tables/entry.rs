//! Entries of the tables: objects, and streams with their pieces.
//!
//! Not here: the operations (`tables`), the entries by id (`chunks`), the encoding (`snapshot`).

use crate::{
    ReadCheck,
    format::{
        ops::{DurableFrames, ObjectTraits, TailCut},
        record::COUNTER_MAX,
        run::PageRun,
    },
    tables::map::ExtentMap,
};
use std::sync::Arc;

/// Bytes that one sum of a `ReadCheck::Caller` object covers.
const SUM_UNIT_BYTES: usize = 64 << 10;

/// A plain or sealed object.
#[derive(Clone, Debug)]
pub(crate) struct ObjectEntry {
    pub(crate) what: ObjectTraits,
    pub(crate) sealed: bool,
    /// Cloned or a clone: its pages may have several owners.
    pub(crate) shares: bool,
    pub(crate) len: u64,
    /// Shared with copies of the tables, and by objects without pages.
    pub(crate) map: Arc<ExtentMap>,
    /// Hash of the sum trailer, which follows the data; published objects only.
    pub(crate) trailer: Option<Arc<u128>>,
}

impl ObjectEntry {
    /// Pages under one sum.
    pub(crate) fn unit(&self, page_bytes: usize) -> u32 {
        unit_pages(self.what.check, page_bytes)
    }

    /// Number of data pages, including the last partial one.
    pub(crate) fn data_pages(&self, page_bytes: usize) -> u64 {
        self.len.div_ceil(page_bytes as u64)
    }
}

/// One use of a run of pages by a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamPiece {
    pub(crate) run: PageRun,
    /// Number of its first frame.
    pub(crate) first: u64,
    pub(crate) incarnation: u64,
    /// Commit that entered it.
    pub(crate) lsn: u64,
}

impl StreamPiece {
    /// Incarnation of a piece that holds nothing but frames, each named by a record.
    pub(crate) const RIDING: u64 = 0;

    /// Whether `later` is the same piece, perhaps with more frames.
    pub(crate) fn continues_as(&self, later: &StreamPiece) -> bool {
        (self.run.at, self.first, self.incarnation) == (later.run.at, later.first, later.incarnation)
    }

    /// The part of it within the first `pages` of the device.
    pub(crate) fn within(mut self, pages: u64) -> StreamPiece {
        let left = pages.saturating_sub(self.run.at);
        self.run.pages = u64::from(self.run.pages).min(left) as u32;
        self
    }
}

/// A stream: pieces in order. A piece ends where the next begins.
#[derive(Clone, Debug)]
pub(crate) struct StreamEntry {
    pub(crate) what: ObjectTraits,
    pub(crate) pieces: Vec<StreamPiece>,
    /// First frame that is kept.
    pub(crate) trimmed: u64,
    /// Frames known to be durable.
    pub(crate) durable: DurableFrames,
    /// No frame has more pages until a record raises this: so far recovery looks behind a missing frame for
    /// one that calls it durable.
    pub(crate) frame_pages_max: u32,
}

impl StreamEntry {
    /// A stream without frames.
    pub(crate) fn new(what: ObjectTraits, frame_pages_max: u32) -> StreamEntry {
        StreamEntry {
            what,
            pieces: Vec::new(),
            trimmed: 0,
            durable: DurableFrames::default(),
            frame_pages_max,
        }
    }

    /// The piece with frame `frame`, if it exists.
    pub(crate) fn piece_of(&self, frame: u64) -> Option<(usize, &StreamPiece)> {
        let index = self.pieces.partition_point(|piece| piece.first <= frame).checked_sub(1)?;
        Some((index, &self.pieces[index]))
    }

    /// Ends the stream before frame `cut.from`, and adds the pages of later frames to `freed`. The stream continues
    /// behind all pages that they may have used, so that they stay as they are until the cut is durable (OBJ-37).
    /// # Errors
    /// The cut does not fit; nothing has changed.
    pub(crate) fn truncate(
        &mut self,
        cut: &TailCut,
        lsn: u64,
        freed: &mut Vec<PageRun>,
    ) -> Result<(), &'static str> {
        let &TailCut { from, kept, used, incarnation } = cut;
        let (Some((index, &piece)), Some(&last)) = (self.piece_of(from), self.pieces.last()) else {
            return Err("it has no frames where it is cut");
        };
        let is_last = index + 1 == self.pieces.len();
        let used_here = if is_last { used } else { piece.run.pages };
        if from < self.trimmed
            || from > COUNTER_MAX
            || (kept > 0 && piece.first == from)
            || kept > used_here
            || used > last.run.pages
            || (used < last.run.pages && last.incarnation == StreamPiece::RIDING)
        {
            return Err("it is cut outside");
        }
        freed.extend(part(piece.run, kept, used_here));
        freed.extend(self.pieces[index + 1..].iter().rev().skip(1).map(|piece| piece.run));
        if !is_last {
            freed.extend(part(last.run, 0, used));
        }
        self.pieces.truncate(index + 1);
        match kept {
            0 => drop(self.pieces.pop()),
            _ => self.pieces[index].run.pages = kept,
        }
        let rest = part(last.run, used, last.run.pages);
        self.pieces.extend(rest.map(|run| StreamPiece { run, first: from, incarnation, lsn }));
        if self.durable.next > from {
            self.durable = DurableFrames { next: from, last: None };
        }
        Ok(())
    }

    /// Whether records name each of its frames, so that it has no extents.
    pub(crate) fn rides(&self) -> bool {
        self.pieces.last().is_some_and(|piece| piece.incarnation == StreamPiece::RIDING)
    }
}

/// Pages `from..to` of `run`, if they are any.
fn part(run: PageRun, from: u32, to: u32) -> Option<PageRun> {
    (from < to).then(|| PageRun::new(run.at + u64::from(from), to - from))
}

/// An object or a stream.
#[derive(Clone, Debug)]
pub(crate) enum TableEntry {
    Object(ObjectEntry),
    Stream(Arc<StreamEntry>),
}

/// Pages under one sum.
pub(crate) fn unit_pages(check: ReadCheck, page_bytes: usize) -> u32 {
    match check {
        ReadCheck::Pages => 1,
        ReadCheck::Caller => (SUM_UNIT_BYTES / page_bytes) as u32,
    }
}
