//! Plans how each disk is read: incrementally, by rescan, or in full, with the reason.
//!
//! A backup falls back automatically and reports it. It fails only if the caller forbids falling back.
//!
//! Blocks that a list of changes leaves out are taken from the base unread. So it must be proven that the
//! list begins at the base, or before: either its maker names the snapshot, or the base names the dirty
//! bitmap that recorded all later writes. A list that only claims to begin at the last backup is wrong as
//! soon as a backup has failed.

use super::base::BaseSnapshot;
use super::changes::ChangedBlocks;
use super::gate;
use super::reader::DiskPlan;
use super::spot_check::{self, SpotCheck, SpotCheckResult};
use crate::keys::random;
use crate::packs::pack_store::PackStore;
use crate::request::error::{Error, Result};
use crate::request::progress::CancelFlag;
use crate::request::{BackupRequest, DiskMode, DiskSource, DiskSummary, MIN_DIGITS, SnapshotId};
use crate::snapshot::manifest::ManifestDisk;
use crate::snapshot::recipe::{DiskRoot, FrameRef};
use crate::snapshot::tree::TreeReader;
use copal_disk::doubt::DiskDoubt;
use copal_disk::source::ChangedExtents;
use std::time::Duration;
use uuid::Uuid;

/// Factor of the spot check's size where a dirty bitmap lists the changes.
const BITMAP_FACTOR: u32 = 5;

/// The plan of one disk.
pub(crate) struct PlannedDisk {
    pub(crate) plan: DiskPlan,
    pub(crate) base_root: Option<(FrameRef, DiskRoot)>,
    pub(crate) mode: DiskMode,
    pub(crate) reason: String,
    pub(crate) checked: SpotCheckResult,
    /// When the whole disk was last read; see the manifest.
    pub(crate) whole_ms: u64,
    /// Doubts about the disk.
    pub(crate) doubts: Vec<DiskDoubt>,
}

impl PlannedDisk {
    pub(crate) fn summary(&self, disk: &DiskSource, size_bytes: u64) -> DiskSummary {
        DiskSummary {
            name: disk.name.clone(),
            size_bytes,
            mode: self.mode,
            reason: self.reason.clone(),
            bitmap: disk.starts.as_ref().map(|bitmap| bitmap.name.clone()),
        }
    }

    /// The warning about the spot check of a disk.
    pub(crate) fn warning(&self, disk: &DiskSource) -> Option<String> {
        let at = self.checked.difference?;
        Some(format!(
            "disk {}: its bytes at {at} differ from the last snapshot, and its changed extents leave them out; the whole disk was \
             read, earlier incremental snapshots may be wrong as well: check the tool that makes the list, and see with `copal \
             verify` and a restore whether those are needed",
            disk.name
        ))
    }
}

/// Plans all disks of a request.
/// # Errors
/// `FellBack` under `strict_incremental`; errors of the store, and of a source in the spot check.
pub(crate) fn plan(
    pack_store: &PackStore,
    request: &BackupRequest,
    vm: Uuid,
    base: Option<&BaseSnapshot>,
    cancel: &CancelFlag,
) -> Result<Vec<PlannedDisk>> {
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

/// Compares a sample of the blocks that an incremental backup would not read. If they differ, the whole disk
/// is scanned.
fn spot_check(
    pack_store: &PackStore,
    tree: &mut TreeReader<'_>,
    request: &BackupRequest,
    disk: &DiskSource,
    plan: &mut PlannedDisk,
    cancel: &CancelFlag,
) -> Result<()> {
    let DiskPlan { base: Some((base, data_bytes)), changes: Some(changes) } = &plan.plan else {
        return Ok(());
    };
    let is_told_by_bitmap = disk.changed.as_ref().is_some_and(|changed| changed.bitmap.is_some());
    let (millionths, least_bytes) = match request.spot_check_millionths {
        Some(0) => return Ok(()),
        Some(millionths) => (millionths, spot_check::LEAST_BYTES),
        None if is_told_by_bitmap => {
            (BITMAP_FACTOR * BackupRequest::DEFAULT_SPOT_CHECK_MILLIONTHS, spot_check::LEAST_BYTES_OF_BITMAP)
        }
        None => (BackupRequest::DEFAULT_SPOT_CHECK_MILLIONTHS, spot_check::LEAST_BYTES),
    };
    let spots = SpotCheck { disk, base, changes, ids: &pack_store.keys.id, cancel };
    let share = u128::from(*data_bytes) * u128::from(millionths) / 1_000_000;
    let wanted = match millionths {
        // Beyond the base's data: a hole of the base may have data now.
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
    base: Option<&BaseSnapshot>,
    now_ms: u64,
) -> Result<PlannedDisk> {
    let full = |reason: &str| PlannedDisk {
        plan: DiskPlan { base: None, changes: None },
        base_root: None,
        mode: DiskMode::Full,
        reason: reason.to_owned(),
        checked: SpotCheckResult::default(),
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
        Ok(changed) => (DiskMode::Incremental, String::new(), Some(ChangedBlocks::new(changed))),
        Err(reason) => (DiskMode::Rescan, reason, None),
    };
    let base_root = Some((old.root, root.clone()));
    Ok(PlannedDisk {
        plan: DiskPlan { base: Some((root, old.data_bytes)), changes },
        base_root,
        mode,
        reason,
        checked: SpotCheckResult::default(),
        whole_ms: old.whole_ms,
        doubts: Vec::new(),
    })
}

/// The changed extents of a disk, if they are proven to begin at this base; otherwise the reason.
fn usable<'a>(disk: &'a DiskSource, old: &ManifestDisk, base: &BaseSnapshot) -> Usable<&'a ChangedExtents> {
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

/// Checks that the list, the disk and the disk of the base snapshot have the same size and serial.
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

/// Checks that the bitmap is on the disk that it was on at the base: another disk may have a bitmap of the
/// same name.
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

/// Checks that the whole disk was read recently enough, if the request asks for that.
fn is_recent(full_every: Option<Duration>, whole_ms: u64, now_ms: u64) -> Usable<()> {
    let Some(full_every) = full_every else {
        return Ok(());
    };
    match now_ms.checked_sub(whole_ms) {
        Some(age_ms) if whole_ms > 0 && u128::from(age_ms) < full_every.as_millis() => Ok(()),
        Some(age_ms) if whole_ms > 0 => {
            Err(format!("it was last read as a whole {} hours ago (--full-every)", age_ms / 3_600_000))
        }
        _ => Err("it is not recorded when it was last read as a whole (--full-every)".into()),
    }
}

/// Checks that the list begins at `newest`, or before: by the snapshot that it names, and by the bitmap that
/// it comes from.
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
