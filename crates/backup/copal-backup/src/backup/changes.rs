//! Changed 4 KiB blocks of a disk, computed from changed extents and extents of the source.
//!
//! All rounding goes towards reading: a block that a dirty extent touches is read. A block counts as zero
//! only if a zero extent covers all of it.

use copal_chunk::{BLOCK_BYTES, BlockChange, SEGMENT_BYTES};
use copal_disk::source::{ChangeKind, ChangedExtents, Extent, ExtentKind};
use std::ops::Range;

const BLOCK: u64 = BLOCK_BYTES as u64;
const SEGMENT: u64 = SEGMENT_BYTES as u64;

/// Sorted, merged ranges of changed bytes.
pub(crate) struct ChangedBlocks {
    dirty: Vec<Range<u64>>,
    zero: Vec<Range<u64>>,
}

impl ChangedBlocks {
    /// Sorts and merges a list; ranges beyond the end of the disk are cut off.
    pub(crate) fn new(changed: &ChangedExtents) -> ChangedBlocks {
        let of = |kind: ChangeKind| {
            let ranges = changed.extents.iter().filter(|extent| extent.kind == kind).map(|extent| {
                let end = extent.offset.saturating_add(extent.length).min(changed.size_bytes);
                extent.offset.min(end)..end
            });
            merge(ranges.collect())
        };
        ChangedBlocks { dirty: of(ChangeKind::Dirty), zero: of(ChangeKind::Zero) }
    }

    /// Bytes that were written.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty.iter().map(|range| range.end - range.start).sum()
    }

    /// Bytes of `range` that were written.
    pub(crate) fn dirty_bytes_in(&self, range: &Range<u64>) -> u64 {
        let inside = |run: &Range<u64>| run.end.min(range.end) - run.start.max(range.start);
        overlapping(&self.dirty, range).iter().map(inside).sum()
    }

    /// Whether anything in `range` changed.
    pub(crate) fn touches(&self, range: &Range<u64>) -> bool {
        !overlapping(&self.dirty, range).is_empty() || !overlapping(&self.zero, range).is_empty()
    }

    /// One entry per block of a segment.
    pub(crate) fn blocks(&self, segment: &Range<u64>) -> Vec<BlockChange> {
        let count = (segment.end - segment.start).div_ceil(BLOCK) as usize;
        let mut blocks = vec![BlockChange::Clean; count];
        for run in overlapping(&self.zero, segment) {
            // A block that is zeroed in part is read.
            mark(&mut blocks, segment, run, BlockChange::Written, BlockRounding::Outward);
            mark(&mut blocks, segment, run, BlockChange::Zeroed, BlockRounding::Inward);
        }
        for run in overlapping(&self.dirty, segment) {
            mark(&mut blocks, segment, run, BlockChange::Written, BlockRounding::Outward);
        }
        blocks
    }
}

/// Marks written blocks that the source reports as zero as `Zeroed`.
pub(crate) fn apply_zero_extent(blocks: &mut [BlockChange], segment: &Range<u64>, extent: &Extent) {
    if extent.kind == ExtentKind::Zero {
        let mut zeroed = vec![BlockChange::Clean; blocks.len()];
        mark(
            &mut zeroed,
            segment,
            &(extent.offset..extent.end()),
            BlockChange::Zeroed,
            BlockRounding::Inward,
        );
        for (block, zero) in blocks.iter_mut().zip(zeroed) {
            if *block == BlockChange::Written && zero == BlockChange::Zeroed {
                *block = BlockChange::Zeroed;
            }
        }
    }
}

/// Bytes of `rest`, which ends with the disk, that `apply_zero_extent` spares because of this extent.
pub(crate) fn zero_bytes(extent: &Extent, rest: Range<u64>) -> u64 {
    if extent.kind != ExtentKind::Zero {
        return 0;
    }
    let start = extent.offset.max(rest.start).next_multiple_of(BLOCK);
    // The last block of a disk may be short.
    let end = if extent.end() >= rest.end { rest.end } else { extent.end() / BLOCK * BLOCK };
    end.saturating_sub(start)
}

/// Direction in which a range is rounded to blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockRounding {
    Outward,
    Inward,
}

fn mark(
    blocks: &mut [BlockChange],
    segment: &Range<u64>,
    run: &Range<u64>,
    state: BlockChange,
    rounding: BlockRounding,
) {
    let start = run.start.max(segment.start) - segment.start;
    let end = run.end.min(segment.end).saturating_sub(segment.start);
    let at_segment_end = run.end >= segment.end;
    let (first, last) = match rounding {
        BlockRounding::Outward => (start / BLOCK, end.div_ceil(BLOCK)),
        // The last block of a disk may be short: a range that reaches its end covers all of it.
        BlockRounding::Inward if at_segment_end => (start.div_ceil(BLOCK), end.div_ceil(BLOCK)),
        BlockRounding::Inward => (start.div_ceil(BLOCK), end / BLOCK),
    };
    let last = (last as usize).min(blocks.len());
    let first = (first as usize).min(last);
    blocks[first..last].fill(state);
}

fn merge(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| range.start < range.end);
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

fn overlapping<'a>(sorted: &'a [Range<u64>], range: &Range<u64>) -> &'a [Range<u64>] {
    let first = sorted.partition_point(|run| run.end <= range.start);
    let last = sorted.partition_point(|run| run.start < range.end);
    &sorted[first..last.max(first)]
}

/// The bytes of segment `index` of a disk.
pub(crate) fn segment_range(size_bytes: u64, index: u64) -> Range<u64> {
    let start = index * SEGMENT;
    start..(start + SEGMENT).min(size_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_disk::source::ChangedExtent;

    fn changes(extents: &[(u64, u64, ChangeKind)]) -> ChangedBlocks {
        let extents =
            extents.iter().map(|&(offset, length, kind)| ChangedExtent { offset, length, kind }).collect();
        ChangedBlocks::new(&ChangedExtents {
            size_bytes: 3 * SEGMENT + 100,
            extents,
            ..ChangedExtents::default()
        })
    }

    #[test]
    fn overlapping_extents_are_counted_once_and_dirty_wins() {
        let changes = changes(&[
            (0, 8192, ChangeKind::Dirty),
            (4096, 8192, ChangeKind::Dirty),
            (4096, 12_288, ChangeKind::Zero),
        ]);
        assert_eq!(changes.dirty_bytes(), 12_288);
        let blocks = changes.blocks(&(0..SEGMENT));
        assert_eq!(
            &blocks[..5],
            [
                BlockChange::Written,
                BlockChange::Written,
                BlockChange::Written,
                BlockChange::Zeroed,
                BlockChange::Clean
            ]
        );
    }

    #[test]
    fn a_block_zeroed_in_part_is_read() {
        let blocks = changes(&[(100, 8192, ChangeKind::Zero)]).blocks(&(0..SEGMENT));
        assert_eq!(
            &blocks[..4],
            [BlockChange::Written, BlockChange::Zeroed, BlockChange::Written, BlockChange::Clean]
        );
    }

    #[test]
    fn the_short_last_block_is_zeroed_by_an_extent_that_reaches_the_end() {
        let changes = changes(&[(2 * SEGMENT, SEGMENT + 100, ChangeKind::Zero)]);
        let last = segment_range(3 * SEGMENT + 100, 3);
        assert_eq!(changes.blocks(&last), [BlockChange::Zeroed]);
        assert!(changes.touches(&last));
        assert!(!changes.touches(&(0..2 * SEGMENT)));
    }

    #[test]
    fn extents_beyond_the_end_of_the_disk_are_cut_off() {
        let changes =
            changes(&[(u64::MAX - 5, 100, ChangeKind::Dirty), (3 * SEGMENT, 1 << 60, ChangeKind::Dirty)]);
        assert_eq!(changes.dirty_bytes(), 100);
    }
}
