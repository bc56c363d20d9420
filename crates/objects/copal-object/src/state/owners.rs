//! Owners of an open store: one that writes, or several that read.

use parking_lot::Mutex;

/// Owners of an open store.
#[derive(Default)]
pub(crate) struct StoreOwners(pub(crate) Mutex<OwnerCounts>);

#[derive(Default)]
pub(crate) struct OwnerCounts {
    pub(crate) readers: usize,
    pub(crate) writer: bool,
}
