//! An agent that a job expects but that takes no part, for people and programs.
//!
//! Not here: finding missing agents (`roster`).

use serde::{Deserialize, Serialize};
use std::fmt;

/// An agent that does not take part in a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingAgent {
    /// Its name.
    pub name: String,
    /// VMs that it would back up, by its last plan, and that no other agent backs up.
    pub vms: Vec<String>,
    /// Further VMs of its plan, whose names are unknown.
    pub more_vms: u32,
    /// Reason of its absence.
    pub reason: String,
}

impl fmt::Display for MissingAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, reason, .. } = self;
        let vms = match (&self.vms[..], self.more_vms) {
            ([], 0) => String::new(),
            ([], more) => format!(" with {more} VMs"),
            (vms, 0) => format!(" with {}", vms.join(", ")),
            (vms, more) => format!(" with {} and {more} more VMs", vms.join(", ")),
        };
        write!(f, "agent {name}{vms}: {reason}")
    }
}
