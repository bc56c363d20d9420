//! Cache of the VM of each snapshot that was asked for by name.

use crate::request::SnapshotId;
use parking_lot::Mutex;
use std::collections::HashMap;
use uuid::Uuid;

/// Snapshots whose VM is remembered.
const SEEN: usize = 4096;

/// Caches the VM of snapshots that were asked for by name. Finding it takes the logs of all VMs, and the
/// caller mostly uses the snapshot right after.
#[derive(Default)]
pub(crate) struct SnapshotNames(Mutex<HashMap<SnapshotId, Uuid>>);

impl SnapshotNames {
    pub(crate) fn remember(&self, snapshot: SnapshotId, vm: Uuid) {
        let mut known = self.0.lock();
        if known.len() >= SEEN {
            known.clear();
        }
        known.insert(snapshot, vm);
    }

    pub(crate) fn vm_of(&self, snapshot: SnapshotId) -> Option<Uuid> {
        self.0.lock().get(&snapshot).copied()
    }
}
