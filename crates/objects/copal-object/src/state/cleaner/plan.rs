//! Plan of a round: the parts of objects and streams in the victims, and batches of them.
//!
//! The search reads all entries as they were when the round began, with the mutex released. A part that an operation
//! changes meanwhile is not moved.
//!
//! A part consists of whole units of its extent, so it may begin or end outside its victim. A batch takes the parts in
//! the order of their old places: they are read in one direction.

use crate::{
    format::{moved_part::MovedPart, run::PageRun},
    space::segment_table::SegmentTable,
    state::cleaner::{MoveBatch, PlannedPart},
    tables::{ObjectEntry, ObjectTables, StreamPiece, TableEntry, chunks::EntryChunks},
};
use std::{collections::VecDeque, ops::Range};

/// Parts of cloned objects end near multiples of so many pages.
const SHARED_PAGES: u64 = 32;

/// Page ranges, sorted and apart from each other.
#[derive(Debug)]
struct PageRanges {
    ranges: Vec<Range<u64>>,
}

impl PageRanges {
    fn new(mut ranges: Vec<Range<u64>>) -> PageRanges {
        ranges.sort_unstable_by_key(|range| range.start);
        let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match joined.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        PageRanges { ranges: joined }
    }

    /// The parts of `run` in the ranges.
    fn within(&self, run: PageRun) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.ranges.partition_point(|range| range.end <= run.at);
        self.ranges[first..]
            .iter()
            .take_while(move |range| range.start < run.end())
            .map(move |range| range.start.max(run.at)..range.end.min(run.end()))
    }

    fn contains(&self, run: PageRun) -> bool {
        self.within(run).next().is_some_and(|range| range == (run.at..run.end()))
    }
}

/// A search for the parts that empty segments.
#[derive(Debug)]
pub(crate) struct PartSearch {
    entries: EntryChunks,
    page_bytes: usize,
    ranges: PageRanges,
}

impl PartSearch {
    pub(crate) fn new(tables: &ObjectTables, segments: &SegmentTable, victims: &[u32]) -> PartSearch {
        let size = u64::from(segments.segment_pages());
        let range = |&segment: &u32| {
            let first = segments.first_page(segment);
            first..first + size
        };
        let ranges = PageRanges::new(victims.iter().map(range).collect());
        PartSearch { entries: tables.entries.clone(), page_bytes: tables.page_bytes, ranges }
    }

    /// The parts in the order of their places. Reads all entries.
    pub(crate) fn run(self) -> VecDeque<PlannedPart> {
        let mut parts = all_parts(&self.entries, self.page_bytes, self.ranges);
        parts.sort_unstable_by_key(|planned| {
            let part = &planned.part;
            (part.from.at, part.from.pages, part.id, part.at)
        });
        parts.into()
    }
}

/// Parts in the ranges, and every part that shares a page with one of them.
fn all_parts(entries: &EntryChunks, page_bytes: usize, mut ranges: PageRanges) -> Vec<PlannedPart> {
    loop {
        let mut parts = Vec::new();
        let mut is_wider = false;
        for (id, entry) in entries.iter() {
            match entry {
                TableEntry::Object(object) => {
                    let before = parts.len();
                    object_parts(page_bytes, id, object, &ranges, &mut parts);
                    is_wider |= object.shares
                        && parts[before..]
                            .iter()
                            .any(|planned: &PlannedPart| !ranges.contains(planned.part.from));
                }
                TableEntry::Stream(stream) => {
                    let riding =
                        stream.pieces.iter().filter(|piece| piece.incarnation == StreamPiece::RIDING);
                    let inside = riding.filter(|piece| ranges.within(piece.run).next().is_some());
                    parts.extend(inside.map(|piece| PlannedPart {
                        part: MovedPart { id, at: piece.first, from: piece.run, offset: 0 },
                        unit: 0,
                    }));
                }
            }
        }
        if !is_wider {
            return parts;
        }
        // A part of a cloned object reaches beyond the ranges: other owners of its pages move with it.
        let reached = parts.iter().map(|planned| planned.part.from.at..planned.part.from.end());
        ranges = PageRanges::new(ranges.ranges.iter().cloned().chain(reached).collect());
    }
}

/// The parts of one object, each of whole units.
fn object_parts(
    page_bytes: usize,
    id: u64,
    object: &ObjectEntry,
    ranges: &PageRanges,
    parts: &mut Vec<PlannedPart>,
) {
    let unit = object.unit(page_bytes);
    for extent in object.map.iter() {
        let mut done = 0;
        for range in ranges.within(extent.run) {
            let offset = |page: u64| (page - extent.run.at) as u32;
            let first = (offset(range.start) / unit * unit).max(done);
            let end = offset(range.end).next_multiple_of(unit).min(extent.run.pages);
            if first < end {
                let from = PageRun::new(extent.run.at + u64::from(first), end - first);
                let part = MovedPart { id, at: extent.at + u64::from(first), from, offset: 0 };
                parts.extend(cut_parts(part, unit, object.shares));
            }
            done = done.max(end);
        }
    }
}

/// Parts of cloned objects are cut near the same pages of the device, so that all owners of a page move it together.
fn cut_parts(part: MovedPart, unit: u32, shares: bool) -> Vec<PlannedPart> {
    let mut cut = Vec::new();
    let mut rest = part;
    loop {
        let border = (rest.from.at + 1).next_multiple_of(SHARED_PAGES);
        let pages = ((border - rest.from.at) as u32 / unit * unit).max(unit);
        if !shares || pages >= rest.from.pages {
            break;
        }
        let (first, behind) = split(rest, pages);
        cut.push(PlannedPart { part: first, unit });
        rest = behind;
    }
    cut.push(PlannedPart { part: rest, unit });
    cut
}

/// Parts among which one is sought that fits into the rest of a segment.
const SOUGHT_PARTS: usize = 256;

/// One of the next parts that fits into `pages` pages, for the rest of a segment into which the first does not fit.
pub(crate) fn short_batch(parts: &mut VecDeque<PlannedPart>, pages: u32) -> Option<MoveBatch> {
    let overlaps = |first: usize| {
        let (first, second) = (parts.get(first), parts.get(first + 1));
        first.zip(second).is_some_and(|(first, second)| second.part.from.at < first.part.from.end())
    };
    let fits = |&index: &usize| {
        let alone = !overlaps(index) && !index.checked_sub(1).is_some_and(overlaps);
        alone && parts[index].part.from.pages <= pages
    };
    let index = (0..parts.len().min(SOUGHT_PARTS)).find(fits)?;
    let PlannedPart { part, .. } = parts.remove(index)?;
    Some(MoveBatch { parts: vec![part], pages: part.from.pages })
}

/// Cuts a part after `pages` pages.
fn split(part: MovedPart, pages: u32) -> (MovedPart, MovedPart) {
    let MovedPart { id, at, from, offset } = part;
    let rest = PageRun::new(from.at + u64::from(pages), from.pages - pages);
    let first = MovedPart { id, at, from: PageRun::new(from.at, pages), offset };
    (first, MovedPart { id, at: at + u64::from(pages), from: rest, offset })
}

/// The next parts as a batch of at most `pages_max` pages and `parts_max` parts. Parts of the same pages get the same
/// place. `None`: the first part is longer and cannot be cut.
pub(crate) fn next_batch(
    parts: &mut VecDeque<PlannedPart>,
    pages_max: u32,
    parts_max: usize,
) -> Option<MoveBatch> {
    let mut batch = MoveBatch { parts: Vec::new(), pages: 0 };
    // Old pages up to here lie in the batch.
    let mut end = 0;
    while batch.parts.len() < parts_max
        && let Some(planned) = parts.front().copied()
    {
        let mut part = planned.part;
        let overlaps = !batch.parts.is_empty() && part.from.at < end;
        let more = if overlaps { part.from.end().saturating_sub(end) as u32 } else { part.from.pages };
        let room = pages_max - batch.pages;
        if more <= room {
            parts.pop_front();
        } else {
            let cut = room.checked_div(planned.unit).unwrap_or(0) * planned.unit;
            let is_shared = parts.get(1).is_some_and(|next| next.part.from.at < part.from.end());
            if overlaps || is_shared || cut == 0 {
                break;
            }
            let (first, rest) = split(part, cut);
            part = first;
            parts[0].part = rest;
        }
        // An owner that is moved apart from the others gets pages of its own.
        part.offset = if overlaps { batch.pages - (end - part.from.at) as u32 } else { batch.pages };
        batch.pages += if overlaps { more } else { part.from.pages };
        end = if overlaps { end.max(part.from.end()) } else { part.from.end() };
        batch.parts.push(part);
    }
    (!batch.parts.is_empty()).then_some(batch)
}
