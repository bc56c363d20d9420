//! What is stored, as the engine holds it: the manifest with its open tables, and what waits to be freed.

use super::{
    garbage::{GarbageList, VersionEpochs},
    manifest::Manifest,
    version::Handles,
};
use crate::memory::budget::MemoryCharge;
use bytes::Bytes;
use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc};

/// See the module.
pub(crate) struct StoredState {
    pub(crate) tree: Mutex<OpenTree>,
    pub(crate) epochs: Arc<VersionEpochs>,
    pub(crate) garbage: GarbageList,
    /// Separated values found damaged, by key: the pointer, and what was found.
    pub(crate) damaged_values: Mutex<BTreeMap<Bytes, (Bytes, String)>>,
}

/// The manifest and the tables it names, open.
pub(crate) struct OpenTree {
    pub(crate) manifest: Manifest,
    pub(crate) handles: Handles,
    pub(crate) next_epoch: u64,
    /// Runs below have a number already, be they in the manifest or not yet.
    pub(crate) next_run: u64,
    pub(crate) state_charge: MemoryCharge,
}

impl OpenTree {
    /// The charge follows what the manifest's state reuse.
    pub(crate) fn count_state(&mut self) {
        self.state_charge.set(self.manifest.state.heap_bytes());
    }
}
