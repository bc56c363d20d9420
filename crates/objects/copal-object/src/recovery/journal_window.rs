//! Window over the journal: the places where records may lie, and their pages, read 1 MiB at a time.
//!
//! The walk, the search behind its end and the replay share one window, so none reads page by page. Only
//! [`RecordPlaces`] knows the journal's shape on the device.
//! Invariants
//! - Pages behind the requested ones may be unreadable, which does not concern the request.

use super::{
    RecoverySource,
    segment_places::{FoundSegments, SegmentPlaces},
};
use crate::{
    StoreOpenError,
    format::{
        record,
        run::PageRun,
        superblock::{BACKEND_LOG, Superblock},
    },
    space::segment_table::SegmentTable,
    tables::snapshot::CheckpointPosition,
};
use copal_device::DeviceError;
use std::ops::Range;

/// Bytes read at once, unless a record is longer.
const WINDOW_BYTES: usize = 1 << 20;

/// A ring of pages in which no record wraps. Positions count pages from the
/// store's first record on; modulo the ring's length they give the place in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingPlaces {
    /// First page on the device.
    at: u64,
    pages: u64,
    record_pages_max: u64,
}

impl RingPlaces {
    fn new(superblock: &Superblock) -> RingPlaces {
        let (pages, page_bytes) = (superblock.journal_pages, superblock.page_bytes as usize);
        let record_pages_max = (record::bytes_max(pages, page_bytes) / page_bytes) as u64;
        RingPlaces { at: superblock.journal_at, pages, record_pages_max }
    }

    /// Pages of the journal: more than its records take together.
    fn pages(&self) -> u64 {
        self.pages
    }

    /// Longest record in bytes.
    pub(super) fn record_bytes_max(&self, page_bytes: usize) -> usize {
        self.record_pages_max as usize * page_bytes
    }

    /// The ring's next start behind `position`, and the pages before it; `None` at a start.
    fn wrap(&self, position: u64) -> Option<(u64, u64)> {
        let start = position.next_multiple_of(self.pages);
        (start > position).then_some((start, start - position))
    }

    /// Positions of the record that follows one that ends at `position`: there, or at the ring's start if the
    /// longest record would not fit before the ring's end.
    fn starts(&self, position: u64) -> impl Iterator<Item = u64> + use<> {
        let wrapped = self.wrap(position).filter(|&(_, left)| left < self.record_pages_max);
        std::iter::once(position).chain(wrapped.map(|(start, _)| start))
    }

    /// Positions of the second record that follows one that ends at `position`, and of the first, in ranges. The
    /// first one has at most `first_pages` pages.
    fn second_starts(&self, position: u64, first_pages: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let first = first_pages.min(self.record_pages_max);
        let behind = |start: u64| start..(start + first + 1).min((start / self.pages + 1) * self.pages);
        let wrapped = self.wrap(position).and_then(|(start, left)| match left {
            left if left < first => Some(behind(start)),
            // The first fits before the ring's end, and the second may not.
            left if left < first + self.record_pages_max => Some(start..start + 1),
            _ => None,
        });
        std::iter::once(behind(position)).chain(wrapped)
    }

    /// Pages on the device of a record at `position`; `None` if it would wrap.
    fn run(&self, position: u64, pages: u64) -> Option<PageRun> {
        let within = position % self.pages;
        (within + pages <= self.pages).then(|| PageRun::new(self.at + within, pages as u32))
    }

    /// Up to `ahead` pages on the device that may be read with the `pages` pages at `position`.
    fn readable(&self, position: u64, pages: u64, ahead: u64) -> PageRun {
        let within = position % self.pages;
        PageRun::new(self.at + within, (self.pages - within).min(ahead.max(pages)) as u32)
    }
}

/// The places where records may lie.
#[derive(Debug)]
pub(super) enum RecordPlaces {
    Ring(RingPlaces),
    Segments(SegmentPlaces),
}

impl RecordPlaces {
    fn new(superblock: &Superblock, position: &CheckpointPosition) -> RecordPlaces {
        match superblock.backend {
            BACKEND_LOG => RecordPlaces::Segments(SegmentPlaces::new(superblock, position)),
            _ => RecordPlaces::Ring(RingPlaces::new(superblock)),
        }
    }

    /// Pages of the journal: more than its records take together.
    pub(super) fn pages(&self) -> u64 {
        match self {
            RecordPlaces::Ring(ring) => ring.pages(),
            RecordPlaces::Segments(segments) => segments.pages(),
        }
    }

    /// Pages between a record that ends at `before` and the end of the next one, whose pages are `run`.
    pub(super) fn distance(&self, before: u64, end: u64, run: PageRun) -> u64 {
        match self {
            RecordPlaces::Ring(_) => end - before,
            RecordPlaces::Segments(_) => run.pages.into(),
        }
    }

    /// Positions of the record that follows one that ends at `position`.
    fn starts(&mut self, source: &RecoverySource<'_>, position: u64) -> Result<Vec<u64>, StoreOpenError> {
        match self {
            RecordPlaces::Ring(ring) => Ok(ring.starts(position).collect()),
            RecordPlaces::Segments(segments) => segments.starts(source, position),
        }
    }

    /// See [`RingPlaces::second_starts`].
    fn second_starts(
        &mut self,
        source: &RecoverySource<'_>,
        position: u64,
        first_pages: u64,
    ) -> Result<Vec<Range<u64>>, StoreOpenError> {
        match self {
            RecordPlaces::Ring(ring) => Ok(ring.second_starts(position, first_pages).collect()),
            RecordPlaces::Segments(segments) => segments.second_starts(source, position, first_pages),
        }
    }

    /// Pages on the device of a record at `position`; `None` if it cannot lie there.
    pub(super) fn run(&self, position: u64, pages: u64) -> Option<PageRun> {
        match self {
            RecordPlaces::Ring(ring) => ring.run(position, pages),
            RecordPlaces::Segments(segments) => segments.run(position, pages),
        }
    }

    fn readable(&self, position: u64, pages: u64, most: u64) -> PageRun {
        match self {
            RecordPlaces::Ring(ring) => ring.readable(position, pages, most),
            RecordPlaces::Segments(segments) => segments.readable(position, pages, most),
        }
    }
}

/// See the module's text.
pub(crate) struct JournalWindow<'a> {
    source: &'a RecoverySource<'a>,
    pub(super) places: RecordPlaces,
    /// Pages of the journal, from this page of the device on.
    bytes: Vec<u8>,
    at: u64,
}

impl<'a> JournalWindow<'a> {
    /// The journal from `position` on.
    pub(crate) fn new(
        source: &'a RecoverySource<'a>,
        superblock: &Superblock,
        position: &CheckpointPosition,
    ) -> JournalWindow<'a> {
        let places = RecordPlaces::new(superblock, position);
        JournalWindow { source, places, bytes: Vec::new(), at: 0 }
    }

    pub(super) fn source(&self) -> &'a RecoverySource<'a> {
        self.source
    }

    /// Positions of the record that follows one that ends at `position`.
    pub(super) fn starts(&mut self, position: u64) -> Result<Vec<u64>, StoreOpenError> {
        self.places.starts(self.source, position)
    }

    /// See [`RingPlaces::second_starts`].
    pub(super) fn second_starts(
        &mut self,
        position: u64,
        first_pages: u64,
    ) -> Result<Vec<Range<u64>>, StoreOpenError> {
        self.places.second_starts(self.source, position, first_pages)
    }

    /// The places of segments; `None` for a ring.
    pub(super) fn segment_places(&mut self) -> Option<&mut SegmentPlaces> {
        match &mut self.places {
            RecordPlaces::Ring(_) => None,
            RecordPlaces::Segments(segments) => Some(segments),
        }
    }

    /// The segments of records from `tail` to `head`; `None` for a ring.
    /// # Errors
    /// As [`SegmentPlaces::chain`].
    pub(super) fn segments(
        &mut self,
        tail: u64,
        head: u64,
        table: &SegmentTable,
    ) -> Result<Option<FoundSegments>, StoreOpenError> {
        match &mut self.places {
            RecordPlaces::Ring(_) => Ok(None),
            RecordPlaces::Segments(segments) => segments.chain(self.source, tail, head, table).map(Some),
        }
    }

    /// The `pages` pages at `position`; `None` if a record there would wrap. Cheap in ascending order: up to
    /// `ahead` pages are read at once. Blocks.
    /// # Errors
    /// One of these pages cannot be read, or no page can be read at this time.
    pub(super) fn pages(
        &mut self,
        position: u64,
        pages: u64,
        ahead: u64,
    ) -> Result<Option<&[u8]>, DeviceError> {
        let Some(run) = self.places.run(position, pages) else {
            return Ok(None);
        };
        let page_bytes = self.source.page_bytes;
        let held = (self.bytes.len() / page_bytes) as u64;
        if run.at < self.at || run.end() > self.at + held {
            let ahead = ahead.min((WINDOW_BYTES / page_bytes) as u64);
            let window = self.places.readable(position, pages, ahead);
            // Freed first: a window is as long as the longest record.
            self.bytes = Vec::new();
            self.bytes = self.source.read(window).or_else(|error| match error.is_passing() {
                true => Err(error),
                false => self.source.read(run),
            })?;
            self.at = run.at;
        }
        let from = (run.at - self.at) as usize * page_bytes;
        Ok(Some(&self.bytes[from..from + pages as usize * page_bytes]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every record behind one that ends at `position`, and every record behind that, by the rule of
    /// `JournalRing::place`.
    #[test]
    fn every_place_of_the_next_two_records_is_searched() {
        let places = RingPlaces { at: 7, pages: 40, record_pages_max: 5 };
        let next = |position: u64, pages: u64| match position % 40 + pages > 40 {
            true => position.next_multiple_of(40),
            false => position,
        };
        for (position, most) in (80..120).flat_map(|position| (1..=5).map(move |most| (position, most))) {
            let mut searched = std::collections::BTreeSet::new();
            for first in 1..=most {
                let start = next(position, first);
                assert!(places.starts(position).any(|at| at == start), "{position}, {first} pages");
                assert!(places.run(start, first).is_some());
                for second in 1..=5 {
                    let second = next(start + first, second);
                    let found = places.second_starts(position, most).any(|range| range.contains(&second));
                    assert!(found, "{position}, {first} pages, then {second}");
                    searched.insert(second);
                }
            }
            // A record that a checkpoint replaced takes no place, so the next one lies where it would lie.
            for record in 1..=5 {
                let at = next(position, record);
                assert!(places.second_starts(position, most).any(|range| range.contains(&at)), "{position}");
            }
            let ranges = places.second_starts(position, most).map(|range| range.end - range.start);
            assert!(ranges.sum::<u64>() <= searched.len() as u64 + 7, "{position}");
        }
    }
}
