//! Locks that all handles of one repository in this process share: readers and removers of packs, VMs being
//! backed up, and a counter of pack changes.
//!
//! The store below keeps other processes out; within one process a repository can be opened several times.
//! Handles find each other by the domain, which is random and fixed at creation. So they meet even if the
//! store was opened in different ways. Copies of a repository meet too, which only costs them a wait.

use crate::request::Vm;
use crate::request::error::{Error, Result};
use crate::sessions::lease::heartbeat::HeartbeatThread;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use uuid::Uuid;

static REPOSITORIES: Mutex<Option<HashMap<Uuid, Weak<RepositoryLocks>>>> = Mutex::new(None);

/// The locks of one repository in this process.
pub(crate) struct RepositoryLocks {
    /// Shared by readers of packs, exclusive for removers of packs.
    packs_lock: RwLock<()>,
    /// VMs that are being backed up.
    writing: Mutex<HashSet<Uuid>>,
    /// Counts changes to the set of packs.
    changes: AtomicU64,
    /// Heartbeat of this process.
    heart: Arc<HeartbeatThread>,
}

impl RepositoryLocks {
    /// The locks of a domain, shared with its other handles.
    pub(crate) fn of(domain: Uuid) -> Arc<RepositoryLocks> {
        let mut repositories = REPOSITORIES.lock();
        let repositories = repositories.get_or_insert_default();
        if let Some(locks) = repositories.get(&domain).and_then(Weak::upgrade) {
            return locks;
        }
        repositories.retain(|_, locks| locks.strong_count() > 0);
        let locks = RepositoryLocks::unshared();
        repositories.insert(domain, Arc::downgrade(&locks));
        locks
    }

    /// Locks that no other handle shares.
    pub(crate) fn unshared() -> Arc<RepositoryLocks> {
        Arc::new(RepositoryLocks {
            packs_lock: RwLock::new(()),
            writing: Mutex::default(),
            changes: AtomicU64::new(0),
            heart: Arc::default(),
        })
    }

    /// Takes the packs lock for reading.
    /// # Errors
    /// `Busy`.
    pub(crate) fn reading(&self) -> Result<RwLockReadGuard<'_, ()>> {
        self.packs_lock.try_read().ok_or_else(busy)
    }

    /// Takes the packs lock exclusively.
    /// # Errors
    /// `Busy`.
    pub(crate) fn alone(&self) -> Result<RwLockWriteGuard<'_, ()>> {
        self.packs_lock.try_write().ok_or_else(busy)
    }

    /// The heartbeat of this process.
    pub(crate) fn heartbeat_thread(&self) -> &Arc<HeartbeatThread> {
        &self.heart
    }

    /// Counter of pack changes.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Counts a change of packs; returns the earlier value.
    pub(crate) fn note_change(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::SeqCst)
    }

    /// Claims a VM for writing until the claim is dropped.
    /// # Errors
    /// `Busy`: it is being backed up.
    pub(crate) fn claim(&self, vm: &Vm) -> Result<VmClaim<'_>> {
        if !self.writing.lock().insert(vm.uuid) {
            return Err(Error::Busy { what: format!("VM {}", vm.name) });
        }
        Ok(VmClaim { locks: self, vm: vm.uuid })
    }
}

/// A VM claimed for writing.
pub(crate) struct VmClaim<'a> {
    locks: &'a RepositoryLocks,
    vm: Uuid,
}

impl Drop for VmClaim<'_> {
    fn drop(&mut self) {
        self.locks.writing.lock().remove(&self.vm);
    }
}

fn busy() -> Error {
    Error::Busy { what: "the repository".into() }
}
