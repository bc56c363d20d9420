//! How each disk will be read: incrementally, by rescan, or in full, and why.
//!
//! Falling back is automatic and said, never a failed backup, unless the caller asked for that.
//!
//! What a list of changes leaves out is taken from the base unread, so somebody must vouch that the list
//! begins there, or before: whoever made it by naming the snapshot, or the base itself by naming the dirty
//! bitmap that recorded what came after it. A list that only claims to be of the last backup is of another
//! one as soon as one failed.

use super::base::Base;
use super::changes::Changes;
use super::gate;
use super::reader::DiskPlan;
use super::spot::{self, Checked, Spots};
use crate::keys::random;
use crate::packs::pack_store::PackStore;
use crate::request::error::{Error, Result};
use crate::request::progress::CancelFlag;
use crate::request::{BackupRequest, DiskMode, DiskSource, DiskSummary, MIN_DIGITS, SnapshotId};
use crate::snapshot::manifest::ManifestDisk;
use crate::snapshot::recipe::{Ref, Root};
use crate::snapshot::tree::TreeReader;
use copal_disk::doubt::DiskDoubt;
use copal_disk::source::ChangedExtents;
use std::time::Duration;
use uuid::Uuid;

/// How much more is compared where a dirty bitmap tells what changed.
const BITMAP_FACTOR: u32 = 5;

/// The plan of one disk.
pub(crate) struct Planned {
    pub(crate) plan: DiskPlan,
    pub(crate) base_root: Option<(Ref, Root)>,
    pub(crate) mode: DiskMode,
    pub(crate) reason: String,
    pub(crate) checked: Checked,
    /// When the disk was read as a whole, this time or before; see the manifest.
    pub(crate) whole_ms: u64,
    /// What stands against the disk.
    pub(crate) doubts: Vec<DiskDoubt>,
}

impl Planned {
    pub(crate) fn summary(&self, disk: &DiskSource, size_bytes: u64) -> DiskSummary {
        DiskSummary {
            name: disk.name.clone(),
            size_bytes,
            mode: self.mode,
            reason: self.reason.clone(),
            bitmap: disk.starts.as_ref().map(|bitmap| bitmap.name.clone()),
        }
    }

    /// What a person should know of how a disk was planned.
    pub(crate) fn warning(&self, disk: &DiskSource) -> Option<String> {
        let at = self.checked.difference?;
        Some(format!(
            "disk {}: its bytes at {at} differ from the last snapshot, and its changed extents leave them out; all of it was \
             read, earlier incremental snapshots may be wrong as well: look at what makes the list, and see with `copal \
             verify` and a restore whether those are needed",
            disk.name
        ))
    }
}

/// Plans all disks of a request.
/// # Errors
/// `FellBack` under `strict_incremental`; those of the store, and of a source that is spot-checked.
pub(crate) fn plan(
    pack_store: &PackStore,
    request: &BackupRequest,
    vm: Uuid,
    base: Option<&Base>,
    cancel: &CancelFlag,
) -> Result<Vec<Planned>> {
    let mut tree = TreeReader::new(pack_store, vm)?;
    let now_ms = pack_store.volumes.store.now_ms();
    let mut planned = Vec::with_capacity(request.disks.len());
    for disk in &request.disks {
        let doubts = gate::before(request, disk, base)?;
        let mut plan = plan_disk(&mut tree, request, disk, base, now_ms)?;
        plan.doubts = doubts;
        spot_check(pack_store, &mut tree, request, disk, &mut plan, cancel)?;
        if plan.mode != DiskMode::Incremental {
            plan.whole_ms = now_ms;
        }
        if request.strict_incremental && plan.mode != DiskMode::Incremental {
            return Err(Error::FellBack { disk: disk.name.clone(), reason: plan.reason });
        }
        planned.push(plan);
    }
    Ok(planned)
}

/// Compares some of what an incremental disk would leave unread; a difference makes it be read as a whole.
fn spot_check(
    pack_store: &PackStore,
    tree: &mut TreeReader<'_>,
    request: &BackupRequest,
    disk: &DiskSource,
    plan: &mut Planned,
    cancel: &CancelFlag,
) -> Result<()> {
    let DiskPlan { base: Some((base, data_bytes)), changes: Some(changes) } = &plan.plan else {
        return Ok(());
    };
    let is_told_by_bitmap = disk.changed.as_ref().is_some_and(|changed| changed.bitmap.is_some());
    let (millionths, least_bytes) = match request.spot_check_millionths {
        Some(0) => return Ok(()),
        Some(millionths) => (millionths, spot::LEAST_BYTES),
        None if is_told_by_bitmap => {
            (BITMAP_FACTOR * BackupRequest::DEFAULT_SPOT_CHECK_MILLIONTHS, spot::LEAST_BYTES_OF_BITMAP)
        }
        None => (BackupRequest::DEFAULT_SPOT_CHECK_MILLIONTHS, spot::LEAST_BYTES),
    };
    let spots = Spots { disk, base, changes, ids: &pack_store.keys.id, cancel };
    let share = u128::from(*data_bytes) * u128::from(millionths) / 1_000_000;
    let wanted = match millionths {
        // More than the base has data: what was a hole in it may have some now.
        1_000_000.. => u64::MAX,
        _ => (share as u64).max(least_bytes),
    };
    plan.checked = spots.check(tree, wanted, u64::from_le_bytes(random()?))?;
    if let Some(at) = plan.checked.difference {
        plan.mode = DiskMode::Rescan;
        plan.reason = format!(
            "a spot check found other bytes at {at} than the base has, which the changed extents leave out"
        );
        plan.plan.changes = None;
    }
    Ok(())
}

fn plan_disk(
    tree: &mut TreeReader<'_>,
    request: &BackupRequest,
    disk: &DiskSource,
    base: Option<&Base>,
    now_ms: u64,
) -> Result<Planned> {
    let full = |reason: &str| Planned {
        plan: DiskPlan { base: None, changes: None },
        base_root: None,
        mode: DiskMode::Full,
        reason: reason.to_owned(),
        checked: Checked::default(),
        whole_ms: now_ms,
        doubts: Vec::new(),
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
    let believed = usable(disk, old, base).and_then(|changed| {
        is_recent(request.full_every, old.whole_ms, now_ms)?;
        Ok(changed)
    });
    let (mode, reason, changes) = match believed {
        Ok(changed) => (DiskMode::Incremental, String::new(), Some(Changes::new(changed))),
        Err(reason) => (DiskMode::Rescan, reason, None),
    };
    let base_root = Some((old.root, root.clone()));
    Ok(Planned {
        plan: DiskPlan { base: Some((root, old.data_bytes)), changes },
        base_root,
        mode,
        reason,
        checked: Checked::default(),
        whole_ms: old.whole_ms,
        doubts: Vec::new(),
    })
}

/// The changed extents of a disk, if all that they leave out is as it was in this base; otherwise why that is
/// not known.
fn usable<'a>(disk: &'a DiskSource, old: &ManifestDisk, base: &Base) -> Usable<&'a ChangedExtents> {
    let Some(changed) = &disk.changed else {
        let none = || "no changed extents were given".into();
        return Err(disk.no_changes.clone().unwrap_or_else(none));
    };
    is_same_disk(disk, changed, old)?;
    begins_at(changed, old, base.manifest.snapshot)?;
    if changed.bitmap.is_some() {
        lies_where_it_lay(disk, old)?;
    }
    Ok(changed)
}

type Usable<T> = std::result::Result<T, String>;

/// Whether the list, the disk and the one of the base snapshot are of the same size and serial.
fn is_same_disk(disk: &DiskSource, changed: &ChangedExtents, old: &ManifestDisk) -> Usable<()> {
    let Some(size) = disk.source.size_bytes() else {
        return Err("a stream has to be read as a whole".into());
    };
    if changed.size_bytes != size {
        return Err(format!(
            "the changed extents are of a disk of {} bytes, this one has {size}",
            changed.size_bytes
        ));
    }
    if old.size_bytes != size {
        return Err(format!("the disk had {} bytes in the base snapshot, it has {size} now", old.size_bytes));
    }
    if old.serial != disk.serial {
        return Err(format!(
            "the disk had the serial {:?} in the base snapshot, it has {:?} now",
            old.serial, disk.serial
        ));
    }
    Ok(())
}

/// Whether a bitmap is of the disk that it was of at the base: another one may have a bitmap of the same
/// name.
fn lies_where_it_lay(disk: &DiskSource, old: &ManifestDisk) -> Usable<()> {
    match &old.identity {
        None => Err(
            "the newest snapshot was made by an older copal, which did not note where its dirty bitmap lies; the next backup \
             can be incremental"
                .into(),
        ),
        Some(old) if old.is_empty() || disk.identity.is_empty() || *old == disk.identity => Ok(()),
        Some(old) => Err(format!(
            "the dirty bitmap lies on another disk than in the newest snapshot: on {}, and lay on {old}",
            disk.identity
        )),
    }
}

/// Whether a disk was read as a whole not long ago, where that is asked for.
fn is_recent(full_every: Option<Duration>, whole_ms: u64, now_ms: u64) -> Usable<()> {
    let Some(full_every) = full_every else {
        return Ok(());
    };
    match now_ms.checked_sub(whole_ms) {
        Some(age_ms) if whole_ms > 0 && u128::from(age_ms) < full_every.as_millis() => Ok(()),
        Some(age_ms) if whole_ms > 0 => {
            Err(format!("it was last read as a whole {} hours ago (--full-every)", age_ms / 3_600_000))
        }
        _ => Err("nobody noted when it was last read as a whole (--full-every)".into()),
    }
}

/// Whether the list begins at `newest`, or before: by its own word, and by what the bitmap it came from
/// recorded.
fn begins_at(changed: &ChangedExtents, old: &ManifestDisk, newest: SnapshotId) -> Usable<()> {
    match (&changed.base, &changed.bitmap) {
        (None, None) => {
            return Err(
                "the changed extents name no snapshot that they are relative to; give its id in the file, or with --base"
                    .into(),
            );
        }
        (Some(wanted), _) => {
            let wanted = wanted.to_ascii_lowercase();
            if wanted.len() < MIN_DIGITS || !newest.to_string().starts_with(&wanted) {
                return Err(format!(
                    "the changed extents are relative to {wanted}, the newest snapshot is {}",
                    newest.short()
                ));
            }
        }
        (None, Some(_)) => {}
    }
    if let Some(bitmap) = &changed.bitmap {
        let Some(started) = &old.bitmap else {
            return Err(format!(
                "the newest snapshot {} names no dirty bitmap that began with it (--starts-bitmap)",
                newest.short()
            ));
        };
        if started.name != bitmap.name {
            return Err(format!(
                "the dirty bitmap that began with the newest snapshot {} is {}, not {}",
                newest.short(),
                started.name,
                bitmap.name
            ));
        }
        if bitmap.dirty_bytes < started.dirty_bytes {
            return Err(format!(
                "the dirty bitmap {} names {} bytes, and named {} at the newest snapshot: it was cleared",
                bitmap.name, bitmap.dirty_bytes, started.dirty_bytes
            ));
        }
    }
    Ok(())
}
