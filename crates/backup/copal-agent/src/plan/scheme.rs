//! Schemes by which the VMs of a job find duplicates: the scheme of the product, and those of the paper for
//! comparison.
//!
//! Paper: low-profile-dedup §5 (tables 1 and 2)

use serde::{Deserialize, Serialize};

/// The scheme of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DedupScheme {
    /// Hosts ask each other in rounds, and do not wait for a late host.
    #[default]
    Collaborative,
    /// Hosts ask each other in stages: each backs up one VM, and begins the next after all have ended.
    Synchronous,
    /// No host asks, and changed segments are stored completely.
    DirtyBit,
}

/// The VMs of each stage: the first VM of every host, then the second, and so on.
pub(crate) fn stages(plans: &[Vec<String>]) -> Vec<Vec<String>> {
    let most = plans.iter().map(Vec::len).max().unwrap_or(0);
    let stage = |number: usize| plans.iter().filter_map(|vms| vms.get(number).cloned()).collect();
    (0..most).map(stage).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_has_one_vm_of_each_host_that_has_one_left() {
        let plan = |vms: &[&str]| vms.iter().map(|vm| (*vm).to_owned()).collect::<Vec<_>>();
        let stages = stages(&[plan(&["a", "b"]), plan(&[]), plan(&["c"])]);
        assert_eq!(stages, [plan(&["a", "c"]), plan(&["b"])]);
        assert!(super::stages(&[]).is_empty());
    }
}
