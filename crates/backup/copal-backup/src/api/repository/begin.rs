//! The first steps of `init`: the domain, its catalog volume, and the first key slot.
//!
//! Design: docs/design/backup.md#rules BAK-29
//! Not here: the record that ends `init` (`Repository::init`). Without it there is no repository.

use crate::api::unlock::{PasswordSlots, catalogs, find_catalog, has_init};
use crate::keys::key_slot::{self, HashCost};
use crate::keys::random;
use crate::packs::volumes::{open_or_make, settled};
use crate::request::InitOptions;
use crate::request::error::{Error, Result};
use bytes::Bytes;
use copal_volume::{PutOptions, RemoveMode, VolumeError, VolumeId, VolumeStore};
use uuid::Uuid;
use zeroize::Zeroizing;

/// Volume that elects the domain of a store without leases.
const ELECTION: &str = "init";
/// Context of the domain that follows from the elected volume.
const DOMAIN: &str = "copal 2026-11-30 domain of an elected volume";
/// The first key slot.
const FIRST_SLOT: &[u8] = b"key.0";

/// Catalog volume, domain and master key.
type BegunDomain = (VolumeId, Uuid, Zeroizing<[u8; 32]>);

/// Begins in a store that this process holds for itself.
/// # Errors
/// `RepositoryExists`.
pub(super) fn alone(volumes: &dyn VolumeStore, options: &InitOptions) -> Result<BegunDomain> {
    for (vid, _) in catalogs(volumes)? {
        if has_init(volumes, vid)? {
            return Err(Error::RepositoryExists);
        }
        // The remains of a killed init; nothing was ever stored under it.
        volumes.remove_volume(vid, RemoveMode::WithFiles)?;
    }
    let domain = Uuid::from_bytes(random()?);
    let vid = catalog_volume(volumes, domain)?;
    let (slot, master) = draw_slot(domain, options)?;
    volumes.put(vid, FIRST_SLOT, slot, &PutOptions::default())?;
    Ok((vid, domain, master))
}

/// Begins in a store that several hosts may begin at once. Nothing is removed: another host may have finished meanwhile.
/// One volume elects the domain, the first key slot under it elects the key, and the first record elects the host. So an
/// init continues one that was killed.
/// # Errors
/// `RepositoryExists`; `WrongPassword`: the init that it continues had another password.
pub(super) fn beside_others(volumes: &dyn VolumeStore, options: &InitOptions) -> Result<BegunDomain> {
    if find_catalog(volumes)?.is_some() {
        return Err(Error::RepositoryExists);
    }
    let elected = open_or_make(volumes, ELECTION, true)?.ok_or(Error::NoRepository)?;
    let hash = blake3::derive_key(DOMAIN, &elected.0.to_le_bytes());
    let mut id = [0; 16];
    id.copy_from_slice(&hash[..16]);
    let domain = Uuid::from_bytes(id);
    let vid = catalog_volume(volumes, domain)?;
    let (slot, master) = draw_slot(domain, options)?;
    let is_ours = match volumes.put(vid, FIRST_SLOT, slot, &PutOptions::default()) {
        Ok(_) => true,
        Err(VolumeError::Exists { .. }) => false,
        Err(VolumeError::Unknown { fid }) => settled(volumes, vid, fid)?,
        Err(error) => return Err(error.into()),
    };
    if is_ours {
        return Ok((vid, domain, master));
    }
    let slots = PasswordSlots::read(volumes, vid, domain);
    let found = slots.try_each(&options.unlock)?;
    Ok((vid, domain, slots.finish(found)?.key))
}

fn catalog_volume(volumes: &dyn VolumeStore, domain: Uuid) -> Result<VolumeId> {
    open_or_make(volumes, &format!("cat-{}", domain.simple()), true)?.ok_or(Error::NoRepository)
}

/// A fresh master key, and the slot that opens it.
fn draw_slot(domain: Uuid, options: &InitOptions) -> Result<(Bytes, Zeroizing<[u8; 32]>)> {
    let master = Zeroizing::new(random::<32>()?);
    let cost = HashCost { memory_kib: options.argon2_memory_kib, passes: 3, lanes: 1 };
    let slot = key_slot::encode(&options.unlock, *domain.as_bytes(), key_slot::salt()?, cost, &master)?;
    Ok((Bytes::from(slot), master))
}
