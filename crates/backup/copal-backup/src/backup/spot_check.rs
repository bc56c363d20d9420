//! Spot check of an incremental backup: reads a sample of the blocks that the changed extents leave out, and
//! compares it with the base.
//!
//! A list that leaves out a change makes a wrong snapshot that nothing notices later: every chunk of it has
//! its right id. The proof of a list (`plan`) cannot detect a cleared bitmap. So each backup compares a
//! sample, at other places each time (BAK-3).
//!
//! The sample consists of pieces of 128 KiB: where the base has data, and where it has a hole and the source
//! reports data. Where both report a hole there is nothing to read. Pages of the tree are visited in random
//! order, each for its share of the pieces. So a large disk costs few reads of its tree.

use super::changes::{ChangedBlocks, segment_range};
use super::read_helpers::read_exactly;
use crate::request::DiskSource;
use crate::request::error::{Error, Result};
use crate::request::progress::CancelFlag;
use crate::snapshot::recipe::{DiskRoot, PAGE_BYTES, RecipeEntry, RecipePage, SegmentRecipe, segments_of};
use crate::snapshot::tree::TreeReader;
use copal_chunk::{IdKey, SEGMENT_BYTES};
use copal_disk::source::{ExtentKind, extents};
use std::ops::Range;

const SEGMENT: u64 = SEGMENT_BYTES as u64;
const PIECE: u64 = 128 << 10;
/// Least bytes read of every disk that has so much.
pub(crate) const LEAST_BYTES: u64 = 16 << 20;

/// The same, where a dirty bitmap lists the changes.
pub(crate) const LEAST_BYTES_OF_BITMAP: u64 = 64 << 20;

/// Result of a spot check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpotCheckResult {
    /// Bytes read for it.
    pub(crate) read_bytes: u64,
    /// Offset at which the source differs from the base although no change is listed.
    pub(crate) difference: Option<u64>,
}

/// A disk, its base, and the listed changes in between.
pub(crate) struct SpotCheck<'a> {
    pub(crate) disk: &'a DiskSource,
    pub(crate) base: &'a DiskRoot,
    pub(crate) changes: &'a ChangedBlocks,
    pub(crate) ids: &'a IdKey,
    pub(crate) cancel: &'a CancelFlag,
}

impl SpotCheck<'_> {
    /// Reads about `wanted` bytes at places determined by `seed`, up to the first difference.
    /// # Errors
    /// Errors of the source and the store; cancellation. Damage of the base is no error: the hidden part is
    /// not compared.
    pub(crate) fn check(&self, tree: &mut TreeReader<'_>, wanted: u64, seed: u64) -> Result<SpotCheckResult> {
        let mut random = SpotRandom(seed);
        let mut checked = SpotCheckResult::default();
        let mut pages: Vec<u64> =
            (0..segments_of(self.base.size_bytes).div_ceil(PAGE_BYTES / SEGMENT)).collect();
        let with_data = self.base.pages.iter().flatten().count().max(1) as u64;
        let share = wanted.div_ceil(PIECE).div_ceil(with_data);
        // If some pages have less than their share, a second round takes more from the others.
        for share in [share, u64::MAX] {
            random.shuffle(&mut pages);
            for &index in &pages {
                let left = wanted.saturating_sub(checked.read_bytes).div_ceil(PIECE);
                if left == 0 || checked.difference.is_some() {
                    return Ok(checked);
                }
                self.page(tree, index, share.min(left) as usize, &mut random, &mut checked)?;
            }
            if self.base.size_bytes <= PAGE_BYTES {
                break;
            }
        }
        Ok(checked)
    }

    fn page(
        &self,
        tree: &mut TreeReader<'_>,
        index: u64,
        count: usize,
        random: &mut SpotRandom,
        checked: &mut SpotCheckResult,
    ) -> Result<()> {
        let size = self.base.size_bytes;
        let reference = self.base.pages.get(index as usize).copied().flatten();
        let Some(page) = unless_damaged(tree.page(reference.as_ref(), size, index))? else {
            return Ok(());
        };
        let mut pieces = self.candidates(index, &page)?;
        // The first `count` of a shuffled list, in the order of the disk.
        for at in 0..count.min(pieces.len()) {
            let other = at + random.below((pieces.len() - at) as u64) as usize;
            pieces.swap(at, other);
        }
        pieces.truncate(count);
        pieces.sort_unstable();
        let within = |piece: &u64| (piece / SEGMENT - index * (PAGE_BYTES / SEGMENT)) as usize;
        let mut segments: Vec<usize> = pieces.iter().map(within).collect();
        segments.dedup();
        tree.announce(segments.into_iter().filter_map(|within| page.segments.get(within)?.as_ref()));
        let mut known: Option<(u64, Vec<RecipeEntry>)> = None;
        for piece in pieces {
            if self.cancel.is_cancelled() {
                return Err(Error::Cancelled { kept_bytes: Some(0) });
            }
            let number = piece / SEGMENT;
            if known.as_ref().is_none_or(|(held, _)| *held != number) {
                let within = (number - index * (PAGE_BYTES / SEGMENT)) as usize;
                let recipe = match page.segments.get(within).copied().flatten() {
                    Some(reference) => unless_damaged(tree.segment(&reference, size, number))?,
                    None => Some(self.hole(number)),
                };
                known = Some((number, recipe.unwrap_or_default().entries));
            }
            let entries = known.as_ref().map_or(&[][..], |(_, entries)| entries);
            self.piece(piece, number, entries, checked)?;
            if checked.difference.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn hole(&self, number: u64) -> SegmentRecipe {
        let range = segment_range(self.base.size_bytes, number);
        let length = (range.end - range.start) as u32;
        SegmentRecipe { entries: vec![RecipeEntry::new(length, None)] }
    }

    /// Offsets of the pieces of a page that have data in the base or the source.
    fn candidates(&self, index: u64, page: &RecipePage) -> Result<Vec<u64>> {
        let size = self.base.size_bytes;
        let start = index * PAGE_BYTES;
        let mut pieces = Vec::new();
        let mut add = |range: Range<u64>| {
            let first = range.start / PIECE * PIECE;
            let new = (first..range.end).step_by(PIECE as usize);
            let last = pieces.last().copied();
            pieces.extend(new.filter(|&piece| last.is_none_or(|last| piece > last)));
        };
        let number_of = |within: usize| start / SEGMENT + within as u64;
        for (within, reference) in page.segments.iter().enumerate() {
            let range = segment_range(size, number_of(within));
            if reference.is_some() {
                add(range);
                continue;
            }
            for extent in extents(&*self.disk.source, range) {
                let extent = extent.map_err(|error| Error::Source { disk: self.disk.name.clone(), error })?;
                if extent.kind == ExtentKind::Data {
                    add(extent.offset..extent.end());
                }
            }
        }
        Ok(pieces)
    }

    /// Compares the entries in a piece. A chunk is read whole, or not at all if it is listed as changed.
    fn piece(
        &self,
        piece: u64,
        number: u64,
        entries: &[RecipeEntry],
        checked: &mut SpotCheckResult,
    ) -> Result<()> {
        let mut start = number * SEGMENT;
        let mut bytes = Vec::new();
        for entry in entries {
            let whole = start..start + u64::from(entry.length);
            start = whole.end;
            if whole.end <= piece || whole.start >= piece + PIECE {
                continue;
            }
            let range = match entry.chunk {
                Some(_) => whole,
                None => whole.start.max(piece)..whole.end.min(piece + PIECE),
            };
            if self.changes.touches(&range) {
                continue;
            }
            bytes.resize((range.end - range.start) as usize, 0);
            read_exactly(self.disk, range.start, &mut bytes)?;
            checked.read_bytes += range.end - range.start;
            let is_same = match entry.chunk {
                Some(chunk) => self.ids.id(&bytes) == chunk.id,
                None => bytes.iter().all(|&byte| byte == 0),
            };
            if !is_same {
                checked.difference = Some(range.start);
                return Ok(());
            }
        }
        Ok(())
    }
}

fn unless_damaged<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(node) => Ok(Some(node)),
        Err(error) if error.is_corruption() => Ok(None),
        Err(error) => Err(error),
    }
}

/// SplitMix64: derives the places from one random number of the operating system.
struct SpotRandom(u64);

impl SpotRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0; the bias is below 2^-32 for the ranges here.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn shuffle(&mut self, items: &mut [u64]) {
        for at in (1..items.len()).rev() {
            let other = self.below(at as u64 + 1) as usize;
            items.swap(at, other);
        }
    }
}
