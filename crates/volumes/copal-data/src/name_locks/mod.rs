//! Who may touch which name and volume right now.
//!
//! A create looks whether its name is free and then writes; two creators of one name must not do
//! that at the same time. Names are reserved for as long as one operation takes, without a
//! lock across the engine's flush: operations on different names run side by side, and the engine
//! commits them in one group.
//!
//! Invariants
//! - A name is reserved by at most one operation; whoever wants several takes them in one order,
//!   so reservations cannot wait in a circle.
//! - While a volume is closed nobody is inside it, and nobody enters.
//! - What is remembered of a volume is dropped with it; an entry loaded while any volume was
//!   being removed is not kept.
//!
//! Not here: what is written (`local`), the rows (`format`).

use crate::format::VolumeRow;
use copal_volume::{VolumeError, VolumeId};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Idle volumes remembered before some are forgotten (about 200 B each).
const REMEMBERED_VOLUMES: usize = 4096;

/// Reservations of names and volumes.
#[derive(Default)]
pub(crate) struct NameLocks {
    state: Mutex<Reservations>,
    changed: Condvar,
}

#[derive(Default)]
struct Reservations {
    names: HashSet<Vec<u8>>,
    volumes: HashMap<VolumeId, Entry>,
    /// Raised by every removal.
    removals: u64,
}

struct Entry {
    row: Arc<VolumeRow>,
    /// Operations inside the volume.
    users: u32,
    /// Somebody wants the volume for themselves.
    closed: bool,
    /// Bytes of live files and of creates under way; known for volumes with a quota.
    used_bytes: Option<u64>,
}

/// Reads a volume's row and, if it has a quota, counts the bytes of its files.
pub(crate) trait Load {
    /// The row; `None` for a volume that is gone or going.
    fn row(&self, vid: VolumeId) -> Result<Option<VolumeRow>, VolumeError>;
    /// Sum of the sizes of the live files.
    fn used_bytes(&self, vid: VolumeId) -> Result<u64, VolumeError>;
}

/// An operation inside a volume; leaves on drop.
pub(crate) struct Inside<'a> {
    locks: &'a NameLocks,
    vid: VolumeId,
}

/// The volume is closed; opens on drop unless it was removed.
pub(crate) struct Closed<'a> {
    locks: &'a NameLocks,
    vid: VolumeId,
}

/// Reserved names; free on drop.
pub(crate) struct Names<'a> {
    locks: &'a NameLocks,
    keys: Vec<Vec<u8>>,
}

impl NameLocks {
    /// Enters a volume: it stays until the answer is dropped. Waits while it is closed.
    pub(crate) fn enter(&self, vid: VolumeId, load: &dyn Load) -> Result<Inside<'_>, VolumeError> {
        loop {
            let removals = {
                let mut state = self.state.lock();
                while state.volumes.get(&vid).is_some_and(|entry| entry.closed) {
                    self.changed.wait(&mut state);
                }
                if let Some(entry) = state.volumes.get_mut(&vid) {
                    entry.users += 1;
                    return Ok(Inside { locks: self, vid });
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
            let entry = Entry {
                row,
                users: 0,
                // Bytes are counted while nobody is inside.
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

    fn count(&self, vid: VolumeId, load: &dyn Load) -> Result<(), VolumeError> {
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

    /// Closes a volume that exists: waits until nobody is inside.
    pub(crate) fn close(&self, vid: VolumeId, load: &dyn Load) -> Result<Closed<'_>, VolumeError> {
        drop(self.enter(vid, load)?);
        let mut state = self.state.lock();
        loop {
            match state.volumes.get_mut(&vid) {
                // Forgotten or removed since: look again.
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
        Ok(Closed { locks: self, vid })
    }

    /// Reserves the rows of these names, waiting for whoever holds them. Keys may repeat.
    pub(crate) fn reserve(&self, mut keys: Vec<Vec<u8>>) -> Names<'_> {
        keys.sort_unstable();
        keys.dedup();
        let mut state = self.state.lock();
        for key in &keys {
            while state.names.contains(key) {
                self.changed.wait(&mut state);
            }
            state.names.insert(key.clone());
        }
        Names { locks: self, keys }
    }

    /// Whether the volume is known to be there, without asking the engine.
    pub(crate) fn remembers(&self, vid: VolumeId) -> bool {
        let state = self.state.lock();
        state.volumes.get(&vid).is_some_and(|entry| !entry.closed)
    }
}

impl Reservations {
    fn forget_some(&mut self) {
        if self.volumes.len() >= REMEMBERED_VOLUMES {
            self.volumes.retain(|_, entry| entry.users > 0 || entry.closed);
        }
    }
}

impl Inside<'_> {
    /// Takes `bytes` of the volume's quota, if it has one; give them back with
    /// [`give_back`](Inside::give_back) when the create fails or the file is deleted.
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

    /// Gives bytes of the quota back.
    pub(crate) fn give_back(&self, bytes: u64) {
        let mut state = self.locks.state.lock();
        if let Some(entry) = state.volumes.get_mut(&self.vid) {
            entry.used_bytes = entry.used_bytes.map(|used| used.saturating_sub(bytes));
        }
    }
}

impl Drop for Inside<'_> {
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

impl Closed<'_> {
    /// The volume is gone for good: whoever waits will look and not find it.
    pub(crate) fn removed(self) {
        let mut state = self.locks.state.lock();
        state.removals += 1;
        state.volumes.remove(&self.vid);
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let mut state = self.locks.state.lock();
        if let Some(entry) = state.volumes.get_mut(&self.vid) {
            entry.closed = false;
        }
        self.locks.changed.notify_all();
    }
}

impl Drop for Names<'_> {
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
