//! Moves of groups: plans for all disks, and orders to start and stop moves.

use super::nullable;
use serde::{Deserialize, Serialize};

/// Reply to `PlanRebalance`; also the format of a plan file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RebalancePlan {
    /// Version of this format.
    pub v: u32,
    /// Groups that would move.
    pub moves: Vec<PlannedMove>,
    /// Disks before and after.
    pub disks: Vec<DiskForecast>,
    /// Bytes that would move.
    pub bytes: u64,
    /// Least duration in hours; null: no rate is known.
    #[serde(deserialize_with = "nullable")]
    pub hours: Option<f64>,
    /// Disks that stay too full with the reason, a sentence each.
    pub refused: Vec<String>,
}

impl RebalancePlan {
    /// Version of the format that this release writes and reads.
    pub const VERSION: u32 = 1;
}

/// A group that would move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMove {
    /// Its number.
    pub group: u32,
    /// Server that it leaves.
    pub from: String,
    /// Server that receives it.
    pub to: String,
    /// Its bytes, approximately.
    pub bytes: u64,
}

/// A disk before and after a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskForecast {
    /// Name of its server.
    pub name: String,
    /// Capacity in bytes.
    pub capacity_bytes: u64,
    /// Bytes in use before the plan.
    pub before_bytes: u64,
    /// Bytes in use after the plan.
    pub after_bytes: u64,
    /// Groups on it before the plan.
    pub before_groups: u64,
    /// Groups on it after the plan.
    pub after_groups: u64,
}

/// Reply to `MoveGroup` and `ApplyRebalance`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveReport {
    /// Groups that move.
    pub groups: usize,
    /// Groups that have moved already, or are moving.
    pub done: usize,
    /// Bytes that move.
    pub bytes: u64,
    /// Whether this was a dry run, which starts nothing.
    pub dry_run: bool,
    /// Duration in seconds; null: not known.
    #[serde(deserialize_with = "nullable")]
    pub ends_in_s: Option<u64>,
}

/// Reply to `CancelMove`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelReport {
    /// Number of the group.
    pub group: u32,
    /// Whether a move of it was ordered.
    pub moves: bool,
    /// Whether its move had begun; absent: no move was ordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub has_begun: Option<bool>,
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
}

/// Reply to `PauseRebalance`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseReport {
    /// Moves that are dropped from the queue.
    pub left_out: usize,
    /// Moves that continue.
    pub running: usize,
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
}
