//! Disks: how full they are and what they still take.

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
    /// Zone of its server; empty: none is known.
    pub zone: String,
    /// Rack of its server; empty: none is known.
    pub rack: String,
    /// `up`, `recovering`, `down` or `lost`.
    pub state: String,
    /// It is being emptied.
    pub draining: bool,
    /// It takes no new files.
    pub full: bool,
    /// `hdd` or `ssd`; null: not known.
    #[serde(deserialize_with = "nullable")]
    pub medium: Option<String>,
    /// Bytes that it holds.
    pub used_bytes: u64,
    /// Bytes on their way to it.
    pub arriving_bytes: u64,
    /// Bytes that it can hold.
    pub capacity_bytes: u64,
    /// Part that is used, 0 to 100.
    pub used_percent: f64,
    /// Groups on it.
    pub groups: usize,
    /// Bytes of copies and moves that it takes.
    pub copies_take_bytes: u64,
    /// Bytes of new files that it takes.
    pub files_take_bytes: u64,
}
