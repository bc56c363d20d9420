//! Keys of a repository: listing, adding and removing them, and the rights of the key that opened it.
//!
//! Invariants
//! - Only a holder of the master key adds or removes keys.
//! - At least one slot with the master key stays: one that opened this handle, or one that an admin made. A
//!   slot that anybody may have written does not count.
//! - A removed key no longer opens the repository. Its former holder keeps the data that the key has decrypted.
//!
//! Not here: encoding of slots and key files (`key_slot`, `role_key`), the effects of the first role key
//! (`catalog::split`).

use crate::catalog::split;
use crate::delete::prune::fence_all;
use crate::keys::key_slot;
use crate::keys::random;
use crate::keys::role::Role;
use crate::keys::role::{KeyId, RoleKey};
use crate::keys::role_key;
use crate::packs::volumes::{for_each_file, settled};
use crate::popular;
use crate::request::RepositoryInfo;
use crate::request::error::{Error, Result};
use crate::sessions::parts::RepositoryParts;
use bytes::Bytes;
use copal_volume::{FileId, PutOptions, ReadOptions, VolumeError};
use serde::{Serialize, Serializer};

/// A key slot of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedKey {
    /// Identifier of the key, or number of a password's slot.
    pub id: String,
    /// Its role; `None`: the slot cannot be read.
    pub role: Option<Role>,
    /// Whether a password opens it.
    #[serde(rename = "opened_by", serialize_with = "opener")]
    pub is_password: bool,
    /// Whether it opened this handle.
    pub is_own: bool,
    /// Whether the slot is known to be one of the repository's: it opened this handle, or an admin made it,
    /// which only an admin can verify. `None`: not known.
    pub is_genuine: Option<bool>,
    /// Creation time.
    pub created_ms: u64,
    #[serde(skip)]
    pub(crate) fid: FileId,
}

fn opener<S: Serializer>(is_password: &bool, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(opener_word(*is_password))
}

fn opener_word(is_password: bool) -> &'static str {
    if is_password { "password" } else { "file" }
}

impl ListedKey {
    /// The credential that opens it, as a word: `password` or `file`.
    pub fn opened_by(&self) -> &'static str {
        opener_word(self.is_password)
    }

    /// Whether it surely gives the master key.
    fn opens_master(&self) -> bool {
        self.role == Some(Role::Admin) && self.is_genuine == Some(true)
    }

    pub(crate) fn file_name(&self) -> String {
        format!("key.{}", self.id)
    }
}

/// The keys of a repository, as the holder of one of them sees them.
pub(crate) struct KeyList<'a> {
    pub(crate) parts: &'a RepositoryParts,
    pub(crate) info: &'a RepositoryInfo,
    /// File name of the slot that opened the handle.
    pub(crate) opened_by: &'a str,
}

impl KeyList<'_> {
    /// Carries out `Repository::draw_key`.
    pub(crate) fn draw_key(&self, role: Role) -> Result<RoleKey> {
        self.parts.roles().require(Role::Admin)?;
        if !self.info.encrypted {
            let reason = "this repository is not encrypted: anyone who can read it has all rights, with any key or none";
            return Err(Error::Denied { reason: reason.into() });
        }
        RoleKey::draw(role)
    }

    /// Carries out `Repository::add_key`.
    pub(crate) fn add_key(&self, key: &RoleKey) -> Result<()> {
        self.parts.roles().require(Role::Admin)?;
        let catalog = self.parts.catalog();
        let store = &*self.parts.pack_store().volumes.store;
        let keys = &self.parts.pack_store().keys;
        if !split::has_roles(store, catalog.files().vid(), keys)? {
            self.split_roles()?;
        }
        let slot = role_key::encode(key, *self.info.domain.as_bytes(), random()?, keys)?;
        let name = key.id().file_name();
        match store.put(catalog.files().vid(), name.as_bytes(), Bytes::from(slot), &PutOptions::default()) {
            Ok(_) => {}
            Err(VolumeError::Unknown { fid }) if settled(store, catalog.files().vid(), fid)? => {}
            Err(error) => return Err(error.into()),
        }
        if self.parts.pack_store().layout.is_fleet() {
            // The holder of the password signs as a host too: once one host is entered, only entered hosts
            // count.
            if let Some(host) = keys.host_key() {
                popular::enter_host(self.parts, host, KeyId([0; 8]))?;
            }
            popular::enter_host(self.parts, key.host_key(), key.id())?;
        }
        Ok(())
    }

    fn split_roles(&self) -> Result<()> {
        let parts = self.parts;
        let _alone = parts.locks().alone()?;
        parts.catch_up();
        split::begin_signing(parts.catalog(), || self.prepare_split())
    }

    fn prepare_split(&self) -> Result<()> {
        let parts = self.parts;
        let is_solo = !parts.pack_store().layout.is_fleet();
        if is_solo || !parts.pack_store().volumes.store.is_replicated() {
            // This process is the only one in the store, so the processes that opened these sessions are
            // dead.
            for vm in parts.directory().all()? {
                fence_all(parts, vm.uuid)?;
            }
        }
        if is_solo {
            // An unsigned list has no effect once signatures are needed. So its packs are removed first, and
            // it then belongs to an earlier epoch (BAK-15).
            parts.begin_change()?.entered();
        }
        Ok(())
    }

    /// Carries out `Repository::list_keys`.
    pub(crate) fn list_keys(&self) -> Result<Vec<ListedKey>> {
        let catalog = self.parts.catalog();
        let store = &*self.parts.pack_store().volumes.store;
        let mut listed = Vec::new();
        let mut files = Vec::new();
        for_each_file(store, catalog.files().vid(), b"key.", |name, info| {
            files.push((Bytes::copy_from_slice(name), info.clone()));
            Ok(())
        })?;
        for (name, info) in files {
            let bytes = match store.get(
                catalog.files().vid(),
                &name,
                0..key_slot::MAX_FILE_BYTES,
                &ReadOptions::default(),
            ) {
                Ok(bytes) => bytes,
                Err(VolumeError::NotFound) => continue,
                Err(error) if error.is_corruption() => Bytes::new(),
                Err(error) => return Err(error.into()),
            };
            let is_own = self.opened_by.as_bytes() == &name[..];
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
                    && slot.domain == *self.info.domain.as_bytes();
                key.role = Some(slot.role);
                if self.parts.roles().has(Role::Admin) {
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

    /// Carries out `Repository::remove_key`.
    pub(crate) fn remove_key(&self, id: &str) -> Result<ListedKey> {
        self.parts.roles().require(Role::Admin)?;
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
                "no other key is certain to open the whole repository; open it with the key that is to stay, or add one \
                 (`copal key add --role admin`), then remove {}",
                key.id
            );
            return Err(Error::Denied { reason });
        }
        // Hosts end first: once the slot is deleted, the removal cannot be repeated.
        let kept = listed.iter().filter_map(|key| KeyId::of_file_name(key.file_name().as_bytes()));
        popular::remove_hosts(self.parts, &kept.collect::<Vec<_>>())?;
        let catalog = self.parts.catalog();
        let store = &self.parts.pack_store().volumes.store;
        store.delete(catalog.files().vid(), key.file_name().as_bytes(), key.fid)?;
        Ok(key)
    }
}
