//! Sequences that readers hold: a merge keeps, for each of them, the version it sees.

use crate::format::stripes::SequenceStripes;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// The newest sequence readers may see, and the older ones still held.
///
/// Invariant: what is given out is at least what is visible; between the two are commits on their way.
#[derive(Debug, Default)]
pub(crate) struct SnapshotList {
    visible: AtomicU64,
    /// Last sequence that belongs to a commit. Changed under the writer lock only.
    given: AtomicU64,
    held: Mutex<BTreeMap<u64, usize>>,
}

impl SnapshotList {
    /// Newest sequence whose promise of durability was kept.
    pub(crate) fn visible(&self) -> u64 {
        self.visible.load(Ordering::Acquire)
    }

    /// Makes everything up to `seq` visible.
    pub(crate) fn advance(&self, seq: u64) {
        let before = self.visible.swap(seq, Ordering::AcqRel);
        assert!(before <= seq, "visible sequence went from {before} back to {seq}");
        self.given.fetch_max(seq, Ordering::AcqRel);
    }

    /// Last sequence that a commit took, visible or not yet.
    pub(crate) fn allocated_seq(&self) -> u64 {
        self.given.load(Ordering::Acquire)
    }

    /// A commit on its way takes the sequences up to `seq`.
    pub(crate) fn allocate_up_to(&self, seq: u64) {
        let before = self.given.swap(seq, Ordering::AcqRel);
        assert!(before <= seq, "sequences up to {before} were given out again as up to {seq}");
    }

    /// Holds what is visible now.
    pub(crate) fn hold(self: &Arc<SnapshotList>) -> HeldSnapshot {
        let mut held = self.held.lock();
        let seq = self.visible();
        *held.entry(seq).or_insert(0) += 1;
        HeldSnapshot { snapshots: self.clone(), seq }
    }

    /// The sequences that a merge has to keep versions for, ascending.
    ///
    /// A snapshot taken later holds a sequence at least as new as every entry in a table, so it sees the
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
