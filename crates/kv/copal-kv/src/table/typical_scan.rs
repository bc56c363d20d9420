//! Typical length of scans of a table, learned from earlier scans.

use crate::format::block::TARGET_BYTES;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Longest window whose blocks are cached: until then a scan counts as short.
pub(super) const KEPT_SCAN_BYTES: u64 = 64 << 10;

/// Bytes that a scan takes of the table from its start, in either direction: a moving average over several
/// scans.
///
/// A run with most of the keys gives a scan most of its entries, and one with few keys gives it a block. So
/// each table learns its own value.
#[derive(Debug, Default)]
pub(super) struct TypicalScan(AtomicU32);

impl TypicalScan {
    /// Weight of one scan in the average, as a divisor.
    const WEIGHT: u64 = 8;

    /// Expected bytes of a scan; 0: no more than two blocks, which are better read one by one.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = u64::from(self.0.load(Relaxed));
        // A window ends inside a block, and similar scans differ by one.
        let blocks = 2 * TARGET_BYTES as u64;
        if bytes > blocks { (bytes + blocks).min(KEPT_SCAN_BYTES) } else { 0 }
    }

    /// Records a scan of `bytes`. Its weight is limited, since short scans may follow a long one.
    pub(super) fn note(&self, bytes: u64) {
        let (old, new) = (u64::from(self.0.load(Relaxed)), bytes.min(KEPT_SCAN_BYTES));
        let average = (old * (Self::WEIGHT - 1) + new).div_ceil(Self::WEIGHT);
        // Of two concurrent updates one is lost.
        self.0.store(average as u32, Relaxed);
    }
}
