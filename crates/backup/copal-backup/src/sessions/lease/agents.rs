//! Operations on the agents of a fleet: retiring, and ending the sessions of earlier runs.
//!
//! Design: docs/design/backup.md#sessions-of-a-fleet
//! Not here: files of the list (`catalog::agents`), jobs (`copal-agent`).

use super::fence;
use super::sessions::{info, newest_heartbeats};
use crate::catalog::agents;
use crate::keys::role::Role;
use crate::request::FencedSession;
use crate::request::error::Result;
use crate::request::open_session::{HolderId, Session};
use crate::sessions::parts::RepositoryParts;

/// Carries out `Repository::retire_agent`.
pub(crate) fn retire_agent(parts: &RepositoryParts, name: &str) -> Result<bool> {
    if parts.roles().are_split {
        parts.roles().require(Role::Delete)?;
    }
    agents::retire_agent(parts.catalog().files(), name)
}

/// Carries out `Repository::take_over`.
pub(crate) fn take_over(parts: &RepositoryParts, name: &str, own: HolderId) -> Result<Vec<FencedSession>> {
    let mut ended = Vec::new();
    if !parts.is_written_by_several() {
        return Ok(ended);
    }
    let mut heartbeats = None;
    for vm in parts.directory().all()? {
        let state = parts.vm_state(vm.uuid)?;
        for session in &state.open {
            let Some(holder) = state.holder_of(session).filter(|holder| *holder != own) else {
                continue;
            };
            let heartbeats = match &mut heartbeats {
                Some(heartbeats) => heartbeats,
                None => heartbeats.insert(newest_heartbeats(parts)?),
            };
            let Some(beat) = heartbeats.get(&holder) else {
                continue;
            };
            let info = info(parts, beat)?;
            // A single backup has no address, and may use any name.
            let is_earlier_run = info.name == name && !info.address.is_empty();
            if is_earlier_run && fence(parts, vm.uuid, session)? {
                tracing::info!(vm = vm.name, name, %holder, "ended a session that an earlier run of this agent left");
                ended.push(FencedSession { vm: vm.clone(), session: Session(*session), holder });
            }
        }
    }
    Ok(ended)
}
