//! Bytes of live files in volumes with a quota that were written to: counted once, then updated.

use copal_volume::{VolumeId, group::GroupId};
use parking_lot::Mutex;
use std::collections::HashMap;

/// Counted bytes by volume.
#[derive(Default)]
pub(super) struct VolumeUsage {
    bytes: Mutex<HashMap<VolumeId, u64>>,
}

impl VolumeUsage {
    /// `None`: the volume is not counted.
    pub(super) fn get(&self, vid: VolumeId) -> Option<u64> {
        self.bytes.lock().get(&vid).copied()
    }

    pub(super) fn set(&self, vid: VolumeId, bytes: u64) {
        self.bytes.lock().insert(vid, bytes);
    }

    /// Adds `bytes` to the count of a volume, if it is counted.
    pub(super) fn add(&self, vid: VolumeId, bytes: i64) {
        if let Some(used) = self.bytes.lock().get_mut(&vid) {
            *used = used.saturating_add_signed(bytes);
        }
    }

    pub(super) fn forget(&self, vid: VolumeId) {
        self.bytes.lock().remove(&vid);
    }

    pub(super) fn forget_group(&self, group: GroupId) {
        self.bytes.lock().retain(|vid, _| vid.birth_group() != group);
    }
}
