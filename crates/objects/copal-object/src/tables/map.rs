//! Extent map: the places of an object's pages, and their sums.
//!
//! An extent takes 16 bytes; sums are stored separately, 4 bytes per unit. A unit is the range of one sum: 1
//! page (`ReadCheck::Pages`) or up to 64 KiB (`ReadCheck::Caller`), counted from the start of its extent.
//! Invariants
//! - Extents ascend and do not overlap; gaps are holes and read as zeros.
//! - Cutting a unit leaves its parts as extents with sum 0. The transaction that cut gives them new sums
//!   (`RecordOp::Resum`) before the mutex is released.
//! - A published object has no sums here: they are in its trailer.

use crate::format::run::{PageRun, RUN_PAGES_MAX};
use std::sync::{Arc, LazyLock};

/// One extent, unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectExtent {
    /// First page inside the object.
    pub(crate) at: u64,
    /// Its pages on the device.
    pub(crate) run: PageRun,
}

impl ObjectExtent {
    pub(crate) fn end(self) -> u64 {
        self.at + u64::from(self.run.pages)
    }
}

/// 48 bits of place, 16 of length.
#[derive(Clone, Copy, Debug)]
struct PackedExtent {
    place: u64,
    at: u32,
    sums: u32,
}

impl PackedExtent {
    fn new(at: u64, run: PageRun, sums: u32) -> PackedExtent {
        debug_assert!(run.at < 1 << 48 && run.pages <= RUN_PAGES_MAX && run.pages > 0);
        PackedExtent { place: run.at << 16 | u64::from(run.pages), at: at as u32, sums }
    }

    fn extent(self) -> ObjectExtent {
        ObjectExtent { at: self.at.into(), run: PageRun::new(self.place >> 16, (self.place & 0xffff) as u32) }
    }
}

/// Pages of one object.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExtentMap {
    extents: Vec<PackedExtent>,
    sums: Vec<u32>,
    /// Number of sums at which the map checks how many of them are still used.
    collect_at: u32,
    /// Units of all extents; at most the number of sums.
    units: u32,
}

/// Most pages of one object: page numbers have 32 bits.
pub(crate) const OBJECT_PAGES_MAX: u64 = 1 << 32;

impl ExtentMap {
    /// The map of an object without pages: one for all of them.
    pub(crate) fn none() -> Arc<ExtentMap> {
        static NONE: LazyLock<Arc<ExtentMap>> = LazyLock::new(Arc::default);
        Arc::clone(&NONE)
    }

    /// Number of extents, for the checkpoint.
    pub(crate) fn extents(&self) -> usize {
        self.extents.len()
    }

    /// Number of used sums, for the length of the checkpoint: one per unit of `unit` pages.
    pub(crate) fn units(&self, unit: u32) -> u64 {
        let counted = || self.iter().map(|extent| extent.run.pages.div_ceil(unit));
        debug_assert!(self.extents.len() > 64 || self.units == counted().sum::<u32>());
        self.units.into()
    }

    pub(crate) fn pages(&self) -> u64 {
        self.iter().map(|extent| u64::from(extent.run.pages)).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = ObjectExtent> + '_ {
        self.extents.iter().map(|packed| packed.extent())
    }

    /// Extents that overlap pages `from..to`, not cut to that range.
    pub(crate) fn overlapping(&self, from: u64, to: u64) -> impl Iterator<Item = ObjectExtent> + '_ {
        let first = self.extents.partition_point(|packed| packed.extent().end() <= from);
        self.extents[first..].iter().map(|packed| packed.extent()).take_while(move |extent| extent.at < to)
    }

    /// Sums of the units of the extent that starts at page `at`.
    pub(crate) fn sums_of(&self, at: u64, unit: u32) -> &[u32] {
        let index = self.extents.partition_point(|packed| u64::from(packed.at) < at);
        let Some(packed) = self.extents.get(index) else {
            return &[];
        };
        let units = packed.extent().run.pages.div_ceil(unit) as usize;
        self.sums.get(packed.sums as usize..packed.sums as usize + units).unwrap_or(&[])
    }

    /// Places `run` at page `at`, in a hole. `sums` has one per unit, or none for a published object. A run
    /// longer than an extent is split at unit boundaries.
    pub(crate) fn insert(&mut self, at: u64, run: PageRun, sums: &[u32], unit: u32) {
        let step = RUN_PAGES_MAX / unit * unit;
        let mut done = 0;
        while done < run.pages {
            let pages = (run.pages - done).min(step);
            let piece = PageRun::new(run.at + u64::from(done), pages);
            let piece_sums = if sums.is_empty() {
                sums
            } else {
                &sums[(done / unit) as usize..(done / unit + pages.div_ceil(unit)) as usize]
            };
            self.insert_piece(at + u64::from(done), piece, piece_sums, unit);
            done += pages;
        }
    }

    fn insert_piece(&mut self, at: u64, run: PageRun, sums: &[u32], unit: u32) {
        // This also holds if it joins the previous extent: that one ends with a complete unit.
        self.units += run.pages.div_ceil(unit);
        let index = self.extents.partition_point(|packed| u64::from(packed.at) < at);
        if index > 0 {
            let before = self.extents[index - 1];
            let extent = before.extent();
            let joins = extent.end() == at
                && extent.run.end() == run.at
                && extent.run.pages.is_multiple_of(unit)
                && extent.run.pages + run.pages <= RUN_PAGES_MAX
                && (sums.is_empty()
                    || before.sums as usize + (extent.run.pages / unit) as usize == self.sums.len());
            if joins {
                self.sums.extend_from_slice(sums);
                let joined = PageRun::new(extent.run.at, extent.run.pages + run.pages);
                self.extents[index - 1] = PackedExtent::new(extent.at, joined, before.sums);
                return;
            }
        }
        let sums_at = self.sums.len() as u32;
        if self.extents.capacity() == 0 {
            // Most objects have one extent; a vector that grows by itself begins with room for four.
            self.extents.reserve_exact(1);
            self.sums.reserve_exact(sums.len());
        }
        self.sums.extend_from_slice(sums);
        self.extents.insert(index, PackedExtent::new(at, run, sums_at));
    }

    /// Makes pages `from..to` a hole; returns the runs that were mapped there.
    pub(crate) fn remove(&mut self, from: u64, to: u64, unit: u32) -> Vec<PageRun> {
        if from >= to {
            return Vec::new();
        }
        self.cut(from, unit);
        self.cut(to, unit);
        let first = self.extents.partition_point(|packed| u64::from(packed.at) < from);
        let last = self.extents.partition_point(|packed| u64::from(packed.at) < to);
        let removed: Vec<PageRun> =
            self.extents.drain(first..last).map(|packed| packed.extent().run).collect();
        let units = removed.iter().map(|run| run.pages.div_ceil(unit));
        self.units -= units.sum::<u32>();
        self.collect_sums(unit);
        removed
    }

    /// Gives pages `at..at+pages`, which lie in one extent, a separate sum.
    pub(crate) fn resum(&mut self, at: u64, pages: u32, sum: u32, unit: u32) -> bool {
        self.cut(at, unit);
        self.cut(at.saturating_add(pages.into()), unit);
        let index = self.extents.partition_point(|packed| u64::from(packed.at) < at);
        let Some(packed) = self.extents.get(index) else {
            return false;
        };
        let extent = packed.extent();
        if extent.at != at || extent.run.pages != pages || pages > unit {
            return false;
        }
        let Some(slot) = self.sums.get_mut(packed.sums as usize) else {
            return false;
        };
        *slot = sum;
        true
    }

    /// Whether pages `at..` are `run`, within one extent, and consist of whole units.
    pub(crate) fn is_movable(&self, at: u64, run: PageRun, unit: u32) -> bool {
        let end = at.saturating_add(run.pages.into());
        self.overlapping(at, end).next().is_some_and(|extent| {
            let whole = |page: u64| page == extent.end() || (page - extent.at).is_multiple_of(unit.into());
            extent.at <= at
                && end <= extent.end()
                && extent.run.at + (at - extent.at) == run.at
                && whole(at)
                && whole(end)
        })
    }

    /// Pages `at..`, which are `from` and consist of whole units, are now at page `to`; their sums stay. `false`,
    /// without a change, if they are not.
    pub(crate) fn relocate(&mut self, at: u64, from: PageRun, to: u64, unit: u32) -> bool {
        if !self.is_movable(at, from, unit) {
            return false;
        }
        let mut index = self.extents.partition_point(|packed| packed.extent().end() <= at);
        let extent = self.extents[index].extent();
        let before = (at - extent.at) as u32;
        if before > 0 {
            self.split(index, before, before / unit);
            index += 1;
        }
        if from.pages < self.extents[index].extent().run.pages {
            self.split(index, from.pages, from.pages / unit);
        }
        let sums = self.extents[index].sums;
        self.extents[index] = PackedExtent::new(at, PageRun::new(to, from.pages), sums);
        self.join(index, unit);
        if index > 0 {
            self.join(index - 1, unit);
        }
        true
    }

    /// Joins extent `index` with the next one, if that continues it in the object, on the device and in the sums.
    fn join(&mut self, index: usize, unit: u32) {
        let (Some(&first), Some(&second)) = (self.extents.get(index), self.extents.get(index + 1)) else {
            return;
        };
        let (before, after) = (first.extent(), second.extent());
        let joins = before.end() == after.at
            && before.run.end() == after.run.at
            && before.run.pages.is_multiple_of(unit)
            && before.run.pages + after.run.pages <= RUN_PAGES_MAX
            && (self.sums.is_empty() || first.sums + before.run.pages / unit == second.sums);
        if joins {
            let run = PageRun::new(before.run.at, before.run.pages + after.run.pages);
            self.extents[index] = PackedExtent::new(before.at, run, first.sums);
            self.extents.remove(index + 1);
        }
    }

    /// Makes `page` a boundary between extents. A unit that it cuts becomes two extents with sum 0.
    fn cut(&mut self, page: u64, unit: u32) {
        let index = self.extents.partition_point(|packed| packed.extent().end() <= page);
        let Some(packed) = self.extents.get(index) else {
            return;
        };
        let extent = packed.extent();
        if extent.at >= page {
            return;
        }
        let offset = (page - extent.at) as u32;
        let within = offset % unit;
        if within == 0 {
            self.split(index, offset, offset / unit);
            return;
        }
        self.units += 1;
        // Separate the cut unit, then cut it: both parts get separate sums.
        let end = (offset - within + unit).min(extent.run.pages);
        if end < extent.run.pages {
            self.split(index, end, end / unit);
        }
        let start = offset - within;
        let index = if start > 0 {
            self.split(index, start, start / unit);
            index + 1
        } else {
            index
        };
        let whole = self.extents[index];
        let published = self.sums.is_empty();
        let sums = if published { 0 } else { self.sums.len() as u32 };
        if !published {
            self.sums.extend_from_slice(&[0, 0]);
        }
        let ObjectExtent { at, run } = whole.extent();
        let second = if published { 0 } else { sums + 1 };
        self.extents[index] = PackedExtent::new(at, PageRun::new(run.at, within), sums);
        let rest = PageRun::new(run.at + u64::from(within), run.pages - within);
        self.extents.insert(index + 1, PackedExtent::new(at + u64::from(within), rest, second));
    }

    /// Splits extent `index` after `pages` pages, which are `units` complete units.
    fn split(&mut self, index: usize, pages: u32, units: u32) {
        let packed = self.extents[index];
        let ObjectExtent { at, run } = packed.extent();
        let second_sums = if self.sums.is_empty() { 0 } else { packed.sums + units };
        self.extents[index] = PackedExtent::new(at, PageRun::new(run.at, pages), packed.sums);
        let rest = PageRun::new(run.at + u64::from(pages), run.pages - pages);
        self.extents.insert(index + 1, PackedExtent::new(at + u64::from(pages), rest, second_sums));
    }

    /// Frees memory if most sums belong to no extent any more.
    fn collect_sums(&mut self, unit: u32) {
        if self.extents.is_empty() {
            self.sums.clear();
        }
        if self.sums.len() < self.collect_at.max(64) as usize {
            return;
        }
        let used: usize = self.iter().map(|extent| extent.run.pages.div_ceil(unit) as usize).sum();
        self.collect_at = 2 * used.max(32) as u32;
        if used * 2 > self.sums.len() {
            self.collect_at = 2 * self.sums.len() as u32;
            return;
        }
        let mut kept = Vec::with_capacity(used);
        for packed in &mut self.extents {
            let units = packed.extent().run.pages.div_ceil(unit) as usize;
            let from = packed.sums as usize;
            packed.sums = kept.len() as u32;
            kept.extend_from_slice(&self.sums[from..from + units]);
        }
        self.sums = kept;
    }
}

#[cfg(test)]
mod tests;
