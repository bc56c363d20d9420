//! What a reader pins: the memtables and the version of the tree at one moment.

use crate::tree::{memtable::Memtable, version::TreeVersion};
use std::sync::Arc;

/// Everything that is searched, newest first.
pub(crate) struct SuperVersion {
    /// The memtable that commits insert into.
    pub(crate) active: Arc<Memtable>,
    /// Full memtables, newest first, until their flush is installed.
    pub(crate) frozen: Vec<Arc<Memtable>>,
    pub(crate) version: Arc<TreeVersion>,
}

impl SuperVersion {
    /// All memtables, newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<Memtable>> {
        std::iter::once(&self.active).chain(&self.frozen)
    }
}
