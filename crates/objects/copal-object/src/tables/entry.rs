//! Entries of the tables: objects, and streams with their pieces.
//!
//! Not here: the operations (`tables`), the entries by id (`chunks`), the encoding (`snapshot`).

use crate::{
    ReadCheck,
    format::{
        ops::{DurableFrames, ObjectTraits},
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

    /// Whether records name each of its frames, so that it has no extents.
    pub(crate) fn rides(&self) -> bool {
        self.pieces.last().is_some_and(|piece| piece.incarnation == StreamPiece::RIDING)
    }
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
