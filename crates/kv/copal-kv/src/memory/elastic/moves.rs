//! Counters of moved units.

use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers of moves since the memory was made.
#[derive(Default)]
pub(crate) struct UnitMoves {
    pub(super) loads: AtomicU64,
    pub(super) cold: AtomicU64,
    pub(super) predicted: AtomicU64,
    pub(super) drops: AtomicU64,
    pub(super) retired: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) failed: AtomicU64,
}

impl UnitMoves {
    pub(super) fn loaded(&self, units: u64) {
        self.loads.fetch_add(units, Ordering::Relaxed);
    }

    pub(super) fn cold(&self) {
        self.cold.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn predicted(&self, units: u64) {
        self.predicted.fetch_add(units, Ordering::Relaxed);
    }

    pub(super) fn dropped(&self, units: u64) {
        self.drops.fetch_add(units, Ordering::Relaxed);
    }

    pub(super) fn retired(&self, units: u64) {
        self.retired.fetch_add(units, Ordering::Relaxed);
    }

    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }
}
