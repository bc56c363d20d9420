//! Volumes that are known to exist, with the path at which each was last found.

use copal_volume::VolumeId;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Volumes that are remembered. Beyond that number all are forgotten and asked for again.
const MAX_VOLUMES: usize = 100_000;

/// See the module. An empty path means that the path is not known.
#[derive(Default)]
pub(crate) struct KnownVolumes {
    paths: Mutex<HashMap<VolumeId, String>>,
}

impl KnownVolumes {
    pub(crate) fn contains(&self, vid: VolumeId) -> bool {
        self.paths.lock().contains_key(&vid)
    }

    pub(crate) fn insert(&self, vid: VolumeId, path: String) {
        let mut paths = self.paths.lock();
        if paths.len() >= MAX_VOLUMES {
            paths.clear();
        }
        paths.insert(vid, path);
    }

    /// The path at which a volume was last found; empty: not known.
    pub(crate) fn path(&self, vid: VolumeId) -> String {
        self.paths.lock().get(&vid).cloned().unwrap_or_default()
    }
}
