//! Disks: their usage and free space.

use super::nullable;
use serde::{Deserialize, Serialize};

/// Reply to `ListDisks`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskList {
    /// All disks.
    pub disks: Vec<DiskUsage>,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskUsage {
    /// Name of its server.
    pub name: String,
    /// Its number.
    pub disk: u32,
    /// Zone of its server; empty: not known.
    pub zone: String,
    /// Rack of its server; empty: not known.
    pub rack: String,
    /// `up`, `recovering`, `down` or `lost`.
    pub state: String,
    /// Its server is being drained.
    pub draining: bool,
    /// It accepts no new files.
    pub full: bool,
    /// `hdd` or `ssd`; null: not known.
    #[serde(deserialize_with = "nullable")]
    pub medium: Option<String>,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes of copies to it that are in progress or planned.
    pub arriving_bytes: u64,
    /// Capacity in bytes.
    pub capacity_bytes: u64,
    /// Used part of the capacity in percent.
    pub used_percent: f64,
    /// Groups on it.
    pub groups: usize,
    /// Bytes of copies and moves that it still accepts.
    pub copies_take_bytes: u64,
    /// Bytes of new files that it still accepts.
    pub files_take_bytes: u64,
}
