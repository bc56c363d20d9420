//! Of which VM a snapshot is that was asked for by name.

use crate::request::SnapshotId;
use std::collections::HashMap;
use uuid::Uuid;

/// Snapshots whose VM is remembered.
const SEEN: usize = 4096;

/// Of which VMs snapshots are that were asked for by name: whoever names one mostly does something with it
/// next, and the logs of all VMs were read to find it.
#[derive(Default)]
pub(crate) struct Seen(HashMap<SnapshotId, Uuid>);

impl Seen {
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
