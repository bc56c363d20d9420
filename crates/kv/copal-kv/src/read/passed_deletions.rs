//! Deleted entries that an iterator skips, reported for the choice of merges.

use crate::{engine::Engine, session::read_counters::ReadCount, tree::version::SuperVersion};
use bytes::Bytes;
use std::sync::Arc;

/// Skipped bytes at which an iterator reports.
const TOLD_BYTES: u64 = 64 << 10;

/// Skipped entries of one iterator that are not reported yet; dropping it reports them.
pub(crate) struct PassedDeletions {
    engine: Arc<Engine>,
    view: Arc<SuperVersion>,
    /// The last key before which entries were skipped.
    at: Bytes,
    entries: u64,
    bytes: u64,
}

impl PassedDeletions {
    pub(crate) fn new(engine: Arc<Engine>, view: Arc<SuperVersion>) -> PassedDeletions {
        PassedDeletions { engine, view, at: Bytes::new(), entries: 0, bytes: 0 }
    }

    /// Adds `entries` that the iterator skipped before `key`.
    pub(crate) fn add(&mut self, key: &Bytes, (entries, bytes): (u64, u64)) {
        if entries == 0 {
            return;
        }
        self.at = key.clone();
        self.entries += entries;
        self.bytes += bytes;
        if self.bytes >= TOLD_BYTES {
            self.tell();
        }
    }

    fn tell(&mut self) {
        if self.entries == 0 {
            return;
        }
        let reads = &self.engine.counters.reads;
        reads.add_many(ReadCount::DeletedPassed, self.entries);
        if let Some(oldest) = self.view.version.runs.last() {
            self.engine.compactor.deletions.add_passed(oldest, &self.at, self.bytes);
        }
        (self.entries, self.bytes) = (0, 0);
    }
}

impl Drop for PassedDeletions {
    fn drop(&mut self) {
        self.tell();
    }
}
