//! Decides whether merging deleted data pays for its writes: by the space it frees, or by the scans that
//! skipped over it.
//!
//! It reads nothing: it spreads deletions over the data below, using the partition counts in table
//! descriptors.
//!
//! - *Space*: a merge must free at least as much as it writes, and at least a quarter of the held bytes. So
//!   deleting a whole store writes no more than its former size, and dead bytes never exceed live ones.
//!   Separated values count as freed but not as written, since a merge leaves them in place.
//! - *Scans*: they must have skipped as many bytes as the merge moves. So reads and merge together cost at
//!   most twice the bytes that scans had wasted by then.
//!
//! Not here: full tiers, whose merges drop deletions as well (`picker`); partly dead value objects (`sweep`).

use super::deletions::Deletions;
use crate::{
    format::entry::{KeyRange, keyspace_of},
    tree::{
        damaged_parts,
        version::{SortedRun, TableSlice, TreeVersion},
    },
};
use bytes::Bytes;

/// Fewest deletions and old versions that are worth a merge, unless it frees [`LEAST_BYTES`].
const LEAST_ENTRIES: f64 = 1024.0;
/// Fewest bytes that are worth a merge, however few entries hold them.
const LEAST_BYTES: f64 = (256 << 10) as f64;
/// Least share of the held bytes that a merge has to free.
const LEAST_PART: f64 = 0.25;
/// Most bytes that a merge may write per freed byte, in a full store.
const MOST_WRITTEN: f64 = 8.0;

/// Threshold for the space that a merge frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WantedSpace {
    /// Enough to make the merge cheap.
    CheapSpace,
    /// Any amount in proportion to the writes: the store is full.
    AnySpace,
}

/// One table of the oldest run, or a gap between two, with the data above it. Numbers are estimates.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MergeArea {
    pub(crate) range: KeyRange,
    /// Entries that a merge keeps unless a deletion covers them; their bytes in tables; bytes of their
    /// separated values.
    kept: f64,
    kept_bytes: f64,
    value_bytes: f64,
    /// Entries that a merge drops regardless of the data below, and their bytes: deletions, and old versions
    /// that no reader can see.
    dropped: f64,
    dropped_bytes: f64,
    /// Kept entries that the dropped deletions cover.
    deleted: f64,
}

impl MergeArea {
    fn new(range: KeyRange) -> MergeArea {
        MergeArea {
            range,
            kept: 0.0,
            kept_bytes: 0.0,
            value_bytes: 0.0,
            dropped: 0.0,
            dropped_bytes: 0.0,
            deleted: 0.0,
        }
    }

    /// Adds `part` of a table. Entries that a snapshot older than the table's newest entry may read are not
    /// counted as dropped.
    fn add(&mut self, slice: &TableSlice, part: f64, oldest_snapshot: u64, deletions: &Deletions) {
        let (meta, properties) = (&slice.table.meta, slice.table.table.meta());
        let entries = (meta.entries as f64).max(1.0);
        let (mut dropped, mut deletes, mut ranges) = (0.0, 0.0, 0.0);
        if meta.max_seq <= oldest_snapshot {
            dropped = meta.droppable as f64;
            deletes = (properties.deletes as f64).min(dropped);
            ranges = (properties.range_tombstones as f64).min(dropped - deletes);
        }
        let old_versions = (dropped - deletes - ranges).max(0.0);
        let keys_alone = deletes * properties.key_bytes as f64 / entries;
        let dropped_bytes = (keys_alone + old_versions * meta.bytes as f64 / entries).min(meta.bytes as f64);
        let start = (&slice.range.start).max(&self.range.start);
        self.dropped += part * dropped;
        self.dropped_bytes += part * dropped_bytes;
        self.deleted += part * (deletes * deletions.hit_share(keyspace_of(start)) + ranges);
        self.kept += part * (meta.entries as f64 - deletes - old_versions).max(0.0);
        self.kept_bytes += part * (meta.bytes as f64 - dropped_bytes);
        self.value_bytes += part * meta.values.iter().map(|(_, bytes)| *bytes as f64).sum::<f64>();
    }

    /// Share of the kept entries that deletions cover.
    fn dead_part(&self) -> f64 {
        if self.kept > 0.0 { (self.deleted / self.kept).min(1.0) } else { 0.0 }
    }

    fn freed_bytes(&self) -> f64 {
        self.dropped_bytes + self.dead_part() * (self.kept_bytes + self.value_bytes)
    }

    /// Whether the merge frees enough of the held bytes.
    fn frees_enough(&self) -> bool {
        let freed = self.freed_bytes();
        let written = (1.0 - self.dead_part()) * self.kept_bytes;
        let held = self.dropped_bytes + self.kept_bytes + self.value_bytes;
        freed >= written && freed >= LEAST_PART * held
    }

    /// Whether the merge is worth its writes in a full store.
    fn frees_anything(&self) -> bool {
        let written = (1.0 - self.dead_part()) * self.kept_bytes;
        self.freed_bytes() * MOST_WRITTEN >= written
    }

    /// Whether scans that skipped `passed` bytes have paid for the merge.
    fn is_paid_by(&self, passed: u64) -> bool {
        passed as f64 >= self.dropped_bytes + self.kept_bytes
    }
}

/// The first range of adjacent `areas` that is worth a merge. `passed` returns the bytes that scans skipped
/// in a range.
pub(crate) fn wanted(
    areas: &[MergeArea],
    space: WantedSpace,
    passed: impl Fn(&KeyRange) -> u64,
) -> Option<KeyRange> {
    let is_full = space == WantedSpace::AnySpace;
    let frees = |area: &MergeArea| area.frees_enough() || is_full && area.frees_anything();
    let mut from = 0;
    while from < areas.len() {
        let is_paid = |area: &MergeArea| area.is_paid_by(passed(&area.range));
        let (mut dropped, mut freed, mut paid) = (0.0, 0.0, false);
        let mut to = from;
        while let Some(area) = areas.get(to) {
            let is_paid = is_paid(area);
            let follows = to == from || areas[to - 1].range.end == area.range.start;
            if !follows || !is_paid && !frees(area) {
                break;
            }
            dropped += area.dropped;
            freed += area.freed_bytes();
            paid |= is_paid;
            to += 1;
        }
        if to > from && (is_full || paid || dropped >= LEAST_ENTRIES || freed >= LEAST_BYTES) {
            return Some(KeyRange {
                start: areas[from].range.start.clone(),
                end: areas[to - 1].range.end.clone(),
            });
        }
        from = to.max(from + 1);
    }
    None
}

/// The areas in which a merge would drop something, without quarantined ranges.
pub(crate) fn areas(version: &TreeVersion, oldest_snapshot: u64, deletions: &Deletions) -> Vec<MergeArea> {
    let Some((oldest, newer)) = version.runs.split_last() else {
        return Vec::new();
    };
    let mut slices = version.runs.iter().flat_map(|run| &run.slices);
    if slices.all(|slice| slice.table.meta.droppable == 0) {
        return Vec::new();
    }
    let mut areas = areas_of(oldest);
    for slice in &oldest.slices {
        if let Some(area) = area_at(&areas, &slice.range.start) {
            areas[area].add(slice, part_within(slice, &slice.range), oldest_snapshot, deletions);
        }
    }
    for slice in newer.iter().flat_map(|run| &run.slices) {
        for (range, part) in pieces(slice) {
            for (area, share) in spread(&areas, oldest, &range) {
                areas[area].add(slice, part * share, oldest_snapshot, deletions);
            }
        }
    }
    let mut joined: Vec<MergeArea> = Vec::new();
    for area in areas {
        match joined.last_mut() {
            // An empty gap is joined to the table before it.
            Some(before) if area.kept + area.dropped == 0.0 => before.range.end = area.range.end,
            _ => joined.push(area),
        }
    }
    let apart = damaged_parts::ranges(version);
    joined.retain(|area| area.dropped > 0.0 && !apart.iter().any(|apart| apart.overlaps(&area.range)));
    joined
}

/// The tables of a run and the gaps between them: all keys, in order.
fn areas_of(run: &SortedRun) -> Vec<MergeArea> {
    let all = KeyRange::all();
    let mut areas = Vec::new();
    let mut start = all.start;
    let mut push = |start: &Bytes, end: &Bytes| {
        if start < end {
            let (start, end) = (start.clone(), end.clone());
            areas.push(MergeArea::new(KeyRange { start, end }));
        }
    };
    for slice in &run.slices {
        push(&start, &slice.range.start);
        push(&slice.range.start, &slice.range.end);
        start = slice.range.end.clone();
    }
    push(&start, &all.end);
    areas
}

/// The area that holds `key`.
fn area_at(areas: &[MergeArea], key: &[u8]) -> Option<usize> {
    areas.partition_point(|area| area.range.start[..] <= *key).checked_sub(1)
}

/// Contents of a slice by piece: key range, and share of the table's keys.
fn pieces(slice: &TableSlice) -> impl Iterator<Item = (KeyRange, f64)> {
    let table = &slice.table.table;
    let whole = (table.partitions() == 0).then(|| (slice.range.clone(), 1.0));
    let keys = (table.meta().keys as f64).max(1.0);
    let within = table.partitions_between(&slice.range.start, &slice.range.end);
    let piece = move |partition| {
        let (start, end) = table.partition_range(partition);
        let range = KeyRange {
            start: Bytes::copy_from_slice(start).max(slice.range.start.clone()),
            end: Bytes::copy_from_slice(end).min(slice.range.end.clone()),
        };
        let held = f64::from(table.partition_keys(partition)) * part_between((start, end), &range);
        (range, held / keys)
    };
    whole.into_iter().chain(within.map(piece))
}

/// The areas that overlap a piece, and the piece's share in each. Shares are proportional to the oldest run's
/// entries there; if it has none, they are equal.
fn spread(areas: &[MergeArea], oldest: &SortedRun, piece: &KeyRange) -> Vec<(usize, f64)> {
    let Some(first) = area_at(areas, &piece.start) else {
        return Vec::new();
    };
    let more = areas[first + 1..].iter().take_while(|area| area.range.start < piece.end);
    let last = first + more.count();
    if first == last {
        return vec![(first, 1.0)];
    }
    let weight = |at: usize| {
        let range = areas[at].range.intersect(piece);
        let slice = oldest.find(&range.start);
        let held = slice.map(|slice| slice.table.meta.entries as f64 * part_within(slice, &range));
        (at, held.unwrap_or(0.0))
    };
    let weights: Vec<(usize, f64)> = (first..=last).map(weight).collect();
    let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
    if sum <= 0.0 {
        let even = 1.0 / weights.len() as f64;
        return weights.into_iter().map(|(at, _)| (at, even)).collect();
    }
    weights.into_iter().map(|(at, weight)| (at, weight / sum)).collect()
}

/// Share of a table's keys in `range`.
fn part_within(slice: &TableSlice, range: &KeyRange) -> f64 {
    let (table, meta) = (&slice.table.table, &slice.table.meta);
    if range.start <= meta.start && meta.end <= range.end {
        return 1.0;
    }
    let keys = (table.meta().keys as f64).max(1.0);
    let within = table.partitions_between(&range.start, &range.end);
    let held = |partition| {
        f64::from(table.partition_keys(partition)) * part_between(table.partition_range(partition), range)
    };
    within.map(held).sum::<f64>() / keys
}

/// Share of a partition's keys in `range`. Keys are taken as numbers and assumed to be evenly spread.
fn part_between((start, end): (&[u8], &[u8]), range: &KeyRange) -> f64 {
    let prefix = start.iter().zip(end).take_while(|(a, b)| a == b).count();
    let number = |key: &[u8]| {
        let mut digits = [0; 8];
        key.iter().skip(prefix).zip(&mut digits).for_each(|(byte, digit)| *digit = *byte);
        u64::from_be_bytes(digits) as f64
    };
    let all = number(end) - number(start);
    let (from, to) = ((&range.start[..]).max(start), (&range.end[..]).min(end));
    if all > 0.0 && from < to { (number(to) - number(from)) / all } else { f64::from(u8::from(from <= to)) }
}
