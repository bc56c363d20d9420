//! Keys of a repository: which there are, one more, one less; and what the key that opened it may do.
//!
//! Invariants
//! - Only who has the master key adds or removes keys, and one slot that holds it stays: a slot that this
//!   handle has opened, or that an admin made. What anybody may have put there does not count.
//! - A key that was removed opens the repository no more. Who has read what it opened still has that.
//!
//! Not here: bytes of slots and key files (`key_slot`, `role_key`), what changes with the first role key
//! (`catalog::split`).

use crate::api::repository::Repository;
use crate::catalog::split;
use crate::delete::prune::fence_all;
use crate::keys::key_slot;
use crate::keys::random;
use crate::keys::role::Role;
use crate::keys::role::{KeyId, RoleKey};
use crate::keys::role_key;
use crate::keys::roles::Roles;
use crate::packs::volumes::{for_each_file, settled};
use crate::popular;
use crate::request::error::{Error, Result};
use bytes::Bytes;
use copal_volume::{FileId, PutOptions, ReadOptions, VolumeError};
use zeroize::Zeroizing;

/// A key slot of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedKey {
    /// What it is called: that of its key, or the number of a password's slot.
    pub id: String,
    /// What it is for; `None`: the slot cannot be read.
    pub role: Option<Role>,
    /// Whether a password opens it.
    pub is_password: bool,
    /// Whether it opened this handle.
    pub is_own: bool,
    /// Whether it is known to be one of the repository's: this handle was opened by it, or an admin made it,
    /// which only an admin can tell. `None`: not known.
    pub is_genuine: Option<bool>,
    /// When it was made.
    pub created_ms: u64,
    pub(crate) fid: FileId,
}

impl ListedKey {
    /// Whether it surely gives the master key.
    fn opens_master(&self) -> bool {
        self.role == Some(Role::Admin) && self.is_genuine == Some(true)
    }

    pub(crate) fn file_name(&self) -> String {
        format!("key.{}", self.id)
    }
}

impl Repository {
    /// What this handle may be used for.
    pub fn roles(&self) -> Roles {
        self.parts.pack_store().keys.roles()
    }

    /// What the agents of the domain know each other by. Every role has it.
    pub fn agents_secret(&self) -> Zeroizing<[u8; 32]> {
        self.parts.pack_store().keys.agents()
    }

    /// A fresh key for this role. It opens nothing until [`Repository::add_key`] has added it.
    /// # Errors
    /// `Denied`: this handle has no admin role, or the repository is not encrypted, so that everybody has all
    /// roles.
    pub fn draw_key(&self, role: Role) -> Result<RoleKey> {
        self.roles().require(Role::Admin)?;
        if !self.info().encrypted {
            let reason = "this repository is not encrypted: whoever reads it may do everything in it, with any key or none";
            return Err(Error::Denied { reason: reason.into() });
        }
        RoleKey::draw(role)
    }

    /// Adds a key. With the first one of a repository what takes something away is signed from then on; no
    /// program that does not know of roles opens it any more.
    /// # Errors
    /// As [`Repository::draw_key`]. `Busy`: something else runs, or a backup of a fleet is under way.
    /// `Damaged`; those of the store. It may be repeated.
    pub fn add_key(&self, key: &RoleKey) -> Result<()> {
        self.roles().require(Role::Admin)?;
        let catalog = self.parts.catalog();
        let store = &*self.parts.pack_store().volumes.store;
        let keys = &self.parts.pack_store().keys;
        if !split::has_roles(store, catalog.vid, keys)? {
            self.split_roles()?;
        }
        let slot = role_key::encode(key, *self.info().domain.as_bytes(), random()?, keys)?;
        let name = key.id().file_name();
        match store.put(catalog.vid, name.as_bytes(), Bytes::from(slot), &PutOptions::default()) {
            Ok(_) => {}
            Err(VolumeError::Unknown { fid }) if settled(store, catalog.vid, fid)? => {}
            Err(error) => return Err(error.into()),
        }
        if self.parts.pack_store().layout.is_fleet() {
            // Who opens the repository by the password signs, too: from the first host on nobody else counts.
            if let Some(host) = keys.host_key() {
                popular::enter_host(&self.parts, host, KeyId([0; 8]))?;
            }
            popular::enter_host(&self.parts, key.host_key(), key.id())?;
        }
        Ok(())
    }

    fn split_roles(&self) -> Result<()> {
        let parts = &self.parts;
        let _alone = parts.locks().alone()?;
        parts.catch_up();
        parts.catalog().begin_signing(|| self.prepare_split())
    }

    fn prepare_split(&self) -> Result<()> {
        let parts = &self.parts;
        let is_solo = !parts.pack_store().layout.is_fleet();
        if is_solo || !parts.pack_store().volumes.store.is_replicated() {
            // This process has the store to itself, so whoever opened a session is gone.
            for vm in parts.directory().all()? {
                fence_all(parts, vm.uuid)?;
            }
        }
        if is_solo {
            // A list that nobody has signed means nothing from then on: what stands in it goes before, and it
            // is of an earlier epoch (BAK-15).
            parts.begin_change()?.entered();
        }
        Ok(())
    }

    /// All key slots, those of passwords first.
    /// # Errors
    /// Those of the store.
    pub fn list_keys(&self) -> Result<Vec<ListedKey>> {
        let catalog = self.parts.catalog();
        let store = &*self.parts.pack_store().volumes.store;
        let mut listed = Vec::new();
        let mut files = Vec::new();
        for_each_file(store, catalog.vid, b"key.", |name, info| {
            files.push((Bytes::copy_from_slice(name), info.clone()));
            Ok(())
        })?;
        for (name, info) in files {
            let bytes =
                match store.get(catalog.vid, &name, 0..key_slot::MAX_FILE_BYTES, &ReadOptions::default()) {
                    Ok(bytes) => bytes,
                    Err(VolumeError::NotFound) => continue,
                    Err(error) if error.is_corruption() => Bytes::new(),
                    Err(error) => return Err(error.into()),
                };
            let is_own = self.opened_by() == &name[..];
            let mut key = ListedKey {
                id: String::from_utf8_lossy(&name[b"key.".len()..]).into_owned(),
                role: None,
                is_password: false,
                is_own,
                is_genuine: is_own.then_some(true),
                created_ms: info.created_ms,
                fid: info.fid,
            };
            let keys = &self.parts.pack_store().keys;
            if let Ok(slot) = role_key::decode(&bytes) {
                let stands = KeyId::of_file_name(&name) == Some(slot.id)
                    && slot.domain == *self.info().domain.as_bytes();
                key.role = Some(slot.role);
                if self.roles().has(Role::Admin) {
                    key.is_genuine = Some(stands && slot.is_of(keys));
                }
            } else if key_slot::decode(&bytes).is_ok() {
                key.role = Some(Role::Admin);
                key.is_password = true;
            }
            listed.push(key);
        }
        listed.sort_by_key(|key| (!key.is_password, key.created_ms, key.role));
        Ok(listed)
    }

    /// Removes the key of that id, or of the only id that begins so. It opens the repository no more, and
    /// what its host says of popular packs from now on counts for nothing. The same goes for keys that were
    /// removed before and had left their host entered.
    /// # Errors
    /// `NotFound`, `Ambiguous`. `Denied`: this handle has no admin role, or no other slot surely opens the
    /// whole master. Those of the store.
    pub fn remove_key(&self, id: &str) -> Result<ListedKey> {
        self.roles().require(Role::Admin)?;
        let mut listed = self.list_keys()?;
        let exact = listed.iter().position(|key| key.id == id);
        let begin: Vec<usize> = (0..listed.len()).filter(|at| listed[*at].id.starts_with(id)).collect();
        let at = match (exact, &begin[..]) {
            (Some(at), _) => at,
            (None, [at]) if !id.is_empty() => *at,
            (None, [] | [_]) => {
                return Err(Error::NotFound { what: "key", name: id.to_owned() });
            }
            (None, several) => {
                let reason = format!("{id} fits {} keys; `copal key ls` shows their ids", several.len());
                return Err(Error::Invalid { reason });
            }
        };
        let key = listed.swap_remove(at);
        if key.role == Some(Role::Admin)
            && key.is_genuine != Some(false)
            && !listed.iter().any(ListedKey::opens_master)
        {
            let reason = format!(
                "no other key surely opens all of the repository; open it with the one that is to stay, or add one \
                 (`copal key add --role admin`), then remove {}",
                key.id
            );
            return Err(Error::Denied { reason });
        }
        // First, since a key that is gone cannot be removed once more.
        let kept = listed.iter().filter_map(|key| KeyId::of_file_name(key.file_name().as_bytes()));
        popular::remove_hosts(&self.parts, &kept.collect::<Vec<_>>())?;
        let catalog = self.parts.catalog();
        let store = &self.parts.pack_store().volumes.store;
        store.delete(catalog.vid, key.file_name().as_bytes(), key.fid)?;
        Ok(key)
    }
}
