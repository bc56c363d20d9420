//! Which members an operation was handed to: a call that was never given to a connection has certainly not
//! arrived.
//!
//! A member that refuses connections has nothing of the operation. At the deadline that is the difference
//! between an operation that did not happen and one whose outcome is unknown.
//!
//! Invariant: after the deadline nothing is handed over any more but burials.

use copal_volume::group::DiskId;
use parking_lot::Mutex;
use std::{collections::BTreeSet, sync::Arc};

/// See the module. Clones share what they know.
#[derive(Clone, Default)]
pub(crate) struct HandedOver(Arc<Mutex<Members>>);

#[derive(Default)]
struct Members {
    is_over: bool,
    disks: BTreeSet<DiskId>,
}

impl HandedOver {
    /// A call is about to be given to a connection to these members, or to one that passes it on to them;
    /// whether it may.
    pub(crate) fn begin(&self, disks: impl IntoIterator<Item = DiskId>) -> bool {
        let mut members = self.0.lock();
        if members.is_over {
            return false;
        }
        members.disks.extend(disks);
        true
    }

    /// Nothing is handed over from here on. Returns the members to which anything was.
    pub(crate) fn end(&self) -> BTreeSet<DiskId> {
        let mut members = self.0.lock();
        members.is_over = true;
        members.disks.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_handed_over_after_the_end() {
        let handed = HandedOver::default();
        assert!(handed.begin([DiskId(1)]));
        assert!(handed.clone().begin([DiskId(2), DiskId(3)]));
        assert_eq!(handed.end(), [DiskId(1), DiskId(2), DiskId(3)].into());
        assert!(!handed.begin([DiskId(4)]));
        assert_eq!(handed.end().len(), 3);
    }
}
