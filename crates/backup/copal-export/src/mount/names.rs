//! Names in a mount: `VM/TIME-ID/DISK.raw`.
//!
//! Pure: from a list of snapshots to directories. Characters that a file name cannot have are replaced. If
//! two VMs have the same name, the second gets a part of its UUID.

use copal_backup::{Snapshot, SnapshotId};
use std::collections::{BTreeMap, HashSet};

/// Longest file name, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// A VM and its snapshots.
#[derive(Debug)]
pub(super) struct VmDirectory {
    pub(super) vm: [u8; 16],
    pub(super) name: String,
    pub(super) snapshots: Vec<SnapshotDirectory>,
}

/// A snapshot and its disks.
#[derive(Debug)]
pub(super) struct SnapshotDirectory {
    pub(super) id: SnapshotId,
    pub(super) name: String,
    pub(super) created_ms: u64,
    pub(super) disks: Vec<DiskFile>,
}

/// A disk; disks are in the order of the snapshot.
#[derive(Debug)]
pub(super) struct DiskFile {
    pub(super) name: String,
    pub(super) size_bytes: u64,
}

/// The directories of these snapshots, without those whose manifest is damaged.
pub(super) fn directories(snapshots: &[Snapshot]) -> Vec<VmDirectory> {
    let mut vms: BTreeMap<[u8; 16], VmDirectory> = BTreeMap::new();
    for snapshot in snapshots.iter().filter(|snapshot| snapshot.damage.is_none()) {
        let uuid = *snapshot.vm.uuid.as_bytes();
        let directory = vms.entry(uuid).or_insert_with(|| VmDirectory {
            vm: uuid,
            name: file_name(&snapshot.vm.name, ""),
            snapshots: Vec::new(),
        });
        directory.snapshots.push(SnapshotDirectory {
            id: snapshot.id,
            name: format!("{}-{}", time(snapshot.created_ms), snapshot.id.short()),
            created_ms: snapshot.created_ms,
            disks: disks(snapshot),
        });
    }
    let mut vms: Vec<VmDirectory> = vms.into_values().collect();
    let mut taken = HashSet::new();
    for vm in &mut vms {
        if !taken.insert(vm.name.clone()) {
            let number: String = vm.vm[..4].iter().map(|byte| format!("{byte:02x}")).collect();
            vm.name = file_name(&vm.name, &format!("-{number}"));
            taken.insert(vm.name.clone());
        }
    }
    vms
}

fn disks(snapshot: &Snapshot) -> Vec<DiskFile> {
    let mut taken = HashSet::new();
    let disk = |(disk, at): (&copal_backup::SnapshotDisk, usize)| {
        let mut name = file_name(&disk.name, ".raw");
        if !taken.insert(name.clone()) {
            name = file_name(&disk.name, &format!("-{at}.raw"));
        }
        DiskFile { name, size_bytes: disk.size_bytes }
    };
    snapshot.disks.iter().zip(0..).map(disk).collect()
}

/// A valid file name: forbidden characters become `_`, and the name is cut to leave room for `suffix`.
fn file_name(name: &str, suffix: &str) -> String {
    let mut fit: String = name.chars().map(|c| if c == '/' || c.is_control() { '_' } else { c }).collect();
    if suffix.is_empty() && matches!(&*fit, "" | "." | "..") {
        fit.push('_');
    }
    while fit.len() + suffix.len() > MAX_NAME_BYTES {
        fit.pop();
    }
    fit + suffix
}

/// A time in UTC without colons, since some programs take a colon as the end of a host name.
fn time(created_ms: u64) -> String {
    let stamp = i64::try_from(created_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    stamp.map_or_else(|| "unknown".to_owned(), |stamp| stamp.strftime("%Y-%m-%dT%H-%M-%SZ").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_becomes_a_valid_file_name() {
        for (name, suffix, want) in
            [("web", "", "web"), ("a/b\0c\n", ".raw", "a_b_c_.raw"), ("..", "", ".._"), ("", ".raw", ".raw")]
        {
            assert_eq!(file_name(name, suffix), want);
        }
        let long = file_name(&"ä".repeat(200), ".raw");
        assert!(long.len() <= MAX_NAME_BYTES && long.ends_with("ä.raw"), "{long}");
        assert_eq!(time(1_793_645_112_345), "2026-11-02T18-45-12Z");
        assert_eq!(time(u64::MAX), "unknown");
    }
}
