//! Identity of a data server's disk, and its boots.

use super::{disk_state::MemberCore, roles};
use crate::{
    error::{corrupt, of_engine},
    format::{IDENTITY_KEY, MemberIdentity},
};
use copal_kv::Durability;
use copal_volume::{
    VolumeError,
    group::{Incarnation, Term},
};

/// See `MemberStore::identity`.
pub(super) fn read_identity(core: &MemberCore) -> Result<Option<MemberIdentity>, VolumeError> {
    let row = core.spaces.node.get(IDENTITY_KEY).map_err(|error| of_engine(&error))?;
    row.map(|row| MemberIdentity::parse(&row).map_err(|error| corrupt(error.to_string()))).transpose()
}

/// See `MemberStore::assign`.
pub(super) fn assign(core: &MemberCore, identity: &MemberIdentity) -> Result<(), VolumeError> {
    match read_identity(core)? {
        None => write_identity(core, identity),
        Some(_) => Err(VolumeError::Denied { reason: "the disk belongs to a server already".to_owned() }),
    }
}

/// See `MemberStore::boot`.
pub(super) fn boot(core: &MemberCore, drawn: u64) -> Result<MemberIdentity, VolumeError> {
    let none = || corrupt("the store has no identity of a server");
    let mut identity = read_identity(core)?.ok_or_else(none)?;
    identity.incarnation = Incarnation::next(identity.incarnation, drawn);
    write_identity(core, &identity)?;
    roles::begin_recovering(core)?;
    Ok(identity)
}

/// See `MemberStore::accept_term`.
pub(super) fn accept_term(core: &MemberCore, term: Term) -> Result<bool, VolumeError> {
    let mut cached = core.identity.lock();
    let identity = match *cached {
        Some(identity) => Some(identity),
        None => read_identity(core)?,
    };
    let Some(mut identity) = identity else {
        return Ok(false);
    };
    if term > identity.term {
        identity.term = term;
        write_identity(core, &identity)?;
    }
    *cached = Some(identity);
    Ok(term >= identity.term)
}

/// See `MemberStore::term`.
pub(super) fn term(core: &MemberCore) -> Result<Term, VolumeError> {
    let cached = core.identity.lock();
    let identity = match *cached {
        Some(identity) => Some(identity),
        None => read_identity(core)?,
    };
    Ok(identity.map(|identity| identity.term).unwrap_or_default())
}

fn write_identity(core: &MemberCore, identity: &MemberIdentity) -> Result<(), VolumeError> {
    let mut batch = core.kv.batch();
    batch.put(&core.spaces.node, IDENTITY_KEY, identity.row());
    core.commit_essential(batch, Durability::Device)
}
