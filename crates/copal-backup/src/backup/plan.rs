//! How each disk will be read: incrementally, by rescan, or in full, and why.
//!
//! Falling back is automatic and said, never a failed backup, unless the caller asked for that.

use super::changes::Changes;
use super::reader::DiskPlan;
use crate::error::{Error, Result};
use crate::manifest::Manifest;
use crate::recipe::{Ref, Root};
use crate::request::{BackupRequest, DiskMode, DiskSource, DiskSummary, SnapshotId};
use crate::tree::TreeReader;
use crate::vault::Vault;
use uuid::Uuid;

/// The plan of one disk.
pub(crate) struct Planned {
    pub(crate) plan: DiskPlan,
    pub(crate) base_root: Option<(Ref, Root)>,
    pub(crate) mode: DiskMode,
    pub(crate) reason: String,
}

impl Planned {
    pub(crate) fn summary(&self, name: &str, size_bytes: u64) -> DiskSummary {
        DiskSummary {
            name: name.to_owned(),
            size_bytes,
            mode: self.mode,
            reason: self.reason.clone(),
        }
    }
}

/// Plans all disks of a request. `base` is the newest snapshot of the VM.
/// # Errors
/// `FellBack` under `strict_incremental`; those of the store.
pub(crate) fn plan(
    vault: &Vault,
    request: &BackupRequest,
    vm: Uuid,
    base: Option<&Manifest>,
) -> Result<Vec<Planned>> {
    let mut tree = TreeReader::new(vault, vm)?;
    let mut planned = Vec::with_capacity(request.disks.len());
    for disk in &request.disks {
        let plan = plan_disk(&mut tree, request, disk, base)?;
        if request.strict_incremental && plan.mode != DiskMode::Incremental {
            return Err(Error::FellBack {
                disk: disk.name.clone(),
                reason: plan.reason,
            });
        }
        planned.push(plan);
    }
    Ok(planned)
}

fn plan_disk(
    tree: &mut TreeReader<'_>,
    request: &BackupRequest,
    disk: &DiskSource,
    base: Option<&Manifest>,
) -> Result<Planned> {
    let full = |reason: &str| Planned {
        plan: DiskPlan {
            base: None,
            changes: None,
        },
        base_root: None,
        mode: DiskMode::Full,
        reason: reason.to_owned(),
    };
    if request.full {
        return Ok(full("a full backup was asked for"));
    }
    let Some(base) = base else {
        return Ok(full("the VM has no snapshot yet"));
    };
    let Some(old) = base.disks.iter().find(|old| old.name == disk.name) else {
        return Ok(full("the base snapshot has no disk of this name"));
    };
    let root = match tree.root(&old.root, old.size_bytes) {
        Ok(root) => root,
        Err(error) if error.is_corruption() => {
            return Ok(full(&format!("the base snapshot cannot be used: {error}")));
        }
        Err(error) => return Err(error),
    };
    let (mode, reason, changes) = match refusal(disk, old.size_bytes, base.snapshot) {
        None => (
            DiskMode::Incremental,
            String::new(),
            disk.changed.as_ref().map(Changes::new),
        ),
        Some(reason) => (DiskMode::Rescan, reason, None),
    };
    let base_root = Some((old.root, root.clone()));
    Ok(Planned {
        plan: DiskPlan {
            base: Some((root, old.data_bytes)),
            changes,
        },
        base_root,
        mode,
        reason,
    })
}

/// Why the changed extents of a disk cannot be used with this base; `None`: they can.
fn refusal(disk: &DiskSource, base_bytes: u64, base: SnapshotId) -> Option<String> {
    let Some(changed) = &disk.changed else {
        return Some("no changed extents were given".into());
    };
    let Some(size) = disk.source.size_bytes() else {
        return Some("a stream has to be read as a whole".into());
    };
    if changed.size_bytes != size {
        return Some(format!(
            "the changed extents are of a disk of {} bytes, this one has {size}",
            changed.size_bytes
        ));
    }
    if base_bytes != size {
        return Some(format!(
            "the disk had {base_bytes} bytes in the base snapshot, it has {size} now"
        ));
    }
    let wanted = changed.base.as_ref()?.to_ascii_lowercase();
    let fits = !wanted.is_empty() && base.to_string().starts_with(&wanted);
    (!fits).then(|| {
        format!(
            "the changed extents are relative to {wanted}, the newest snapshot is {}",
            base.short()
        )
    })
}
