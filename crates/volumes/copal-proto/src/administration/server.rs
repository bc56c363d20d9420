//! Data servers: tokens to join, and orders about one server.

use super::nullable;
use serde::{Deserialize, Serialize};

/// Reply to `DrawToken`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinSecret {
    /// The token.
    pub token: String,
    /// Minutes for which it is valid.
    pub minutes: u32,
}

/// Reply to `DrainServer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReport {
    /// Name of the server.
    pub name: String,
    /// Whether it is being drained from now on.
    pub draining: bool,
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// Groups that leave it.
    pub groups: usize,
    /// Bytes that leave it.
    pub bytes: u64,
    /// Obstacles to the drain, a sentence each.
    pub blocked: Vec<String>,
    /// Duration in seconds; null: not known.
    #[serde(deserialize_with = "nullable")]
    pub ends_in_s: Option<u64>,
}

/// Reply to `RemoveServer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovalReport {
    /// Name of the server.
    pub name: String,
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
}

/// Reply to `AnnounceAbsence`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbsenceReport {
    /// Name of the server.
    pub name: String,
    /// End of the absence, ms since 1970.
    pub until_ms: u64,
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// Groups that accept no writes during the absence.
    pub groups_too_few: usize,
}

/// Reply to `LoseServer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossReport {
    /// Name of the server that is declared lost.
    pub lost: String,
}
