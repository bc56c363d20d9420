//! What is stored, as the engine holds it: the manifest with its open tables, and what waits to be freed.

use super::{
    garbage::{Epochs, Garbage},
    manifest::Manifest,
    version::Handles,
};
use crate::memory::budget::Charge;
use bytes::Bytes;
use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc};

/// See the module.
pub(crate) struct Stored {
    pub(crate) tree: Mutex<Tree>,
    pub(crate) epochs: Arc<Epochs>,
    pub(crate) garbage: Garbage,
    /// Separated values found damaged, by key: the pointer, and what was found.
    pub(crate) damaged_values: Mutex<BTreeMap<Bytes, (Bytes, String)>>,
}

/// The manifest and the tables it names, open.
pub(crate) struct Tree {
    pub(crate) manifest: Manifest,
    pub(crate) handles: Handles,
    pub(crate) next_epoch: u64,
    /// Runs below have a number already, be they in the manifest or not yet.
    pub(crate) next_run: u64,
    pub(crate) state_charge: Charge,
}

impl Tree {
    /// The charge follows what the manifest's state reuse.
    pub(crate) fn count_state(&mut self) {
        self.state_charge.set(self.manifest.state.heap_bytes());
    }
}
