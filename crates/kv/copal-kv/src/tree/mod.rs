//! State that readers see: memtables, manifest, versions of the tree, snapshots, separated values, garbage.

pub(crate) mod current_view;
pub(crate) mod damaged_parts;
pub(crate) mod filter_report;
pub(crate) mod garbage;
pub(crate) mod inheritance;
pub(crate) mod key_filter;
pub(crate) mod manifest;
pub(crate) mod memtable;
pub(crate) mod snapshots;
pub(crate) mod stored;
pub(crate) mod value;
pub(crate) mod version;
