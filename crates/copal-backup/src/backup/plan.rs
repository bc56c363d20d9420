//! How each disk will be read: incrementally, by rescan, or in full, and why.
//!
//! Falling back is automatic and said, never a failed backup, unless the caller asked for that.

use super::changes::Changes;
use super::reader::DiskPlan;
use crate::error::{Error, Result};
use crate::lookup::MIN_DIGITS;
use crate::manifest::Manifest;
use crate::recipe::{Ref, Root};
use crate::request::{BackupRequest, DiskMode, DiskSource, DiskSummary};
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

/// The snapshot a backup builds on.
pub(crate) struct Base {
    pub(crate) manifest: Manifest,
    /// No snapshot was published after it, not even one that is forgotten or cannot be read.
    pub(crate) is_last: bool,
}

/// Plans all disks of a request.
/// # Errors
/// `FellBack` under `strict_incremental`; those of the store.
pub(crate) fn plan(
    vault: &Vault,
    request: &BackupRequest,
    vm: Uuid,
    base: Option<&Base>,
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
    base: Option<&Base>,
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
    let Some(old) = base.manifest.disks.iter().find(|old| old.name == disk.name) else {
        return Ok(full("the base snapshot has no disk of this name"));
    };
    let root = match tree.root(&old.root, old.size_bytes) {
        Ok(root) => root,
        Err(error) if error.is_corruption() => {
            return Ok(full(&format!("the base snapshot cannot be used: {error}")));
        }
        Err(error) => return Err(error),
    };
    let (mode, reason, changes) = match refusal(disk, old.size_bytes, base) {
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
fn refusal(disk: &DiskSource, base_bytes: u64, base: &Base) -> Option<String> {
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
    let id = base.manifest.snapshot;
    let Some(wanted) = &changed.base else {
        // A list without a base speaks of the last backup. If that snapshot is gone, the list leaves out
        // what changed before it, and using it would lose those changes without a word.
        let gone =
            || "the last snapshot is forgotten or damaged, and the changed extents name no base".into();
        return (!base.is_last).then(gone);
    };
    let wanted = wanted.to_ascii_lowercase();
    let fits = wanted.len() >= MIN_DIGITS && id.to_string().starts_with(&wanted);
    (!fits).then(|| {
        format!(
            "the changed extents are relative to {wanted}, the newest snapshot is {}",
            id.short()
        )
    })
}
