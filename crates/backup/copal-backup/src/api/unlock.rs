//! Finds the catalog of a store and opens its key slots, before anything else is readable.
//!
//! A password is hashed on a thread of its own ([`beside`]), while the caller opens the index.
//!
//! Invariants
//! - A store holds a repository once record 0 of the domain's log exists; `init` writes it last.
//! - A password that opens no slot is reported before any error of the index.

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
use std::thread::{self, Builder};
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
    mut visit: impl FnMut(&str, key_slot::PasswordSlot) -> Result<bool>,
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
                if !visit(&String::from_utf8_lossy(&name), slot)? {
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

/// The password slots of a repository, read but not decrypted yet.
pub(crate) struct PasswordSlots {
    /// With the names of their files.
    slots: Vec<(String, key_slot::PasswordSlot)>,
    /// Error that ended the reading.
    unread: Option<Error>,
}

impl PasswordSlots {
    /// Reads the slots. An error is reported by [`PasswordSlots::finish`]: a slot before it may open.
    pub(crate) fn read(store: &dyn VolumeStore, vid: VolumeId, domain: Uuid) -> PasswordSlots {
        let mut slots = Vec::new();
        let read = for_each_slot(store, vid, domain, |name, slot| {
            slots.push((name.to_owned(), slot));
            Ok(true)
        });
        PasswordSlots { slots, unread: read.err() }
    }

    /// Whether a password opens the repository; without any password slot, a role key is needed.
    /// # Errors
    /// The error that ended the reading, if no slot was read.
    pub(crate) fn needs_password(&mut self) -> Result<bool> {
        match (self.slots.first(), self.unread.take()) {
            (Some((_, slot)), unread) => {
                self.unread = unread;
                Ok(slot.needs_password())
            }
            (None, Some(error)) => Err(error),
            (None, None) => Ok(true),
        }
    }

    /// Tries the slots in their order; `None` if none opens. Hashes the password once for each, in 64 MiB of memory
    /// that are freed on return.
    /// # Errors
    /// `PasswordNeeded`, `PasswordNotUsed`.
    pub(crate) fn try_each(&self, unlock: &Unlock) -> Result<Option<MasterKey>> {
        for (name, slot) in &self.slots {
            if let Some(key) = slot.open(unlock)? {
                return Ok(Some(MasterKey { key, is_encrypted: slot.needs_password(), slot: name.clone() }));
            }
        }
        Ok(None)
    }

    /// The key that was found.
    /// # Errors
    /// Of no key: the error that ended the reading of the slots, else `WrongPassword`.
    pub(crate) fn finish(self, found: Option<MasterKey>) -> Result<MasterKey> {
        let tried = self.slots.len();
        found.ok_or_else(|| self.unread.unwrap_or(Error::WrongPassword { slots: tried }))
    }
}

/// Runs `hash` on a thread of its own, and `other` on the caller's meanwhile. Where the system starts no thread, both
/// run in turn.
pub(crate) fn beside<H: Send, T>(
    thread: Builder,
    hash: impl Fn() -> H + Sync,
    other: impl FnOnce() -> T,
) -> (H, T) {
    thread::scope(|scope| {
        let started = thread.spawn_scoped(scope, &hash);
        let value = other();
        let hashed = match started {
            Ok(running) => running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => hash(),
        };
        (hashed, value)
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_password_is_hashed_while_the_caller_works_on() {
        let (sender, receiver) = mpsc::channel();
        let receiver = std::sync::Mutex::new(receiver);
        let hash = || receiver.lock().unwrap().recv_timeout(Duration::from_mins(1));
        // In turn, the hash would wait for a message that is sent after it.
        let (hashed, other) = beside(Builder::new(), hash, || sender.send(7).map(|()| "opened"));
        assert_eq!((hashed, other), (Ok(7), Ok("opened")));
    }

    #[test]
    fn without_a_thread_a_password_is_hashed_in_turn() {
        let refused = Builder::new().stack_size(1 << 60);
        let caller = thread::current().id();
        let (hashed, other) = beside(refused, || thread::current().id() == caller, || "opened");
        assert_eq!((hashed, other), (true, "opened"));
    }
}
