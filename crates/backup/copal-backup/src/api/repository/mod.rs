//! The façade: one repository over a store of volumes and an index.
//!
//! Every call blocks; make it from a thread of your own. A handle may be shared between threads. Backups of
//! different VMs, restores and checks run side by side. `prune` and `delete` run alone and return `Busy` if
//! they cannot. This holds for all handles of a repository in a process (`repository_locks`).
//!
//! One process at a time opens a repository for writing: the store below locks its file. The next process
//! ends the sessions of a killed one; see `backup::session` and `prune`.
//!
//! - This file: opening a repository, and its keys. [`snapshots`]: backups, and the use of snapshots.
//! - [`maintenance`]: checks, deletion and repair; VMs, popular packs and sessions of a fleet.

mod begin;
mod maintenance;
mod opener;
mod snapshots;

use crate::api::key_list::{KeyList, ListedKey};
use crate::api::lookup::SnapshotLookup;
use crate::api::snapshot_names::SnapshotNames;
use crate::api::unlock::{find_catalog, for_each_slot};
use crate::catalog::Catalog;
use crate::catalog::log::{AppendOutcome, LogName};
use crate::catalog::record::Record;
use crate::index::{ChunkIndex, IndexHome};
use crate::keys::DomainKeys;
use crate::keys::role::{Role, RoleKey};
use crate::keys::roles::Roles;
use crate::packs::pack_store::PackStore;
use crate::packs::volumes::RepositoryVolumes;
use crate::request::error::{Error, Result};
use crate::request::peers::HostKey;
use crate::request::{InitOptions, Layout, RepositoryInfo, Unlock};
use crate::sessions::parts::RepositoryParts;
use crate::sessions::repository_locks::RepositoryLocks;
use copal_chunk::Chunker;
use copal_volume::{VolumeId, VolumeStore};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use uuid::Uuid;
use zeroize::Zeroizing;

pub use opener::FoundRepository;

/// Most files of a catalog whose list is held.
const MOST_CATALOG_FILES: usize = 100_000;

/// An open repository.
pub struct Repository {
    parts: RepositoryParts,
    info: RepositoryInfo,
    /// File name of the key slot that opened it.
    opened_by: String,
    names: SnapshotNames,
    /// Whether a command that reads all logs may hold the list of the whole catalog.
    holds_lists: AtomicBool,
}

/// Keys of an opened repository, kept while its store is closed so that others may write.
pub struct KeptKey {
    domain: Uuid,
    keys: Arc<DomainKeys>,
    encrypted: bool,
    opened_by: String,
    workers: Option<usize>,
}

impl KeptKey {
    /// Opens the repository of a store.
    /// # Errors
    /// `NoRepository`: the store holds another one, or none. As [`Repository::open`].
    pub fn open(&self, volumes: Arc<dyn VolumeStore>, index: IndexHome) -> Result<Repository> {
        let (vid, domain) = find_catalog(&*volumes)?.ok_or(Error::NoRepository)?;
        if domain != self.domain {
            return Err(Error::NoRepository);
        }
        let opened = (Arc::clone(&self.keys), self.encrypted, self.opened_by.clone());
        let index = ChunkIndex::open(&index);
        let repository = Repository::open_with(volumes, index, (vid, domain), opened)?;
        Ok(match self.workers {
            Some(workers) => repository.with_workers(workers),
            None => repository,
        })
    }
}

impl Repository {
    /// Creates a repository in a store that has none.
    /// # Errors
    /// `RepositoryExists`; errors of the store.
    pub fn init(
        volumes: Arc<dyn VolumeStore>,
        index: IndexHome,
        options: &InitOptions,
    ) -> Result<Repository> {
        let (vid, domain, master) = match volumes.limits().leases {
            true => begin::alone(&*volumes, options)?,
            false => begin::beside_others(&*volumes, options)?,
        };
        let keys = Arc::new(DomainKeys::derive(&master));
        let catalog = Catalog::new(Arc::clone(&volumes), vid, keys);
        let profile = options.profile;
        let record = match options.layout {
            Layout::Solo => Record::Init { domain, profile },
            Layout::Fleet { popular_millionths } => Record::InitFleet { domain, profile, popular_millionths },
        };
        if let AppendOutcome::Lost = catalog.append(LogName::Domain, 0, &record)? {
            return Err(Error::RepositoryExists);
        }
        Repository::open(volumes, index, &options.unlock)
    }

    /// Opens the repository of a store.
    /// # Errors
    /// `NoRepository`, `WrongPassword`, `WrongKey`, `PasswordNeeded`, `PasswordNotUsed`, `Version`,
    /// `Damaged`.
    pub fn open(volumes: Arc<dyn VolumeStore>, index: IndexHome, unlock: &Unlock) -> Result<Repository> {
        Repository::find(volumes)?.ok_or(Error::NoRepository)?.open(index, unlock)
    }

    /// Looks for the repository of a store; `None`: it has none. No key needed.
    /// # Errors
    /// Errors of the store.
    pub fn find(volumes: Arc<dyn VolumeStore>) -> Result<Option<FoundRepository>> {
        FoundRepository::look(volumes)
    }

    /// Ends [`FoundRepository::with_held_lists`]: later calls see the present state.
    pub fn look_again(&self) {
        self.holds_lists.store(false, Ordering::Relaxed);
        self.parts.pack_store().volumes.store.release_lists();
    }

    /// Holds the list of the whole catalog for a command that reads the logs of all VMs, if that is permitted.
    fn hold_catalog(&self) -> Result<()> {
        // Once: after a change, lists are current.
        if self.holds_lists.swap(false, Ordering::Relaxed) {
            let vid = self.parts.catalog().files().vid();
            self.parts.pack_store().volumes.store.hold_list(vid, MOST_CATALOG_FILES)?;
        }
        Ok(())
    }

    /// Sets the number of threads that each operation of this handle computes with. Without this call it is the
    /// number of processors. Results do not depend on it.
    #[must_use]
    pub fn with_workers(mut self, workers: usize) -> Repository {
        self.parts.set_workers(workers);
        self
    }

    /// Keys that open this repository again after its store was closed, without a password.
    pub fn kept_key(&self) -> KeptKey {
        KeptKey {
            domain: self.info.domain,
            keys: Arc::clone(&self.parts.pack_store().keys),
            encrypted: self.info.encrypted,
            opened_by: self.opened_by.clone(),
            workers: self.parts.pack_store().asked_workers(),
        }
    }

    fn open_with(
        volumes: Arc<dyn VolumeStore>,
        index: Result<ChunkIndex>,
        (vid, domain): (VolumeId, Uuid),
        (keys, encrypted, opened_by): (Arc<DomainKeys>, bool, String),
    ) -> Result<Repository> {
        let catalog = Catalog::new(Arc::clone(&volumes), vid, Arc::clone(&keys));
        let first = catalog.record(LogName::Domain, 0)?;
        let created_ms = first.created_ms;
        let (profile, layout) = match first.record {
            Record::Init { domain: said, profile } if said == domain => (profile, Layout::Solo),
            Record::InitFleet { domain: said, profile, popular_millionths } if said == domain => {
                (profile, Layout::Fleet { popular_millionths })
            }
            _ => {
                return Err(Error::Damaged {
                    what: "catalog record d.0".into(),
                    detail: "it is not the record that creates this repository".into(),
                });
            }
        };
        let chunker = Chunker::new(profile, &keys.gear);
        let index = index?.for_layout(layout);
        let pack_store = PackStore::new(layout, RepositoryVolumes::new(volumes, domain), index, keys);
        let info = RepositoryInfo { domain, layout, profile, encrypted, created_ms, version: 1 };
        Ok(Repository {
            parts: RepositoryParts::new(pack_store, catalog, chunker, RepositoryLocks::of(domain)),
            info,
            opened_by,
            names: SnapshotNames::default(),
            holds_lists: AtomicBool::new(false),
        })
    }

    /// A handle that takes no in-process locks with others, like a handle of another process. For tests of
    /// the store's own locks.
    #[doc(hidden)]
    pub fn behave_as_another_process(mut self) -> Repository {
        self.parts.separate_from_others();
        self
    }

    /// Layout, chunking profile and identity of the repository.
    pub fn info(&self) -> RepositoryInfo {
        self.info.clone()
    }

    pub(crate) fn parts(&self) -> &RepositoryParts {
        &self.parts
    }

    pub(crate) fn lookup(&self) -> SnapshotLookup<'_> {
        SnapshotLookup::new(&self.parts, &self.names)
    }

    fn keys(&self) -> KeyList<'_> {
        KeyList { parts: &self.parts, info: &self.info, opened_by: &self.opened_by }
    }

    /// The rights of this handle.
    pub fn roles(&self) -> Roles {
        self.parts.roles()
    }

    /// The secret by which agents of the domain authenticate each other. Every role has it.
    pub fn agents_secret(&self) -> Zeroizing<[u8; 32]> {
        self.parts.pack_store().keys.agents()
    }

    /// The host key with which this handle signs records about popular packs; `None`: hosts do not sign in
    /// this repository.
    pub fn host_key(&self) -> Option<HostKey> {
        self.parts.pack_store().keys.host_key()
    }

    /// Draws a fresh key for this role. It opens nothing until [`Repository::add_key`] has added it.
    /// # Errors
    /// `Denied`: this handle has no admin role, or the repository is not encrypted, so that everybody has all
    /// roles.
    pub fn draw_key(&self, role: Role) -> Result<RoleKey> {
        self.keys().draw_key(role)
    }

    /// Adds a key. The first role key of a repository makes signatures mandatory for each record that removes
    /// something; programs that do not know roles can then no longer open the repository. May be repeated.
    /// # Errors
    /// As [`Repository::draw_key`]. `Busy`: another operation runs, or a backup of a fleet is in progress.
    /// `Damaged`; errors of the store.
    pub fn add_key(&self, key: &RoleKey) -> Result<()> {
        self.keys().add_key(key)
    }

    /// All key slots, those of passwords first.
    /// # Errors
    /// Errors of the store.
    pub fn list_keys(&self) -> Result<Vec<ListedKey>> {
        self.keys().list_keys()
    }

    /// Removes the key with that id, or with the only id of that prefix. It no longer opens the repository, and
    /// later records of its host about popular packs are ignored. Also ends the hosts of keys that were
    /// removed before without ending their host.
    /// # Errors
    /// `NotFound`, `Ambiguous`. `Denied`: this handle has no admin role, or no other slot certainly holds the
    /// master key. Errors of the store.
    pub fn remove_key(&self, id: &str) -> Result<ListedKey> {
        self.keys().remove_key(id)
    }
}

/// Refuses a role key for a repository that is not encrypted: an attacker may have replaced the real one with
/// it.
fn refuse_clear(volumes: &dyn VolumeStore, vid: VolumeId, domain: Uuid) -> Result<()> {
    let mut is_clear = false;
    for_each_slot(volumes, vid, domain, |_, slot| {
        is_clear |= !slot.needs_password();
        Ok(true)
    })?;
    match is_clear {
        true => Err(Error::PasswordNotUsed),
        false => Ok(()),
    }
}
