//! Stored state of the engine: the manifest with its open tables, and garbage.

use super::{
    garbage::{GarbageList, VersionEpochs},
    manifest::Manifest,
    version::Handles,
};
use crate::memory::budget::MemoryCharge;
use bytes::Bytes;
use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc};

/// Stored state of one engine; see the module.
pub(crate) struct StoredState {
    pub(crate) tree: Mutex<OpenTree>,
    pub(crate) epochs: Arc<VersionEpochs>,
    pub(crate) garbage: GarbageList,
    /// Damaged separated values by key: the pointer, and a sentence about the damage.
    pub(crate) damaged_values: Mutex<BTreeMap<Bytes, (Bytes, String)>>,
}

/// The manifest and its tables, open.
pub(crate) struct OpenTree {
    pub(crate) manifest: Manifest,
    pub(crate) handles: Handles,
    pub(crate) next_epoch: u64,
    /// Run numbers below this are allocated, in the manifest or not yet.
    pub(crate) next_run: u64,
    pub(crate) state_charge: MemoryCharge,
}

impl OpenTree {
    /// Adjusts the charge to the memory of the manifest's state.
    pub(crate) fn count_state(&mut self) {
        self.state_charge.set(self.manifest.state.heap_bytes());
    }
}
