//! Data servers: tokens to join with, and orders about one of them.

use super::nullable;
use serde::{Deserialize, Serialize};

/// Reply to `DrawToken`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinSecret {
    /// The token.
    pub token: String,
    /// Minutes for which it is good.
    pub minutes: u32,
}

/// Reply to `DrainServer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReport {
    /// Name of the server.
    pub name: String,
    /// It is being emptied from here on.
    pub draining: bool,
    /// Nothing was changed.
    pub dry_run: bool,
    /// Groups that leave it.
    pub groups: usize,
    /// Bytes that leave it.
    pub bytes: u64,
    /// What keeps groups from leaving, a sentence each.
    pub blocked: Vec<String>,
    /// Seconds that it takes; null: not known.
    #[serde(deserialize_with = "nullable")]
    pub ends_in_s: Option<u64>,
}

/// Reply to `RemoveServer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovalReport {
    /// Name of the server.
    pub name: String,
    /// Nothing was changed.
    pub dry_run: bool,
}

/// Reply to `AnnounceAbsence`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbsenceReport {
    /// Name of the server.
    pub name: String,
    /// End of the absence, ms since 1970.
    pub until_ms: u64,
    /// Nothing was changed.
    pub dry_run: bool,
    /// Groups to which nothing can be written meanwhile.
    pub groups_too_few: usize,
}

/// Reply to `LoseServer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossReport {
    /// Name of the server that is given up.
    pub lost: String,
}
