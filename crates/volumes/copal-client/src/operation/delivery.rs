//! Record of the replicas that may have received an operation.
//!
//! A call that was never given to a connection has certainly not arrived: a replica that refuses connections
//! holds nothing of the operation. At the deadline this record distinguishes an operation that did not happen
//! from one whose outcome is unknown.
//!
//! Invariant: after the deadline only the deletes that undo a create are sent.

use copal_volume::group::DiskId;
use parking_lot::Mutex;
use std::{collections::BTreeSet, sync::Arc};

/// See the module. Clones share one record.
#[derive(Clone, Default)]
pub(crate) struct DeliveryRecord(Arc<Mutex<DeliveryState>>);

#[derive(Default)]
struct DeliveryState {
    is_closed: bool,
    disks: BTreeSet<DiskId>,
}

impl DeliveryRecord {
    /// Records the replicas that the next call may reach, directly or through another replica. Returns `false`
    /// if the record is closed; then the call must not be sent.
    pub(crate) fn begin(&self, disks: impl IntoIterator<Item = DiskId>) -> bool {
        let mut state = self.0.lock();
        if state.is_closed {
            return false;
        }
        state.disks.extend(disks);
        true
    }

    /// Closes the record: nothing is sent from now on. Returns the replicas that a call may have reached.
    pub(crate) fn close(&self) -> BTreeSet<DiskId> {
        let mut state = self.0.lock();
        state.is_closed = true;
        state.disks.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_sent_after_the_record_is_closed() {
        let delivery = DeliveryRecord::default();
        assert!(delivery.begin([DiskId(1)]));
        assert!(delivery.clone().begin([DiskId(2), DiskId(3)]));
        assert_eq!(delivery.close(), [DiskId(1), DiskId(2), DiskId(3)].into());
        assert!(!delivery.begin([DiskId(4)]));
        assert_eq!(delivery.close().len(), 3);
    }
}
