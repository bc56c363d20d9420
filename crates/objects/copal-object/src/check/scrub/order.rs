//! Order of a scrub: extents and pieces by their addresses, a bounded number at a time.
//!
//! One pass over the tables keeps the parts nearest to the place; when these are read, another pass finds the next.
//! Invariants
//! - Memory does not grow with the store: at most [`PARTS_MAX`] parts.
//! - Every part that lies behind the place at a pass, and does not move, comes once.

use crate::{
    format::run::PageRun,
    state::StoreCore,
    tables::{TableEntry, chunks::EntryChunks},
};
use std::{cmp::Reverse, collections::BinaryHeap};

/// Most parts in memory. Few in tests, so that they see several passes.
const PARTS_MAX: usize = if cfg!(test) { 8 } else { 1 << 16 };

/// An extent of an object or a piece of a stream, or the rest of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ScrubPart {
    /// First page that is not read yet.
    pub(super) at: u64,
    pub(super) id: u64,
    pub(super) run: PageRun,
    pub(super) within: PartPlace,
}

/// Place of a part in its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PartPlace {
    /// First page inside the object.
    Object(u64),
    /// Number of the piece's first frame.
    Stream(u64),
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct ScrubOrder {
    place: u64,
    parts: BinaryHeap<Reverse<ScrubPart>>,
    /// Parts from this page on are still to be found. `None`: there are none.
    planned_to: Option<u64>,
    /// Pages of all parts, and of those before the place.
    pub(super) total_pages: u64,
    pub(super) done_pages: u64,
}

impl ScrubOrder {
    /// All parts from page `place` on.
    pub(super) fn new(place: u64) -> ScrubOrder {
        ScrubOrder { place, parts: BinaryHeap::new(), planned_to: Some(place), total_pages: 0, done_pages: 0 }
    }

    /// Everything before this page was read.
    pub(super) fn place(&self) -> u64 {
        let first = self.parts.peek().map(|part| part.0.at);
        first.or(self.planned_to).unwrap_or(u64::MAX).max(self.place)
    }

    /// Finds the next parts if none is left; `false`: everything was read. Reads the tables without the mutex.
    pub(super) fn plan(&mut self, store: &StoreCore) -> bool {
        while self.parts.is_empty() {
            let Some(from) = self.planned_to else { return false };
            self.place = self.place.max(from);
            let entries = store.state.lock().tables.entries.clone();
            self.find(&entries);
        }
        true
    }

    fn find(&mut self, entries: &EntryChunks) {
        let mut nearest: BinaryHeap<ScrubPart> = BinaryHeap::new();
        let mut beyond: Option<u64> = None;
        (self.total_pages, self.done_pages) = (0, 0);
        for (id, entry) in entries.iter() {
            each_part(id, entry, &mut |mut part| {
                self.total_pages += u64::from(part.run.pages);
                part.at = part.run.at.max(self.place).min(part.run.end());
                self.done_pages += part.at - part.run.at;
                if part.at == part.run.end() {
                    return;
                }
                nearest.push(part);
                if nearest.len() > PARTS_MAX {
                    let farthest = nearest.pop().map(|part| part.at);
                    beyond = farthest.min(beyond.or(farthest));
                }
            });
        }
        // Many clones may begin at one page; those that do not fit are read with the others.
        let fits = |part: &ScrubPart| beyond.is_none_or(|beyond| part.at < beyond);
        let is_one_place = !nearest.iter().any(fits);
        self.planned_to = if is_one_place { beyond.map(|beyond| beyond + 1) } else { beyond };
        self.parts = nearest.into_iter().filter(|part| is_one_place || fits(part)).map(Reverse).collect();
    }

    /// The next part.
    pub(super) fn first(&self) -> Option<ScrubPart> {
        self.parts.peek().map(|part| part.0)
    }

    /// The first part was read up to page `to`.
    pub(super) fn advance(&mut self, to: u64) {
        let Some(Reverse(mut part)) = self.parts.pop() else { return };
        let to = to.clamp(part.at, part.run.end());
        self.done_pages += to - part.at;
        part.at = to;
        if to < part.run.end() {
            self.parts.push(Reverse(part));
        }
    }
}

fn each_part(id: u64, entry: &TableEntry, see: &mut dyn FnMut(ScrubPart)) {
    let part = |run: PageRun, within| ScrubPart { at: run.at, id, run, within };
    match entry {
        TableEntry::Object(object) => {
            object.map.iter().for_each(|extent| see(part(extent.run, PartPlace::Object(extent.at))));
        }
        TableEntry::Stream(stream) => {
            stream.pieces.iter().for_each(|piece| see(part(piece.run, PartPlace::Stream(piece.first))));
        }
    }
}
