//! Packs of a VM's own chunks whose frames a clean-up asks about: all of them, or those of one session.
//!
//! A pack names its session in its header. Reading the headers costs one small read per pack. The index has
//! no sessions, and a list in memory would be lost with the process of the backup.

use crate::catalog::fields::SessionId;
use crate::catalog::vm::VmState;
use crate::index::reindex::{StoredPack, for_each_pack_of};
use crate::packs::home::PackHome;
use crate::packs::pack::PackNumber;
use crate::packs::pack::reader;
use crate::packs::pack_store::PackStore;
use crate::request::error::{Error, Result};
use crate::request::{SnapshotId, Vm};
use crate::sessions::parts::RepositoryParts;
use copal_volume::VolumeError;

/// A pack of the VM's own chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnPack {
    pub(super) volume: u32,
    pub(super) number: PackNumber,
    /// Number of its frames; 0 until its footer was read.
    pub(super) frames: u32,
}

/// The session that published a snapshot.
/// # Errors
/// `NotFound`: the VM has no such snapshot. Errors of the store.
pub(super) fn session_of(
    parts: &RepositoryParts,
    vm: &Vm,
    state: &VmState,
    snapshot: SnapshotId,
) -> Result<SessionId> {
    let mut published = state.published.iter();
    let published = published.find(|one| one.snapshot == snapshot);
    let published = published
        .ok_or_else(|| Error::NotFound { what: "snapshot", name: format!("{snapshot} of VM {}", vm.name) })?;
    Ok(parts.manifest(vm.uuid, published)?.session)
}

/// Packs of the VM's own chunks; only those of `session`, if it is set.
pub(super) fn own_packs(pack_store: &PackStore, vm: &Vm, session: Option<SessionId>) -> Result<Vec<OwnPack>> {
    let mut packs = Vec::new();
    for_each_pack_of(pack_store, PackHome::Private(vm.uuid), |pack| {
        let is_meant = match &session {
            Some(session) => is_of(pack_store, &pack, session)?,
            None => true,
        };
        if is_meant {
            packs.push(OwnPack { volume: pack.volume, number: pack.number, frames: 0 });
        }
        Ok(())
    })?;
    Ok(packs)
}

/// Whether a session wrote a pack. False for a missing or unreadable pack.
fn is_of(pack_store: &PackStore, pack: &StoredPack, session: &SessionId) -> Result<bool> {
    match reader::header(&*pack_store.volumes.store, pack.vid, pack.number) {
        Ok(header) => Ok(header.session == *session),
        Err(Error::Volume(VolumeError::NotFound)) => Ok(false),
        Err(error) if error.is_corruption() => Ok(false),
        Err(error) => Err(error),
    }
}
