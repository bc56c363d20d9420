//! Repairs of VMs whose estimated leak is too large: after a job, one VM at a time.
//!
//! Paper: low-profile-dedup §4 (leak repair, threshold tau)
//!
//! A repair removes data and needs the repository of this process for itself. So it runs only with a key that
//! may delete. It is postponed while an export shows a forgotten snapshot. A new backup ends the repair before
//! it begins.

use copal_backup::{CancelFlag, Error, Repository, Role, Silent};
use serde::{Deserialize, Serialize};

/// Result for a VM whose repair was due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeakRepair {
    /// Its name.
    pub vm: String,
    /// How its repair ended.
    #[serde(flatten)]
    pub outcome: RepairOutcome,
}

/// How the repair of a leak ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RepairOutcome {
    /// The repair freed this number of bytes.
    #[serde(rename = "freed_bytes")]
    Freed(u64),
    /// Reason of a postponement: the next job tries again.
    #[serde(rename = "error")]
    Postponed(String),
}

/// Repairs the VMs that leak more than the given share of their bytes, until cancelled.
pub fn repair_leaks<'a>(
    repository: &Repository,
    vms: impl Iterator<Item = &'a str>,
    (share_percent, memory_bytes): (u8, u64),
    cancel: &CancelFlag,
) -> Vec<LeakRepair> {
    if !repository.roles().has(Role::Delete) {
        return Vec::new();
    }
    let mut repairs = Vec::new();
    for vm in vms {
        if cancel.is_cancelled() {
            break;
        }
        let outcome = match repair(repository, vm, (share_percent, memory_bytes), cancel) {
            Ok(None) => continue,
            Ok(Some(freed_bytes)) => {
                tracing::info!(vm, freed_bytes, "leak repaired");
                RepairOutcome::Freed(freed_bytes)
            }
            Err(error) => {
                tracing::warn!(vm, %error, "leak repair postponed to the next job");
                RepairOutcome::Postponed(error.to_string())
            }
        };
        repairs.push(LeakRepair { vm: vm.to_owned(), outcome });
    }
    repairs
}

/// Returns the freed bytes; `None`: the leak is small enough.
fn repair(
    repository: &Repository,
    vm: &str,
    (share_percent, memory_bytes): (u8, u64),
    cancel: &CancelFlag,
) -> copal_backup::Result<Option<u64>> {
    if !repository.vm_stats(vm)?.leaks_more_than(share_percent) {
        return Ok(None);
    }
    if repository.pinned()?.iter().any(|shown| !shown.is_there(repository)) {
        return Err(Error::Busy { what: "an export shows a forgotten snapshot".to_owned() });
    }
    let repaired = repository.repair_leak(vm, memory_bytes, &Silent, cancel)?;
    Ok(Some(repaired.freed_bytes))
}
