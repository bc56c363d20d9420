//! Parts of VMs: the units of a backup.

use super::count::RoundLimits;

/// Bytes of disk in a page.
pub const PAGE_BYTES: u64 = 1 << 30;
/// The changes of one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmChanges {
    /// Changed bytes of each page, of all disks one after another.
    pub pages: Vec<u64>,
    /// Windows in which its backup should have ended but did not.
    pub missed_windows: u32,
}

/// A run of pages of one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmPart {
    /// Index of the VM in the given list.
    pub vm: usize,
    /// Number of the part within its VM, from 0.
    pub part: u32,
    /// First of its pages.
    pub first_page: usize,
    /// Number of pages; 0 for a VM without any.
    pub pages: usize,
    /// Changed bytes of these pages.
    pub changed_bytes: u64,
}

/// Cuts each VM into parts of about the average of all VMs, with answers that fit the memory. Each VM has at
/// least one part.
pub fn parts(vms: &[VmChanges], limits: &RoundLimits) -> Vec<Vec<VmPart>> {
    let total: u64 = vms.iter().flat_map(|vm| &vm.pages).fold(0, |sum, page| sum.saturating_add(*page));
    let average = total.div_ceil(vms.len().max(1) as u64);
    let most_bytes = limits.most_bytes();
    vms.iter().enumerate().map(|(vm, changes)| cut(vm, &changes.pages, average, most_bytes)).collect()
}

/// Equal parts, as many as the VM has averages; a part ends early if its answers would not fit.
fn cut(vm: usize, pages: &[u64], average: u64, most_bytes: u64) -> Vec<VmPart> {
    let changed = pages.iter().fold(0_u64, |sum, page| sum.saturating_add(*page));
    let equal = changed.div_ceil((changed / average.max(1)).max(1));
    let mut parts = Vec::new();
    let mut part = VmPart { vm, part: 0, first_page: 0, pages: 0, changed_bytes: 0 };
    for &page in pages {
        let longer = part.changed_bytes.saturating_add(page);
        let is_full = part.changed_bytes >= equal && page > 0;
        if part.pages > 0 && (is_full || longer > most_bytes) {
            parts.push(part);
            part = VmPart {
                vm,
                part: part.part + 1,
                first_page: part.first_page + part.pages,
                pages: 0,
                changed_bytes: 0,
            };
        }
        part.pages += 1;
        part.changed_bytes = part.changed_bytes.saturating_add(page);
    }
    parts.push(part);
    parts
}
