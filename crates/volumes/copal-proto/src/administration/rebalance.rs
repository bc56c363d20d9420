//! Moves of groups: a plan for all disks, orders to move, and their end.

use super::nullable;
use serde::{Deserialize, Serialize};

/// Reply to `PlanRebalance`; also the form of a plan in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RebalancePlan {
    /// Version of this form.
    pub v: u32,
    /// Groups that would move.
    pub moves: Vec<PlannedMove>,
    /// Disks before and after.
    pub disks: Vec<DiskForecast>,
    /// Bytes that would move.
    pub bytes: u64,
    /// Hours that it takes at least; null: no rate is known.
    #[serde(deserialize_with = "nullable")]
    pub hours: Option<f64>,
    /// Why disks stay too full, a sentence each.
    pub refused: Vec<String>,
}

impl RebalancePlan {
    /// Version of the form that this release writes and reads.
    pub const VERSION: u32 = 1;
}

/// A group that would move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMove {
    /// Its number.
    pub group: u32,
    /// Server that it leaves.
    pub from: String,
    /// Server that it goes to.
    pub to: String,
    /// Its bytes, about.
    pub bytes: u64,
}

/// A disk before and after a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskForecast {
    /// Name of its server.
    pub name: String,
    /// Bytes that it can hold.
    pub capacity_bytes: u64,
    /// Bytes that it holds.
    pub before_bytes: u64,
    /// Bytes that it would hold.
    pub after_bytes: u64,
    /// Groups on it.
    pub before_groups: u64,
    /// Groups that would be on it.
    pub after_groups: u64,
}

/// Reply to `MoveGroup` and `ApplyRebalance`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveReport {
    /// Groups that move.
    pub groups: usize,
    /// Groups that moved before, or move already.
    pub done: usize,
    /// Bytes that move.
    pub bytes: u64,
    /// Nothing was begun.
    pub dry_run: bool,
    /// Seconds that it takes; null: not known.
    #[serde(deserialize_with = "nullable")]
    pub ends_in_s: Option<u64>,
}

/// Reply to `CancelMove`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelReport {
    /// Number of the group.
    pub group: u32,
    /// It was to move.
    pub moves: bool,
    /// Its move had begun; not there: it was not to move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub has_begun: Option<bool>,
    /// Nothing was changed.
    pub dry_run: bool,
}

/// Reply to `PauseRebalance`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseReport {
    /// Moves that are left out.
    pub left_out: usize,
    /// Moves that go on.
    pub running: usize,
    /// Nothing was changed.
    pub dry_run: bool,
}
