//! Places of records in segments: the chain of segments, found by their headers.
//!
//! A position is a segment in the upper half of 64 bits, and a page of it in the lower.
//! Design: docs/design/object.md#log OBJ-32
//! Invariants
//! - A segment follows another one only if that one's header names it, and if its own header has the next number.
//!   So no chain of headers has a circle.

use super::RecoverySource;
use crate::{
    StoreOpenError,
    backend::log::{CommitHead, NextSegments},
    format::{
        run::PageRun,
        segment::{ChainSegment, SegmentError, SegmentHeader},
        superblock::Superblock,
    },
    space::segment_table::SegmentTable,
    tables::snapshot::CheckpointPosition,
};
use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

/// Segments of records from the one of the oldest needed record on.
#[derive(Clone, Debug)]
pub(crate) struct FoundSegments {
    pub(crate) chain: Vec<u32>,
    /// Number of the last one in the chain.
    pub(crate) number: u64,
    pub(crate) next: NextSegments,
}

impl FoundSegments {
    /// The segment of `head` only, for an opening that writes nothing.
    pub(super) fn without_chain(head: u64) -> FoundSegments {
        let (segment, _) = split(head);
        FoundSegments {
            chain: vec![segment],
            number: 0,
            next: NextSegments { next: segment, ahead: Vec::new() },
        }
    }

    /// The segment behind all of them.
    pub(crate) fn end(&self) -> u64 {
        let named = self.chain.iter().chain([&self.next.next]).chain(&self.next.ahead);
        named.max().map_or(0, |last| u64::from(*last) + 1)
    }
}

/// Most segments whose headers are searched for a later part of the chain: seconds on a disk that turns.
const SEARCHED_SEGMENTS_MAX: u64 = 4096;

/// The segment that a header names, if its own header does not continue the chain. Without a crash, it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeadlessSegment {
    segment: u32,
    /// Number that its header would have.
    number: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct SegmentPlaces {
    store: u64,
    segment_pages: u32,
    /// Segments within the store.
    segments: u64,
    group_pages_max: u32,
    headers: HashMap<u32, Option<SegmentHeader>>,
}

impl SegmentPlaces {
    pub(super) fn new(superblock: &Superblock, position: &CheckpointPosition) -> SegmentPlaces {
        let store = superblock.uuid as u64;
        let (segment, _) = split(position.journal_head);
        let ChainSegment { number, next } = position.segment;
        let known = SegmentHeader { store, segment: segment.into(), number, next };
        let page_bytes = superblock.page_bytes as usize;
        let segment_pages = superblock.segment_bytes / superblock.page_bytes;
        SegmentPlaces {
            store,
            segment_pages,
            segments: superblock.size_bytes / u64::from(superblock.segment_bytes),
            group_pages_max: CommitHead::group_pages_max(segment_pages, page_bytes),
            headers: (number > 0).then_some((segment, Some(known))).into_iter().collect(),
        }
    }

    /// The valid header of a segment.
    fn header(
        &mut self,
        source: &RecoverySource<'_>,
        segment: u32,
    ) -> Result<Option<SegmentHeader>, StoreOpenError> {
        let own = |header: &SegmentHeader| header.segment == u64::from(segment);
        Ok(self.any_header(source, segment)?.filter(own))
    }

    /// The header of this store at the begin of a segment, also that of another segment.
    /// # Errors
    /// `Version`: a later release wrote it. `Device`.
    fn any_header(
        &mut self,
        source: &RecoverySource<'_>,
        segment: u32,
    ) -> Result<Option<SegmentHeader>, StoreOpenError> {
        if let Some(header) = self.headers.get(&segment) {
            return Ok(*header);
        }
        let at = u64::from(segment) * u64::from(self.segment_pages);
        // A store that grew after its last checkpoint has segments behind the size in the superblock.
        if at >= source.whole_pages() {
            return Ok(None);
        }
        let page = match source.read(PageRun::new(at, 1)) {
            Ok(page) => page,
            Err(error) if error.is_passing() => return Err(error.into()),
            Err(_) => return Ok(None),
        };
        let header = match SegmentHeader::decode(&page) {
            Ok(header) => Some(header).filter(|header| header.store == self.store),
            Err(SegmentError::Envelope(error)) if !error.is_damage() => {
                return Err(StoreOpenError::Version { what: error.to_string() });
            }
            Err(_) => None,
        };
        self.headers.insert(segment, header);
        Ok(header)
    }

    /// The segment that the header of `segment` names, if its own header is valid and has the next number.
    fn following(
        &mut self,
        source: &RecoverySource<'_>,
        segment: u32,
    ) -> Result<Option<u32>, StoreOpenError> {
        let Some(header) = self.header(source, segment)? else {
            return Ok(None);
        };
        let Ok(next) = u32::try_from(header.next) else {
            return Ok(None);
        };
        let is_valid = self.header(source, next)?.is_some_and(|next| next.number == header.number + 1);
        Ok(is_valid.then_some(next))
    }

    /// Positions of the record that follows one that ends at `position`.
    pub(super) fn starts(
        &mut self,
        source: &RecoverySource<'_>,
        position: u64,
    ) -> Result<Vec<u64>, StoreOpenError> {
        let here = self.here(position).into_iter();
        // A group that fits into the rest of its segment lies there.
        let next = match self.left(position) < self.group_pages_max {
            true => self.next_start(source, position)?,
            false => None,
        };
        Ok(here.chain(next).collect())
    }

    /// Positions of the second record that follows one that ends at `position`, and of the first, in ranges. The
    /// first one has at most `first_pages` pages.
    pub(super) fn second_starts(
        &mut self,
        source: &RecoverySource<'_>,
        position: u64,
        first_pages: u64,
    ) -> Result<Vec<Range<u64>>, StoreOpenError> {
        let first = first_pages.min(self.group_pages_max.into()) as u32;
        let here = self.here(position).map(|start| self.behind(start, first));
        let left = self.left(position);
        let next = match left < first + self.group_pages_max {
            true => self.next_start(source, position)?,
            false => None,
        };
        let next = next.map(|start| match left < first {
            true => self.behind(start, first),
            // The first fits into this segment, and the second may not.
            false => start..start + 1,
        });
        Ok(here.into_iter().chain(next).collect())
    }

    /// A position at which a record may begin.
    fn here(&self, position: u64) -> Option<u64> {
        let (_, page) = split(position);
        (page > 0 && page < self.segment_pages).then_some(position)
    }

    /// Pages of the segment from `position` on.
    fn left(&self, position: u64) -> u32 {
        let (_, page) = split(position);
        self.segment_pages.saturating_sub(page)
    }

    /// Position of the first record in the segment after the one of `position`.
    fn next_start(
        &mut self,
        source: &RecoverySource<'_>,
        position: u64,
    ) -> Result<Option<u64>, StoreOpenError> {
        let (segment, _) = split(position);
        Ok(self.following(source, segment)?.map(|next| CommitHead::position(next, 1)))
    }

    /// Positions of a record at `start`, and behind one there of at most `pages` pages.
    fn behind(&self, start: u64, pages: u32) -> Range<u64> {
        let (segment, page) = split(start);
        let end = self.segment_pages.min(page.saturating_add(pages + 1));
        start..CommitHead::position(segment, end)
    }

    /// The segment that the header of the one at `position` names, if the chain ends before it.
    pub(super) fn headless(
        &mut self,
        source: &RecoverySource<'_>,
        position: u64,
    ) -> Result<Option<HeadlessSegment>, StoreOpenError> {
        let (segment, _) = split(position);
        let Some(header) = self.header(source, segment)? else {
            return Ok(None);
        };
        let Ok(next) = u32::try_from(header.next) else {
            return Ok(None);
        };
        let is_headless = self.following(source, segment)?.is_none();
        Ok(is_headless.then_some(HeadlessSegment { segment: next, number: header.number + 1 }))
    }

    /// Positions at which the first records of a segment would begin.
    pub(super) fn first_places(&self, headless: HeadlessSegment) -> Range<u64> {
        self.behind(CommitHead::position(headless.segment, 1), self.group_pages_max)
    }

    /// Whether another header shows that the one of a segment was written: it lies in another segment, or a later
    /// one exists. Blocks.
    pub(super) fn was_written(
        &mut self,
        source: &RecoverySource<'_>,
        headless: HeadlessSegment,
    ) -> Result<bool, StoreOpenError> {
        for segment in 0..self.segments.min(SEARCHED_SEGMENTS_MAX) as u32 {
            let Some(found) = self.any_header(source, segment)? else { continue };
            let is_it = found.segment == u64::from(headless.segment) && found.number == headless.number;
            let is_later = found.segment == u64::from(segment) && found.number > headless.number;
            if is_it || is_later {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Pages on the device of a record at `position`; `None` if it would leave its segment.
    pub(super) fn run(&self, position: u64, pages: u64) -> Option<PageRun> {
        let (segment, page) = split(position);
        let fits = u64::from(page) + pages <= self.segment_pages.into() && pages > 0;
        let at = u64::from(segment) * u64::from(self.segment_pages) + u64::from(page);
        fits.then(|| PageRun::new(at, pages as u32))
    }

    /// Pages on the device that may be read with `pages` pages at `position`, at most `most`.
    pub(super) fn readable(&self, position: u64, pages: u64, most: u64) -> PageRun {
        let (segment, page) = split(position);
        let at = u64::from(segment) * u64::from(self.segment_pages) + u64::from(page);
        let left = u64::from(self.segment_pages.saturating_sub(page));
        PageRun::new(at, left.min(most.max(pages)) as u32)
    }

    /// Most pages of one record at `position`.
    pub(super) fn record_pages_max(&self, position: u64) -> u64 {
        let (_, page) = split(position);
        self.group_pages_max.min(self.segment_pages.saturating_sub(page)).into()
    }

    /// Most pages of all records together.
    pub(super) fn pages(&self) -> u64 {
        (self.segments + 1) * u64::from(self.segment_pages)
    }

    /// The segments from `tail` to `head`, and the one after them.
    /// # Errors
    /// `Damaged`: a header on the way is missing, or names a segment that holds no records. `Device`.
    pub(super) fn chain(
        &mut self,
        source: &RecoverySource<'_>,
        tail: u64,
        head: u64,
        segments: &SegmentTable,
    ) -> Result<FoundSegments, StoreOpenError> {
        let damaged = |segment: u32| StoreOpenError::Damaged {
            what: format!("the header of segment {segment}, which holds records, is missing"),
        };
        let (mut segment, _) = split(tail);
        let (last, _) = split(head);
        let mut chain = vec![segment];
        while segment != last {
            segment = self.following(source, segment)?.ok_or_else(|| damaged(segment))?;
            chain.push(segment);
        }
        let header = self.header(source, last)?.ok_or_else(|| damaged(last))?;
        let next = u32::try_from(header.next).map_err(|_| damaged(last))?;
        let mut ahead = Vec::new();
        let mut at = last;
        while let Some(valid) = self.following(source, at)? {
            let named = self.header(source, valid)?.ok_or_else(|| damaged(valid))?;
            ahead.push(u32::try_from(named.next).map_err(|_| damaged(valid))?);
            at = valid;
        }
        let named = chain.iter().chain([&next]).chain(&ahead).copied();
        let mut seen = HashSet::new();
        for segment in named {
            if !seen.insert(segment) || !segments.is_usable(PageRun::new(segments.first_page(segment), 1)) {
                let what = format!("a header names segment {segment}, which cannot hold records");
                return Err(StoreOpenError::Damaged { what });
            }
        }
        Ok(FoundSegments { chain, number: header.number, next: NextSegments { next, ahead } })
    }
}

/// Segment and page of a position.
fn split(position: u64) -> (u32, u32) {
    ((position >> 32) as u32, position as u32)
}
