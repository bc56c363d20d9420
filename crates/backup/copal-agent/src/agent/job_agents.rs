//! List of the agents of a job, as each agent keeps it.
//!
//! Not here: the job itself (`job`), which agents take part in it (`roster`).

use crate::plan::missing_agent::MissingAgent;
use serde::{Deserialize, Serialize};

/// The agents of a job and their VMs. Each agent of the job keeps this, to answer queries about the job.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct JobAgents {
    /// Name and address of each.
    pub(crate) members: Vec<(String, String)>,
    /// Names of the VMs of each.
    pub(crate) plans: Vec<Vec<String>>,
    pub(crate) missing: Vec<MissingAgent>,
    /// Position in the log of popular packs where the job began.
    pub(crate) popular_from: u64,
    /// Longest time for an answer.
    pub(crate) timeout_ms: u64,
}
