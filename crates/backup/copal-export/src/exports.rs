//! NBD exports of one snapshot: each disk under its name in the VM.
//!
//! Besides `base:allocation` an export has a context `copal:diff:SNAPSHOT` for every other snapshot of the
//! VM: flag 1 marks bytes that may differ from that snapshot. The snapshot is named by its id or by a prefix.
//! The context compares snapshots and ignores overlays.

use crate::{CloseFlag, Overlay};
use copal_backup::{
    Error, SnapshotId,
    serve::{Lender, ServeCache, ServedDisk, serve},
};
use copal_nbd::{
    BASE_ALLOCATION, STATE_DIRTY, STATE_HOLE, STATE_ZERO,
    server::{DiskError, DiskExports, ExportDisk, StatusRun},
};
use parking_lot::Mutex;
use std::{collections::HashMap, sync::Arc};

/// Name prefix of metadata contexts that compare with another snapshot.
pub const DIFF_PREFIX: &str = "copal:diff:";
/// Shortest prefix of a snapshot id.
const MIN_DIGITS: usize = 4;

/// The disks of a snapshot.
pub struct SnapshotExports {
    disks: Vec<Arc<SnapshotDisk>>,
}

impl SnapshotExports {
    /// Exports `disks`; `others` are the other snapshots of the VM. A disk in `overlays` is writable.
    pub fn new(
        disks: Vec<Arc<ServedDisk>>,
        mut overlays: HashMap<String, Overlay>,
        others: &OtherSnapshots,
        close_flag: &CloseFlag,
    ) -> SnapshotExports {
        let disk = |disk: Arc<ServedDisk>| SnapshotDisk {
            overlay: overlays.remove(disk.name()),
            disk,
            others: others.clone(),
            close_flag: close_flag.clone(),
        };
        SnapshotExports { disks: disks.into_iter().map(disk).map(Arc::new).collect() }
    }

    /// Makes all writes of clients durable.
    /// # Errors
    /// Writes may be lost.
    pub fn flush(&self) -> Result<(), DiskError> {
        self.disks.iter().try_for_each(|disk| disk.flush())
    }
}

impl DiskExports for SnapshotExports {
    fn names(&self) -> Vec<String> {
        self.disks.iter().map(|disk| disk.disk.name().to_owned()).collect()
    }

    fn find(&self, name: &str) -> Option<Arc<dyn ExportDisk>> {
        let found = match (name, &self.disks[..]) {
            ("", [only]) => only,
            (name, disks) => disks.iter().find(|disk| disk.disk.name() == name)?,
        };
        Some(Arc::clone(found) as Arc<dyn ExportDisk>)
    }
}

/// The other snapshots of a VM, whose disks are opened on demand.
#[derive(Clone)]
pub struct OtherSnapshots {
    lender: Arc<dyn Lender>,
    cache: Arc<ServeCache>,
    ids: Arc<[SnapshotId]>,
    open: Arc<Mutex<HashMap<SnapshotId, Vec<Arc<ServedDisk>>>>>,
}

impl OtherSnapshots {
    /// Creates the list of snapshots to compare with.
    pub fn new(lender: &Arc<dyn Lender>, cache: &Arc<ServeCache>, ids: Vec<SnapshotId>) -> OtherSnapshots {
        OtherSnapshots {
            lender: Arc::clone(lender),
            cache: Arc::clone(cache),
            ids: ids.into(),
            open: Arc::default(),
        }
    }

    /// The snapshot with this id prefix, if it is unique.
    fn named(&self, digits: &str) -> Option<SnapshotId> {
        let is_meant = |id: &&SnapshotId| id.to_string().starts_with(digits);
        let mut found = self.ids.iter().filter(is_meant);
        match (digits.len() >= MIN_DIGITS, found.next(), found.next()) {
            (true, Some(id), None) => Some(*id),
            _ => None,
        }
    }

    /// The disk with this name in a snapshot; `None` if there is none.
    fn disk(&self, snapshot: SnapshotId, name: &str) -> Result<Option<Arc<ServedDisk>>, Error> {
        let mut open = self.open.lock();
        let disks = match open.get(&snapshot) {
            Some(disks) => disks,
            None => {
                let disks = serve(&self.lender, &self.cache, snapshot)?;
                open.entry(snapshot).or_insert(disks)
            }
        };
        Ok(disks.iter().find(|disk| disk.name() == name).cloned())
    }
}

/// One disk, optionally with an overlay.
struct SnapshotDisk {
    disk: Arc<ServedDisk>,
    overlay: Option<Overlay>,
    others: OtherSnapshots,
    close_flag: CloseFlag,
}

impl SnapshotDisk {
    fn check_open(&self) -> Result<(), DiskError> {
        match self.close_flag.is_closed() {
            true => Err(DiskError::Damaged),
            false => Ok(()),
        }
    }

    fn overlay(&self) -> Result<&Overlay, DiskError> {
        self.check_open()?;
        self.overlay.as_ref().ok_or(DiskError::ReadOnly)
    }

    fn below(&self, offset: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        self.disk.read_at(offset, buf).map_err(disk_error)
    }

    fn allocation(&self, offset: u64, len: u64) -> Result<StatusRun, DiskError> {
        let mut most = len;
        if let Some(overlay) = &self.overlay {
            let (written, length) = overlay.run_at(offset, len);
            if written {
                return Ok(StatusRun { len: length, flags: 0 });
            }
            most = length;
        }
        let run = self.disk.extent_at(offset).map_err(disk_error)?;
        Ok(StatusRun {
            len: run.length.min(most),
            flags: if run.is_so { STATE_HOLE | STATE_ZERO } else { 0 },
        })
    }

    fn differences(&self, digits: &str, offset: u64, len: u64) -> Result<StatusRun, DiskError> {
        let other = match self.others.named(digits) {
            Some(snapshot) => self.others.disk(snapshot, self.disk.name()).map_err(disk_error)?,
            None => None,
        };
        let Some(other) = other else {
            // A disk that the other snapshot lacks differs everywhere.
            return Ok(StatusRun { len, flags: STATE_DIRTY });
        };
        let run = self.disk.difference_at(&other, offset).map_err(disk_error)?;
        Ok(StatusRun { len: run.length.min(len), flags: if run.is_so { STATE_DIRTY } else { 0 } })
    }
}

/// Logs errors except damage, which was logged where it was found, and except cancellation.
fn disk_error(error: Error) -> DiskError {
    if !error.is_corruption() && !matches!(error, Error::Cancelled { .. }) {
        tracing::warn!(%error, "request of an NBD client failed");
    }
    DiskError::Damaged
}

impl ExportDisk for SnapshotDisk {
    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }

    fn is_writable(&self) -> bool {
        self.overlay.is_some()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        self.check_open()?;
        match &self.overlay {
            None => self.below(offset, buf),
            Some(overlay) => overlay.read_at(offset, buf, |offset, buf| self.below(offset, buf)),
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        self.overlay()?.write_at(offset, data, |offset, buf| self.below(offset, buf))
    }

    fn zero(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        self.overlay()?.zero(offset, len, |offset, buf| self.below(offset, buf))
    }

    fn flush(&self) -> Result<(), DiskError> {
        match &self.overlay {
            None => Ok(()),
            Some(overlay) => overlay.flush(),
        }
    }

    fn contexts(&self) -> Vec<String> {
        let ids = self.others.ids.iter();
        ids.map(|id| format!("{DIFF_PREFIX}{id}")).collect()
    }

    fn has_context(&self, name: &str) -> bool {
        name.strip_prefix(DIFF_PREFIX).is_some_and(|digits| self.others.named(digits).is_some())
    }

    fn run_at(&self, context: &str, offset: u64, len: u64) -> Result<StatusRun, DiskError> {
        self.check_open()?;
        match context.strip_prefix(DIFF_PREFIX) {
            Some(digits) => self.differences(digits, offset, len),
            None => {
                debug_assert_eq!(context, BASE_ALLOCATION);
                self.allocation(offset, len)
            }
        }
    }
}
