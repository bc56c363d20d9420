//! Locks of names and volumes in the embedded store.
//!
//! A create checks that its name is free and then writes; two creates of one name must not do so at the same
//! time. A name is reserved for the time of one operation, and no lock is held across the engine's flush.
//! Operations on different names therefore run in parallel, and the engine commits them in one group.
//!
//! Invariants
//! - A name is reserved by at most one operation. An operation with several names reserves them in ascending
//!   order, so reservations cannot deadlock.
//! - While a volume is locked exclusively, no operation is inside it and none enters.
//! - The cached entry of a volume is dropped with the volume. An entry that was loaded during the removal of
//!   any volume is not cached.
//!
//! Not here: the written rows (`local`), their format (`format`).

use crate::format::VolumeRow;
use copal_volume::{VolumeError, VolumeId};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Number of cached idle volumes above which all of them are dropped (about 200 B each).
const REMEMBERED_VOLUMES: usize = 4096;

/// Locks of names and volumes.
#[derive(Default)]
pub(crate) struct NameLocks {
    state: Mutex<NameReservations>,
    changed: Condvar,
}

#[derive(Default)]
struct NameReservations {
    names: HashSet<Vec<u8>>,
    volumes: HashMap<VolumeId, VolumeEntry>,
    /// Number of removals so far.
    removals: u64,
}

struct VolumeEntry {
    row: Arc<VolumeRow>,
    /// Number of operations inside the volume.
    users: u32,
    /// An operation has the volume exclusively, or waits for that.
    closed: bool,
    /// Bytes of live files and of creates under way; known for volumes with a quota.
    used_bytes: Option<u64>,
}

/// Reads a volume's row and, if it has a quota, counts the bytes of its files.
pub(crate) trait VolumeLoader {
    /// The row; `None`: the volume does not exist or is being removed.
    fn row(&self, vid: VolumeId) -> Result<Option<VolumeRow>, VolumeError>;
    /// Sum of the sizes of the live files.
    fn used_bytes(&self, vid: VolumeId) -> Result<u64, VolumeError>;
}

/// Access of one operation to a volume; ends on drop.
pub(crate) struct VolumeAccess<'a> {
    locks: &'a NameLocks,
    vid: VolumeId,
}

/// Exclusive access to a volume; ends on drop, or with the volume's removal.
pub(crate) struct ExclusiveVolume<'a> {
    locks: &'a NameLocks,
    vid: VolumeId,
}

/// Reserved names; released on drop.
pub(crate) struct ReservedNames<'a> {
    locks: &'a NameLocks,
    keys: Vec<Vec<u8>>,
}

impl NameLocks {
    /// Enters a volume: it exists until the result is dropped. Blocks while it is locked exclusively.
    pub(crate) fn enter(
        &self,
        vid: VolumeId,
        load: &dyn VolumeLoader,
    ) -> Result<VolumeAccess<'_>, VolumeError> {
        loop {
            let removals = {
                let mut state = self.state.lock();
                while state.volumes.get(&vid).is_some_and(|entry| entry.closed) {
                    self.changed.wait(&mut state);
                }
                if let Some(entry) = state.volumes.get_mut(&vid) {
                    entry.users += 1;
                    return Ok(VolumeAccess { locks: self, vid });
                }
                state.removals
            };
            let row = Arc::new(load.row(vid)?.ok_or(VolumeError::VolumeGone)?);
            let has_quota = row.quota_bytes.is_some();
            let mut state = self.state.lock();
            if state.removals != removals || state.volumes.contains_key(&vid) {
                continue;
            }
            state.forget_some();
            let entry = VolumeEntry {
                row,
                users: 0,
                // Bytes are counted while no operation is inside.
                closed: has_quota,
                used_bytes: None,
            };
            state.volumes.insert(vid, entry);
            drop(state);
            if has_quota {
                self.count(vid, load)?;
            }
        }
    }

    fn count(&self, vid: VolumeId, load: &dyn VolumeLoader) -> Result<(), VolumeError> {
        let used_bytes = load.used_bytes(vid);
        let mut state = self.state.lock();
        match used_bytes {
            Ok(used) => {
                if let Some(entry) = state.volumes.get_mut(&vid) {
                    entry.used_bytes = Some(used);
                    entry.closed = false;
                }
                self.changed.notify_all();
                Ok(())
            }
            Err(error) => {
                state.volumes.remove(&vid);
                self.changed.notify_all();
                Err(error)
            }
        }
    }

    /// Locks an existing volume exclusively. Blocks until no operation is inside.
    pub(crate) fn close(
        &self,
        vid: VolumeId,
        load: &dyn VolumeLoader,
    ) -> Result<ExclusiveVolume<'_>, VolumeError> {
        drop(self.enter(vid, load)?);
        let mut state = self.state.lock();
        loop {
            match state.volumes.get_mut(&vid) {
                // Dropped or removed since: look again.
                None => {
                    drop(state);
                    return self.close(vid, load);
                }
                Some(entry) if entry.closed => self.changed.wait(&mut state),
                Some(entry) => {
                    entry.closed = true;
                    break;
                }
            }
        }
        while state.volumes.get(&vid).is_some_and(|entry| entry.users > 0) {
            self.changed.wait(&mut state);
        }
        Ok(ExclusiveVolume { locks: self, vid })
    }

    /// Reserves these names. Blocks while other operations hold any of them. Keys may repeat.
    pub(crate) fn reserve(&self, mut keys: Vec<Vec<u8>>) -> ReservedNames<'_> {
        keys.sort_unstable();
        keys.dedup();
        let mut state = self.state.lock();
        for key in &keys {
            while state.names.contains(key) {
                self.changed.wait(&mut state);
            }
            state.names.insert(key.clone());
        }
        ReservedNames { locks: self, keys }
    }

    /// Whether the volume is known to exist, without asking the engine.
    pub(crate) fn remembers(&self, vid: VolumeId) -> bool {
        let state = self.state.lock();
        state.volumes.get(&vid).is_some_and(|entry| !entry.closed)
    }
}

impl NameReservations {
    fn forget_some(&mut self) {
        if self.volumes.len() >= REMEMBERED_VOLUMES {
            self.volumes.retain(|_, entry| entry.users > 0 || entry.closed);
        }
    }
}

impl VolumeAccess<'_> {
    /// Takes `bytes` of the volume's quota, if it has one. The caller returns them with
    /// [`give_back`](VolumeAccess::give_back) when the create fails or the file is deleted.
    pub(crate) fn take(&self, bytes: u64) -> Result<(), VolumeError> {
        self.quota(bytes, true)
    }

    /// Whether `bytes` more would fit now.
    pub(crate) fn would_fit(&self, bytes: u64) -> Result<(), VolumeError> {
        self.quota(bytes, false)
    }

    fn quota(&self, wanted: u64, take: bool) -> Result<(), VolumeError> {
        let mut state = self.locks.state.lock();
        let Some(entry) = state.volumes.get_mut(&self.vid) else {
            return Err(VolumeError::VolumeGone);
        };
        let (Some(quota), Some(used)) = (entry.row.quota_bytes, entry.used_bytes) else {
            return Ok(());
        };
        let after = used.saturating_add(wanted);
        if after > quota {
            return Err(VolumeError::QuotaExceeded { quota, used, wanted });
        }
        if take {
            entry.used_bytes = Some(after);
        }
        Ok(())
    }

    /// Returns bytes to the quota.
    pub(crate) fn give_back(&self, bytes: u64) {
        let mut state = self.locks.state.lock();
        if let Some(entry) = state.volumes.get_mut(&self.vid) {
            entry.used_bytes = entry.used_bytes.map(|used| used.saturating_sub(bytes));
        }
    }
}

impl Drop for VolumeAccess<'_> {
    fn drop(&mut self) {
        let mut state = self.locks.state.lock();
        if let Some(entry) = state.volumes.get_mut(&self.vid) {
            entry.users -= 1;
            if entry.users == 0 && entry.closed {
                self.locks.changed.notify_all();
            }
        }
    }
}

impl ExclusiveVolume<'_> {
    /// Records the removal of the volume: waiting operations look again and find that it is gone.
    pub(crate) fn removed(self) {
        let mut state = self.locks.state.lock();
        state.removals += 1;
        state.volumes.remove(&self.vid);
    }
}

impl Drop for ExclusiveVolume<'_> {
    fn drop(&mut self) {
        let mut state = self.locks.state.lock();
        if let Some(entry) = state.volumes.get_mut(&self.vid) {
            entry.closed = false;
        }
        self.locks.changed.notify_all();
    }
}

impl Drop for ReservedNames<'_> {
    fn drop(&mut self) {
        let mut state = self.locks.state.lock();
        for key in &self.keys {
            state.names.remove(key);
        }
        self.locks.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
