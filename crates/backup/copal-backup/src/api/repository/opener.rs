//! A repository in a store before its keys are known.

use super::{Repository, refuse_clear};
use crate::api::unlock::{PasswordSlots, beside, find_catalog, open_role_slot};
use crate::catalog::split::has_roles;
use crate::index::{ChunkIndex, IndexHome};
use crate::keys::DomainKeys;
use crate::request::Unlock;
use crate::request::error::Result;
use copal_volume::{VolumeId, VolumeStore};
use std::sync::{Arc, atomic::Ordering};
use std::thread::Builder;
use uuid::Uuid;

/// Most files of a list that is held for the opening.
const MOST_HELD: usize = 3000;

/// See the module.
pub struct FoundRepository {
    volumes: Arc<dyn VolumeStore>,
    vid: VolumeId,
    domain: Uuid,
    /// The slots, once they were read.
    slots: Option<PasswordSlots>,
    holds_lists: bool,
}

impl FoundRepository {
    /// Looks for the repository of a store; `None`: it has none.
    pub(super) fn look(volumes: Arc<dyn VolumeStore>) -> Result<Option<FoundRepository>> {
        volumes.hold_list(VolumeId::ROOT, MOST_HELD)?;
        let found = find_catalog(&*volumes)?;
        match found {
            None => volumes.release_lists(),
            Some((vid, _)) => volumes.hold_list(vid, MOST_HELD)?,
        }
        Ok(found.map(|(vid, domain)| FoundRepository {
            volumes,
            vid,
            domain,
            slots: None,
            holds_lists: false,
        }))
    }

    /// Identity of the repository.
    pub fn domain(&self) -> Uuid {
        self.domain
    }

    /// Lets the opened repository show its state of now until it first writes or [`Repository::look_again`] is called.
    /// In an object store this saves requests. For a command that reads once, and for no daemon.
    #[must_use]
    pub fn with_held_lists(mut self) -> FoundRepository {
        self.holds_lists = true;
        self
    }

    /// Whether it needs a password. One that has only role keys needs one of them.
    /// # Errors
    /// Errors of the store; `Damaged` if no key slot can be read.
    pub fn needs_password(&mut self) -> Result<bool> {
        let slots =
            self.slots.get_or_insert_with(|| PasswordSlots::read(&*self.volumes, self.vid, self.domain));
        slots.needs_password()
    }

    /// Opens it. The password is hashed while the index opens.
    /// # Errors
    /// `WrongPassword`, `WrongKey`, `PasswordNeeded`, `PasswordNotUsed`, `Version`, `Damaged`.
    pub fn open(self, index: IndexHome, unlock: &Unlock) -> Result<Repository> {
        let FoundRepository { volumes, vid, domain, slots, holds_lists } = self;
        let ((keys, encrypted, opened_by), index) = match unlock {
            Unlock::Key(key) => {
                refuse_clear(&*volumes, vid, domain)?;
                let (keys, slot) = open_role_slot(&*volumes, vid, *domain.as_bytes(), key)?;
                ((keys, true, slot), ChunkIndex::open(&index))
            }
            unlock => {
                let slots = slots.unwrap_or_else(|| PasswordSlots::read(&*volumes, vid, domain));
                let password = Builder::new().name("password".to_owned());
                let hash = || slots.try_each(unlock);
                let (found, index) = beside(password, hash, || ChunkIndex::open(&index));
                let master = slots.finish(found?)?;
                let keys = DomainKeys::derive(&master.key);
                has_roles(&*volumes, vid, &keys)?;
                ((keys, master.is_encrypted, master.slot), index)
            }
        };
        let keys = Arc::new(keys);
        let repository = Repository::open_with(volumes, index, (vid, domain), (keys, encrypted, opened_by))?;
        match holds_lists {
            true => repository.holds_lists.store(true, Ordering::Relaxed),
            false => repository.look_again(),
        }
        Ok(repository)
    }
}
