//! The repository as callers see it: opening, volumes of VMs, keys, snapshots by name, copies between repositories.

pub mod copy;
pub(crate) mod key_list;
pub(crate) mod listing;
pub(crate) mod lookup;
pub mod repository;
pub(crate) mod snapshot_names;
pub(crate) mod snapshot_records;
pub(crate) mod stats;
pub(crate) mod unlock;
pub(crate) mod vms;
