//! Cache of the VM of each snapshot that was asked for by name.

use crate::request::SnapshotId;
use std::collections::HashMap;
use uuid::Uuid;

/// Snapshots whose VM is remembered.
const SEEN: usize = 4096;

/// Caches the VM of snapshots that were asked for by name. Finding it takes the logs of all VMs, and the
/// caller mostly uses the snapshot right after.
#[derive(Default)]
pub(crate) struct SnapshotNames(HashMap<SnapshotId, Uuid>);

impl SnapshotNames {
    pub(crate) fn remember(&mut self, snapshot: SnapshotId, vm: Uuid) {
        if self.0.len() >= SEEN {
            self.0.clear();
        }
        self.0.insert(snapshot, vm);
    }

    pub(crate) fn vm_of(&self, snapshot: SnapshotId) -> Option<Uuid> {
        self.0.get(&snapshot).copied()
    }
}
