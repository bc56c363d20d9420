//! Reads and memory of each method of deletion, for one VM.
//!
//! Paper: low-profile-dedup §5, table 3. The paper's methods are step functions of its figures. Copal's
//! methods read the structures of its formats, with the real geometry of summary vectors.

use super::super::inputs::{DIRTY_SHARE, VM_BYTES, copal, paper};
use super::super::sizes::Vm;
use copal_backup::summary::Geometry;

/// A method of finding the chunks that only a deleted snapshot used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    MarkSweep,
    Grouped,
    Local,
    Summary,
    Repair,
    CopalSummary,
    CopalRepair,
}

impl Method {
    pub(super) const ALL: [Method; 7] = [
        Method::MarkSweep,
        Method::Grouped,
        Method::Local,
        Method::Summary,
        Method::Repair,
        Method::CopalSummary,
        Method::CopalRepair,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Method::MarkSweep => "mark-sweep",
            Method::Grouped => "grouped",
            Method::Local => "local",
            Method::Summary => "summary",
            Method::Repair => "repair",
            Method::CopalSummary => "copal-summary",
            Method::CopalRepair => "copal-repair",
        }
    }

    /// The paper's figures: hours at 100 and at 50 hosts, and memory.
    pub(super) fn printed(self) -> Option<(f64, f64, &'static str)> {
        match self {
            Method::MarkSweep => Some((84.3, 35.9, "1.2-3 GB")),
            Method::Grouped => Some((43.6, 18.6, "1.2-3 GB")),
            Method::Local | Method::Repair => Some((0.82, 0.7, "0.05-1.96 GB")),
            Method::Summary => Some((0.014, 0.012, "15 MB")),
            Method::CopalSummary | Method::CopalRepair => None,
        }
    }

    /// Bytes read of a VM in one phase.
    pub(super) fn read_bytes(self, vm: &Vm) -> f64 {
        let snapshots = paper::SNAPSHOTS as f64;
        match self {
            Method::MarkSweep | Method::Local | Method::Repair => {
                vm.bytes / paper::CHUNK_BYTES * paper::RECIPE_ENTRY_BYTES * snapshots
            }
            Method::Grouped => Method::MarkSweep.read_bytes(vm) * paper::GROUPED_SHARE,
            Method::Summary => {
                let private = paper::PRIVATE_REFERENCES * vm.bytes / VM_BYTES;
                private * paper::REFERENCE_BYTES + snapshots * private * paper::VECTOR_BITS / 8.0
            }
            Method::CopalSummary => {
                // Recipes of segments that differ from both neighbours, pages, and the vectors of the
                // remaining snapshots.
                let vectors = (snapshots - 1.0) * vector_bytes(vm);
                recipe_bytes(vm) * DIRTY_SHARE + copal::PAGES_BYTES + vectors
            }
            Method::CopalRepair => {
                // The recipes of a snapshot differ from those of its predecessor in the dirty segments only.
                let later = (snapshots - 1.0) * DIRTY_SHARE;
                let frames = private(vm) * (1.0 + (snapshots - 1.0) * paper::NEW_SHARE);
                recipe_bytes(vm) * (1.0 + later) + frames * copal::FOOTER_ROW_BYTES
            }
        }
    }

    /// Number of phases, each of which reads all VMs of a host.
    pub(super) fn phases(self, hosts: usize) -> usize {
        match self {
            Method::MarkSweep | Method::Grouped => hosts,
            _ => 1,
        }
    }

    /// Memory for VMs of a host that are handled at once.
    pub(super) fn memory_bytes(self, vms: &[&Vm]) -> f64 {
        let of = |vm: &&Vm| match self {
            Method::MarkSweep | Method::Grouped | Method::Local | Method::Repair => {
                paper::PRIVATE_REFERENCES * vm.bytes / VM_BYTES * paper::MARK_ROW_BYTES
            }
            Method::Summary => {
                let private = paper::PRIVATE_REFERENCES * vm.bytes / VM_BYTES;
                paper::SNAPSHOTS as f64 * private * paper::VECTOR_BITS / 8.0
            }
            // One block of the merged vector, and a bit for each frame.
            Method::CopalSummary => {
                let geometry = Geometry::for_references(private(vm) as u64);
                geometry.bits() as f64 / f64::from(geometry.blocks()) / 8.0 + private(vm) / 8.0
            }
            // A bit for each frame, and the vector's block under construction.
            Method::CopalRepair => Method::CopalSummary.memory_bytes(&[*vm]),
        };
        vms.iter().map(of).sum()
    }
}

/// Number of references of a VM to chunks of no other VM, in Copal's chunks.
pub(super) fn private(vm: &Vm) -> f64 {
    paper::PRIVATE_REFERENCES * vm.bytes / VM_BYTES * paper::CHUNK_BYTES / copal::CHUNK_BYTES
}

/// Bytes of all recipes of one snapshot.
fn recipe_bytes(vm: &Vm) -> f64 {
    vm.bytes / copal::CHUNK_BYTES * copal::RECIPE_ENTRY_BYTES
}

fn vector_bytes(vm: &Vm) -> f64 {
    Geometry::for_references(private(vm) as u64).bits() as f64 / 8.0
}
