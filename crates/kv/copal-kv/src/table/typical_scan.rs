//! How much scans of a table take, learned from those before.

use super::scan::PAGE_BYTES;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Longest window whose blocks are worth keeping: a scan that had one before is a short scan so far.
pub(super) const KEPT_WINDOW_BYTES: u64 = 64 << 10;

/// What the scans of a table take of it from where they begin, in either direction: a moving average over a
/// few of them.
///
/// A run that holds most of the keys gives a scan most of its entries, one with few gives it a block: each
/// table learns its own part.
#[derive(Debug, Default)]
pub(super) struct TypicalScan(AtomicU32);

impl TypicalScan {
    /// Part of the average that one scan is.
    const WEIGHT: u64 = 8;

    /// Bytes that a scan is expected to take; 0: not more than a block or two, which are better read one by
    /// one.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = u64::from(self.0.load(Relaxed));
        // A window ends at a page, and like scans differ by a block.
        if bytes > 2 * PAGE_BYTES { (bytes + 2 * PAGE_BYTES).min(KEPT_WINDOW_BYTES) } else { 0 }
    }

    /// A scan took `bytes`. However long it was, the next ones may be short again.
    pub(super) fn note(&self, bytes: u64) {
        let (old, new) = (u64::from(self.0.load(Relaxed)), bytes.min(KEPT_WINDOW_BYTES));
        let average = (old * (Self::WEIGHT - 1) + new).div_ceil(Self::WEIGHT);
        // Of two at once one is forgotten.
        self.0.store(average as u32, Relaxed);
    }
}
