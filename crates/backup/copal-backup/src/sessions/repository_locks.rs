//! What all handles of one repository in this process share: who reads packs, who removes them, which VMs are
//! being written, and whether a handle still knows what is stored.
//!
//! The store below keeps other processes out; within one, nothing keeps anybody from opening a repository
//! twice. Handles find each other by the domain, which is drawn at random when a repository is made:
//! whichever way a store was opened, its handles meet here. Copies of a repository meet too, which costs them
//! a wait and nothing else.

use crate::request::Vm;
use crate::request::error::{Error, Result};
use crate::sessions::lease::beating::Heart;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use uuid::Uuid;

static REPOSITORIES: Mutex<Option<HashMap<Uuid, Weak<RepositoryLocks>>>> = Mutex::new(None);

/// One repository, as this process uses it.
pub(crate) struct RepositoryLocks {
    /// Held by all who read packs, alone by those who remove them.
    packs_lock: RwLock<()>,
    /// VMs that are being backed up.
    writing: Mutex<HashSet<Uuid>>,
    /// Counts what changed which packs there are.
    changes: AtomicU64,
    /// Leaves signs of life.
    heart: Arc<Heart>,
}

impl RepositoryLocks {
    /// That of a domain, whoever else has it open.
    pub(crate) fn of(domain: Uuid) -> Arc<RepositoryLocks> {
        let mut repositories = REPOSITORIES.lock();
        let repositories = repositories.get_or_insert_default();
        if let Some(locks) = repositories.get(&domain).and_then(Weak::upgrade) {
            return locks;
        }
        repositories.retain(|_, locks| locks.strong_count() > 0);
        let locks = RepositoryLocks::apart();
        repositories.insert(domain, Arc::downgrade(&locks));
        locks
    }

    /// One that nobody else meets.
    pub(crate) fn apart() -> Arc<RepositoryLocks> {
        Arc::new(RepositoryLocks {
            packs_lock: RwLock::new(()),
            writing: Mutex::default(),
            changes: AtomicU64::new(0),
            heart: Arc::default(),
        })
    }

    /// Among those who read packs.
    /// # Errors
    /// `Busy`.
    pub(crate) fn reading(&self) -> Result<RwLockReadGuard<'_, ()>> {
        self.packs_lock.try_read().ok_or_else(busy)
    }

    /// Alone.
    /// # Errors
    /// `Busy`.
    pub(crate) fn alone(&self) -> Result<RwLockWriteGuard<'_, ()>> {
        self.packs_lock.try_write().ok_or_else(busy)
    }

    /// What leaves signs of life of this process.
    pub(crate) fn heart(&self) -> &Arc<Heart> {
        &self.heart
    }

    /// How often packs came or went.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Packs came or went; how often they had before.
    pub(crate) fn note_change(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::SeqCst)
    }

    /// Takes a VM for writing until the claim is dropped.
    /// # Errors
    /// `Busy`: it is being backed up.
    pub(crate) fn claim(&self, vm: &Vm) -> Result<Claim<'_>> {
        if !self.writing.lock().insert(vm.uuid) {
            return Err(Error::Busy { what: format!("VM {}", vm.name) });
        }
        Ok(Claim { locks: self, vm: vm.uuid })
    }
}

/// A VM taken for writing.
pub(crate) struct Claim<'a> {
    locks: &'a RepositoryLocks,
    vm: Uuid,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.locks.writing.lock().remove(&self.vm);
    }
}

fn busy() -> Error {
    Error::Busy { what: "the repository".into() }
}
