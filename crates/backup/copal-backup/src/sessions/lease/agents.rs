//! Operations on the agents of a fleet: listing, retiring, and ending the sessions of earlier runs.
//!
//! Design: docs/design/backup.md#sessions-of-a-fleet
//! Not here: files of the list (`catalog::agents`), jobs (`copal-agent`).

use super::fence;
use super::sessions::{info, newest_heartbeats};
use crate::api::repository::Repository;
use crate::catalog::agents::{ListedAgent, list_agent, listed_agents, retire_agent};
use crate::keys::role::Role;
use crate::request::FencedSession;
use crate::request::error::Result;
use crate::request::open_session::{HolderId, Session};

impl Repository {
    /// Agents that are listed and not retired, by name. Reads a file for each.
    /// # Errors
    /// Errors of the store.
    pub fn listed_agents(&self) -> Result<Vec<ListedAgent>> {
        listed_agents(self.parts.catalog().files())
    }

    /// Lists an agent and the VMs of its plan, in place of the earlier entry of its name; durable on return.
    /// # Errors
    /// Errors of the store.
    pub fn list_agent(&self, agent: &ListedAgent) -> Result<()> {
        list_agent(self.parts.catalog().files(), agent)
    }

    /// Retires an agent, so that no job waits for it; `false`: it is not listed.
    /// # Errors
    /// `Denied`: this handle has no delete role. Errors of the store.
    pub fn retire_agent(&self, name: &str) -> Result<bool> {
        if self.roles().are_split {
            self.roles().require(Role::Delete)?;
        }
        retire_agent(self.parts.catalog().files(), name)
    }

    /// Ends the sessions that earlier runs of the agent `name` left open; `own` is its present run. The
    /// caller makes sure that no other agent answers to that name. If a holder is alive after all, its
    /// session can no longer publish (BAK-5).
    /// # Errors
    /// `Damaged`; errors of the store.
    pub fn take_over(&self, name: &str, own: HolderId) -> Result<Vec<FencedSession>> {
        let mut ended = Vec::new();
        if !self.parts.is_written_by_several() {
            return Ok(ended);
        }
        let mut heartbeats = None;
        for vm in self.parts.directory().all()? {
            let state = self.parts.vm_state(vm.uuid)?;
            for session in &state.open {
                let Some(holder) = state.holder_of(session).filter(|holder| *holder != own) else {
                    continue;
                };
                let heartbeats = match &mut heartbeats {
                    Some(heartbeats) => heartbeats,
                    None => heartbeats.insert(newest_heartbeats(&self.parts)?),
                };
                let Some(beat) = heartbeats.get(&holder) else {
                    continue;
                };
                let info = info(&self.parts, beat)?;
                // A single backup has no address, and may use any name.
                let is_earlier_run = info.name == name && !info.address.is_empty();
                if is_earlier_run && fence(&self.parts, vm.uuid, session)? {
                    tracing::info!(vm = vm.name, name, %holder, "ended a session that an earlier run of this agent left");
                    ended.push(FencedSession { vm: vm.clone(), session: Session(*session), holder });
                }
            }
        }
        Ok(ended)
    }
}
