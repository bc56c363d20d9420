//! VMs whose snapshots are walked besides the pruned one: none, except for the paper's methods of comparison.
//!
//! The paper's mark-and-sweep does not distinguish VMs, so each host that frees something reads the
//! references of all snapshots. The grouped method keeps its marks, and reads again only groups in which
//! something is freed; a group is a VM here.
//!
//! Paper: low-profile-dedup §5 (table 3)

use crate::request::error::Result;
use crate::request::{FreeMethod, Vm};
use crate::sessions::parts::RepositoryParts;

/// The VMs that a method walks in order to free data of any of them.
/// # Errors
/// Errors of the store.
pub(super) fn walked(parts: &RepositoryParts, method: FreeMethod, vms: &[Vm]) -> Result<Vec<Vm>> {
    let mut walked = Vec::new();
    for vm in vms {
        let is_walked = match method {
            FreeMethod::Summary | FreeMethod::Exact => false,
            FreeMethod::MarkSweep => true,
            FreeMethod::Grouped => !parts.vm_state(vm.uuid)?.forgotten.is_empty(),
        };
        if is_walked {
            walked.push(vm.clone());
        }
    }
    Ok(walked)
}
