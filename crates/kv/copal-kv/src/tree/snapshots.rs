//! Sequences that readers hold: a merge keeps the version that each of them sees.

use crate::format::stripes::SequenceStripes;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// The newest sequence that readers may see, and the older ones still held.
///
/// Invariant: `given` is at least `visible`; the sequences in between belong to commits in progress.
#[derive(Debug, Default)]
pub(crate) struct SnapshotList {
    visible: AtomicU64,
    /// Last sequence allocated to a commit. Changed under the writer lock only.
    given: AtomicU64,
    held: Mutex<BTreeMap<u64, usize>>,
}

impl SnapshotList {
    /// Newest sequence whose promised durability was reached.
    pub(crate) fn visible(&self) -> u64 {
        self.visible.load(Ordering::Acquire)
    }

    /// Makes everything up to `seq` visible.
    pub(crate) fn advance(&self, seq: u64) {
        let before = self.visible.swap(seq, Ordering::AcqRel);
        assert!(before <= seq, "visible sequence went from {before} back to {seq}");
        self.given.fetch_max(seq, Ordering::AcqRel);
    }

    /// Last sequence allocated to a commit, visible or not yet.
    pub(crate) fn allocated_seq(&self) -> u64 {
        self.given.load(Ordering::Acquire)
    }

    /// Allocates the sequences up to `seq` to a commit.
    pub(crate) fn allocate_up_to(&self, seq: u64) {
        let before = self.given.swap(seq, Ordering::AcqRel);
        assert!(before <= seq, "sequences up to {before} were given out again as up to {seq}");
    }

    /// Holds the newest visible sequence.
    pub(crate) fn hold(self: &Arc<SnapshotList>) -> HeldSnapshot {
        let mut held = self.held.lock();
        let seq = self.visible();
        *held.entry(seq).or_insert(0) += 1;
        HeldSnapshot { snapshots: self.clone(), seq }
    }

    /// The held sequences, ascending, for which a merge must keep versions.
    ///
    /// A snapshot taken later holds a sequence at least as new as every entry in a table. So it sees the
    /// newest version, which every merge keeps.
    pub(crate) fn stripes(&self) -> SequenceStripes {
        SequenceStripes::new(self.held.lock().keys().copied().collect())
    }
}

/// A held sequence; released on drop.
#[derive(Debug)]
pub(crate) struct HeldSnapshot {
    snapshots: Arc<SnapshotList>,
    pub(crate) seq: u64,
}

impl Drop for HeldSnapshot {
    fn drop(&mut self) {
        let mut held = self.snapshots.held.lock();
        if let Some(count) = held.get_mut(&self.seq) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.seq);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::entry::MAX_SEQ;

    #[test]
    fn a_snapshot_is_held_until_its_last_holder_is_gone() {
        let snapshots = Arc::new(SnapshotList::default());
        snapshots.advance(5);
        let first = snapshots.hold();
        let second = snapshots.hold();
        snapshots.advance(9);
        assert_eq!((first.seq, snapshots.stripes().of(5), snapshots.stripes().of(6)), (5, 5, MAX_SEQ));
        drop(first);
        assert_eq!(snapshots.stripes().oldest(), 5);
        drop(second);
        assert_eq!(snapshots.stripes().oldest(), MAX_SEQ);
        assert!(snapshots.stripes().is_oldest(9));
    }
}
