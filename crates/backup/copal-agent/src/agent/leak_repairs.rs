//! Repairs of VMs that have leaked too much by estimate: behind a job, one VM at a time.
//!
//! Paper: low-profile-dedup §4 (leak repair, threshold tau)
//!
//! A repair takes something away and has the repository of this process to itself. So it runs only with a key
//! that may delete, it is put off while a door shows a forgotten snapshot, and whoever begins a backup ends
//! it first.

use copal_backup::{CancelFlag, Error, Repository, Role, Silent};
use serde::{Deserialize, Serialize};

/// What became of a VM whose repair was due.
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
    /// So many bytes are free now.
    #[serde(rename = "freed_bytes")]
    Freed(u64),
    /// Why the VM was not repaired: the next job tries again.
    #[serde(rename = "error")]
    Postponed(String),
}

/// Repairs those of the VMs that leak more than a share of their bytes, until it is cancelled.
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
                tracing::info!(vm, freed_bytes, "the leak of this VM was repaired");
                RepairOutcome::Freed(freed_bytes)
            }
            Err(error) => {
                tracing::warn!(vm, %error, "the leak of this VM is repaired behind the next job");
                RepairOutcome::Postponed(error.to_string())
            }
        };
        repairs.push(LeakRepair { vm: vm.to_owned(), outcome });
    }
    repairs
}

/// Bytes that are free now; `None`: it does not leak that much.
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
        return Err(Error::Busy { what: "a snapshot that is forgotten and shown by a door".to_owned() });
    }
    let repaired = repository.repair_leak(vm, memory_bytes, &Silent, cancel)?;
    Ok(Some(repaired.freed_bytes))
}
