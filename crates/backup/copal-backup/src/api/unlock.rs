//! Finds the catalog of a store and opens its key slots, before anything else is readable.
//!
//! Invariant: a store holds a repository once record 0 of the domain's log exists; `init` writes it last.

use crate::catalog::log::LogName;
use crate::catalog::split;
use crate::keys::DomainKeys;
use crate::keys::key_slot;
use crate::keys::role::{Role, RoleKey};
use crate::keys::role_key;
use crate::packs::volumes::{for_each_file, for_each_volume};
use crate::request::Unlock;
use crate::request::error::{Error, Result};
use copal_codec::{Envelope, EnvelopeError};
use copal_volume::{ReadOptions, VolumeError, VolumeId, VolumeStore};
use uuid::Uuid;
use zeroize::Zeroizing;

/// Volumes that may be catalogs, with the domains in their names.
pub(crate) fn catalogs(store: &dyn VolumeStore) -> Result<Vec<(VolumeId, Uuid)>> {
    let mut found = Vec::new();
    for_each_volume(store, "cat-", |name, vid| {
        if let Ok(domain) = Uuid::try_parse(name.trim_start_matches("cat-")) {
            found.push((vid, domain));
        }
        Ok(())
    })?;
    Ok(found)
}

/// Whether record 0 exists, which `init` writes last.
pub(crate) fn has_init(store: &dyn VolumeStore, vid: VolumeId) -> Result<bool> {
    let place = LogName::Domain.place(0);
    match store.stat(vid, place.as_bytes(), &ReadOptions::default()) {
        Ok(_) => Ok(true),
        Err(VolumeError::NotFound) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn find_catalog(store: &dyn VolumeStore) -> Result<Option<(VolumeId, Uuid)>> {
    for (vid, domain) in catalogs(store)? {
        if has_init(store, vid)? {
            return Ok(Some((vid, domain)));
        }
    }
    Ok(None)
}

/// Calls `visit` with each readable key slot of a password and its file name, until it returns false. Slots
/// of role keys count as readable, but are not visited.
/// # Errors
/// `Damaged` or `Version` if no slot is readable; errors of the store.
pub(crate) fn for_each_slot(
    store: &dyn VolumeStore,
    vid: VolumeId,
    domain: Uuid,
    mut visit: impl FnMut(&str, &key_slot::PasswordSlot<'_>) -> Result<bool>,
) -> Result<()> {
    let mut names = Vec::new();
    for_each_file(store, vid, b"key.", |name, _| {
        names.push(name.to_vec());
        Ok(())
    })?;
    let mut trouble = None;
    let mut readable = 0;
    for name in names {
        let bytes = match store.get(vid, &name, 0..key_slot::MAX_FILE_BYTES, &ReadOptions::default()) {
            Ok(bytes) => bytes,
            Err(error) if error.is_corruption() => {
                trouble = Some(Error::from(error));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if role_key::decode(&bytes).is_ok() {
            readable += 1;
            continue;
        }
        if let Err(EnvelopeError::Version { found, newest, .. }) = Envelope::open(&key_slot::FORMAT, &bytes) {
            trouble = Some(Error::Version { what: "a key slot", found, known: newest });
            continue;
        }
        match key_slot::decode(&bytes) {
            Ok(slot) if slot.domain == *domain.as_bytes() => {
                readable += 1;
                if !visit(&String::from_utf8_lossy(&name), &slot)? {
                    return Ok(());
                }
            }
            Ok(_) => trouble = Some(bad_slot("it belongs to another repository".into())),
            Err(detail) => trouble = Some(bad_slot(detail)),
        }
    }
    match trouble {
        _ if readable > 0 => Ok(()),
        Some(error) => Err(error),
        None => Err(bad_slot("there is none".into())),
    }
}

fn bad_slot(detail: String) -> Error {
    Error::Damaged { what: "the key slot".into(), detail }
}

/// The master key, and the slot that held it.
pub(crate) struct MasterKey {
    pub(crate) key: Zeroizing<[u8; 32]>,
    pub(crate) is_encrypted: bool,
    /// File name of the slot.
    pub(crate) slot: String,
}

pub(crate) fn unlock_master(
    store: &dyn VolumeStore,
    vid: VolumeId,
    domain: Uuid,
    unlock: &Unlock,
) -> Result<MasterKey> {
    let mut tried = 0;
    let mut opened = None;
    for_each_slot(store, vid, domain, |name, slot| {
        tried += 1;
        opened = slot.open(unlock)?.map(|key| MasterKey {
            key,
            is_encrypted: slot.needs_password(),
            slot: name.to_owned(),
        });
        Ok(opened.is_none())
    })?;
    opened.ok_or(Error::WrongPassword { slots: tried })
}

/// The keys that a role key opens, and the file name of its slot.
/// # Errors
/// `WrongKey`: it has no slot, or the slot was made for another key. Errors of the store.
pub(crate) fn open_role_slot(
    store: &dyn VolumeStore,
    vid: VolumeId,
    domain: [u8; 16],
    key: &RoleKey,
) -> Result<(DomainKeys, String)> {
    let name = key.id().file_name();
    let wrong = || Error::WrongKey { id: key.id() };
    let bytes = match store.get(vid, name.as_bytes(), 0..key_slot::MAX_FILE_BYTES, &ReadOptions::default()) {
        Ok(bytes) => bytes,
        Err(VolumeError::NotFound) => return Err(wrong()),
        Err(error) => return Err(error.into()),
    };
    let slot = role_key::decode(&bytes)
        .map_err(|detail| Error::Damaged { what: format!("key slot {}", key.id()), detail })?;
    if slot.domain != domain {
        return Err(wrong());
    }
    let keys = slot.open(key).ok_or_else(wrong)?;
    if slot.role == Role::Admin {
        split::has_roles(store, vid, &keys)?;
    }
    Ok((keys, name))
}
