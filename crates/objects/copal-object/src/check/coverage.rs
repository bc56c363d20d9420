//! Coverage of a check: the bytes of a store that were compared with a checksum, and those that hold nothing.
//!
//! On request a check reports range by range while it reads, so the list cannot claim more than was done. A
//! range is *summed* if its bytes were compared with a sum. It is *unused* if the allocator, the journal or a
//! stream says that it holds nothing. Ranges in neither list were not examined; `copal check --coverage` adds
//! them up.
//! Design: docs/design/object.md#checking
//! Invariants
//! - Summed and unused ranges never overlap; summed ones overlap only where objects share pages.
//! - One entry covers the bytes of one sum, or a part of them if they are not contiguous.
//!
//! Not here: the comparison (`fsck`). If the store is written meanwhile, the list is out of date at once.

use crate::{
    ObjectId,
    format::{
        run::PageRun,
        superblock::{COPIES, SUPERBLOCK_LEN},
    },
    state::StoreCore,
};
use std::ops::Range;

/// Data with a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SummedData {
    /// A copy of the superblock: CRC32C and XXH3-128 in itself.
    Superblock {
        /// 0 to 3.
        copy: usize,
    },
    /// A chain page of the checkpoint: XXH3-128 in its parent.
    Checkpoint,
    /// A journal record: CRC32C in itself, its hash in the next one.
    Record {
        /// Its number.
        seq: u64,
    },
    /// A page, or 64 KiB, of an object: sum in its map or in its trailer.
    Object(ObjectId),
    /// The sums behind a published object: XXH3-128 in the record that published it.
    Sums(ObjectId),
    /// A frame of a stream: CRC32C in itself.
    Frame(ObjectId),
}

/// Reason why a range holds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum UnusedSpace {
    /// Pages without an owner.
    Free,
    /// Freed pages that are not reusable yet, or pages prepared for a stream.
    Waiting,
    /// The journal, except the records that the next opening reads.
    Journal,
    /// A stream's extent behind its last frame, or behind the last frame that fitted.
    Stream,
    /// Rest of a page behind a superblock copy.
    Padding,
    /// The file behind the store's end: an interrupted growth.
    BehindEnd,
}

/// Coverage of one range of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeCoverage {
    /// Read and compared with a sum.
    Summed(SummedData),
    /// Holds nothing.
    Unused(UnusedSpace),
}

/// Receives ranges of the device in bytes as a check finds them.
pub(crate) type SeeRange<'a> = &'a mut dyn FnMut(Range<u64>, RangeCoverage);

/// Reports the ranges that a check reads, in pages; does nothing without a receiver.
pub(crate) struct RangeWitness<'a> {
    see: Option<SeeRange<'a>>,
    page_bytes: u64,
}

impl<'a> RangeWitness<'a> {
    pub(crate) fn new(see: Option<SeeRange<'a>>, page_bytes: usize) -> RangeWitness<'a> {
        RangeWitness { see, page_bytes: page_bytes as u64 }
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.see.is_some()
    }

    pub(crate) fn bytes(&mut self, range: Range<u64>, covered: RangeCoverage) {
        if let Some(see) = &mut self.see
            && !range.is_empty()
        {
            see(range, covered);
        }
    }

    pub(crate) fn summed(&mut self, run: PageRun, what: SummedData) {
        self.run(run, RangeCoverage::Summed(what));
    }

    pub(crate) fn unused(&mut self, run: PageRun, why: UnusedSpace) {
        self.run(run, RangeCoverage::Unused(why));
    }

    pub(crate) fn run(&mut self, run: PageRun, covered: RangeCoverage) {
        let page = self.page_bytes;
        self.bytes(run.at.saturating_mul(page)..run.end().saturating_mul(page), covered);
    }
}

/// Unused ranges outside journal and streams, from the allocator and not from the rest of the check.
pub(crate) fn report_unused(store: &StoreCore, witness: &mut RangeWitness<'_>) {
    if !witness.is_asked() {
        return;
    }
    let page = store.shape.page_bytes as u64;
    let state = store.state.lock();
    let space = state.space.placement();
    for range in space.free_ranges().into_iter().chain(space.hollow_ranges()) {
        witness.bytes(range.start * page..range.end * page, RangeCoverage::Unused(UnusedSpace::Free));
    }
    let waiting = state.space.ownerless_runs().chain(state.commit.open_freed().iter().copied());
    for run in waiting {
        witness.unused(run, UnusedSpace::Waiting);
    }
    for at in COPIES {
        let end = at + SUPERBLOCK_LEN as u64;
        witness.bytes(end..end.next_multiple_of(page), RangeCoverage::Unused(UnusedSpace::Padding));
    }
    let end = state.tables.pages * page;
    drop(state);
    // The addresses of a directory have no end.
    if store.files.is_none() {
        let behind = end..store.device.geometry().size;
        witness.bytes(behind, RangeCoverage::Unused(UnusedSpace::BehindEnd));
    }
}

/// Parts of `whole` that no run of `parts` covers; `parts` ascend and do not overlap.
pub(crate) fn rest_of(whole: PageRun, parts: &[PageRun]) -> Vec<PageRun> {
    let mut rest = Vec::new();
    let mut at = whole.at;
    for part in parts {
        if part.at > at {
            rest.push(PageRun::new(at, (part.at - at) as u32));
        }
        at = at.max(part.end());
    }
    if whole.end() > at {
        rest.push(PageRun::new(at, (whole.end() - at) as u32));
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_covered_by_no_part() {
        let whole = PageRun::new(10, 10);
        assert_eq!(rest_of(whole, &[]), [whole]);
        assert_eq!(rest_of(whole, &[whole]), []);
        let parts = [PageRun::new(10, 2), PageRun::new(12, 1), PageRun::new(15, 2)];
        assert_eq!(rest_of(whole, &parts), [PageRun::new(13, 2), PageRun::new(17, 3)]);
    }
}
