//! Whose snapshots are walked besides those of the VM that is pruned: nobody's, but for the methods that
//! Copal stands beside.
//!
//! The paper's mark-and-sweep knows no VMs, so each host that frees something reads what all snapshots name.
//! The grouped one keeps what it has marked, and reads those groups again in which something is to be freed;
//! a group is a VM here.
//!
//! Paper: low-profile-dedup §5 (table 3)

use crate::request::error::Result;
use crate::request::{FreeMethod, Vm};
use crate::sessions::parts::Parts;

/// The VMs that a method walks to free what any of them had.
/// # Errors
/// Those of the store.
pub(super) fn walked(parts: &Parts, method: FreeMethod, vms: &[Vm]) -> Result<Vec<Vm>> {
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
