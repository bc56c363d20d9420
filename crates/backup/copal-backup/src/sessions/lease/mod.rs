//! Leases of sessions in a fleet on several servers: holders of sessions, whether they are alive, and the end
//! of dead ones.
//!
//! A holder of sessions writes a heartbeat every minute ([`heartbeat`]). A backup of the same VM, and any
//! agent, watches heartbeats ([`watch`]). It may end a session whose holder has written none for ten minutes
//! by the observer's own clock. The clock decides only when a session is ended. Safety does not depend on it:
//! an ended session cannot publish, even if its holder is alive (BAK-5).
//!
//! Design: docs/design/backup.md#sessions-of-a-fleet BAK-21
//! Not here: records of sessions (`backup::session`). On one machine, or in the layout solo, there are no
//! heartbeats: the lock of the store, or the right to write, proves that the process of an open session is
//! dead.

mod agents;
pub(crate) mod fence;
pub(crate) mod heartbeat;
pub(crate) mod process;
pub(crate) mod sessions;
pub(crate) mod watch;

use crate::api::repository::Repository;
use crate::catalog::heartbeats::clear_heartbeats;
use crate::catalog::record::MAX_NAME_BYTES;
use crate::request::error::{Error, Result};
use crate::request::open_session::{Holder, HolderInfo, OpenSession, Session};
use crate::request::words::is_plain;
use crate::request::{FencedSession, Vm};
use crate::sessions::parts::RepositoryParts;
use fence::fence;
use heartbeat::{HeartbeatGuard, HeartbeatThread};
use sessions::{info, newest_heartbeats, open_sessions, with_holders};
use std::sync::Arc;
use std::time::Duration;
use watch::LeaseWatch;

impl Repository {
    /// Writes heartbeats until the guard is dropped: the first at once, then one a minute. Guards of one
    /// process with the same holder share them. A backup starts heartbeats by itself, unless its process
    /// writes them already.
    /// # Errors
    /// `Invalid`: name or address is longer than 255 bytes, or has control characters. Errors of the store.
    pub fn beat(&self, holder: &Holder) -> Result<HeartbeatGuard> {
        for (what, text) in [("name", &holder.name), ("address", &holder.address)] {
            if text.len() > MAX_NAME_BYTES || !is_plain(text) {
                return Err(Error::Invalid {
                    reason: format!(
                        "{text:?} cannot be the {what} of a holder: at most {MAX_NAME_BYTES} bytes without control characters"
                    ),
                });
            }
        }
        let shared = self.parts.locks().heart();
        // Several agents in one process appear as several holders.
        let beating = match shared.begin_as(self.parts.catalog(), holder)? {
            Some(beating) => beating,
            None => Arc::<HeartbeatThread>::default().begin(self.parts.catalog(), holder)?,
        };
        if let Err(error) = clear_heartbeats(self.parts.catalog().files()) {
            tracing::debug!(%error, "heartbeats of dead holders could not be removed");
        }
        Ok(beating)
    }

    /// Heartbeats for a session, shared with any holder of this process.
    pub(crate) fn start_session_heartbeats(&self, holder: &Holder) -> Result<HeartbeatGuard> {
        self.parts.locks().heart().begin(self.parts.catalog(), holder)
    }

    /// The newest heartbeat of each holder that has not ended, by holder. Holders whose process died stay
    /// listed for a week.
    /// # Errors
    /// Errors of the store.
    pub fn holders(&self) -> Result<Vec<HolderInfo>> {
        let mut infos = Vec::new();
        for beat in newest_heartbeats(&self.parts)?.values() {
            infos.push(info(&self.parts, beat)?);
        }
        infos.sort_by_key(|info| info.holder.0);
        Ok(infos)
    }

    /// Open sessions by VM: of running backups, and of dead processes.
    /// # Errors
    /// `Damaged`; errors of the store.
    pub fn sessions(&self) -> Result<Vec<(Vm, Vec<OpenSession>)>> {
        let mut heartbeats = None;
        let mut found = Vec::new();
        for vm in self.parts.directory().all()? {
            let state = self.parts.vm_state(vm.uuid)?;
            if !state.open.is_empty() {
                let heartbeats = match &mut heartbeats {
                    Some(heartbeats) => heartbeats,
                    None => heartbeats.insert(newest_heartbeats(&self.parts)?),
                };
                found.push((vm, with_holders(&self.parts, &state, heartbeats)?));
            }
        }
        Ok(found)
    }

    /// Observes all sessions at `now`, a monotonic time of the observer that owns `watch`. Ends and returns
    /// those whose holder has written no new heartbeat for ten minutes. Call it about once a minute; longer
    /// intervals only end sessions later. Without heartbeats (in the layout solo, and on one machine) it does
    /// nothing.
    /// # Errors
    /// `Damaged`; errors of the store.
    pub fn watch_leases(&self, watch: &mut LeaseWatch, now: Duration) -> Result<Vec<FencedSession>> {
        let mut fenced = Vec::new();
        if !self.parts.is_written_by_several() {
            return Ok(fenced);
        }
        for vm in self.parts.directory().all()? {
            fenced.extend(fence_silent(&self.parts, &vm, watch, now)?);
        }
        Ok(fenced)
    }

    /// As [`Repository::watch_leases`], for one VM. Returns the sessions that are still open; if there are
    /// none, the VM can be backed up.
    /// # Errors
    /// As [`Repository::watch_leases`].
    pub fn watch_vm(&self, vm: &str, watch: &mut LeaseWatch, now: Duration) -> Result<Vec<OpenSession>> {
        if !self.parts.is_written_by_several() {
            return Ok(Vec::new());
        }
        let vm = match self.parts.directory().find(vm) {
            // Its first backup adds it.
            Err(Error::NotFound { .. }) => return Ok(Vec::new()),
            found => found?,
        };
        fence_silent(&self.parts, &vm, watch, now)?;
        open_sessions(&self.parts, vm.uuid)
    }
}

/// Ends the sessions of a VM whose holders are silent. A session without a holder is left to an operator.
fn fence_silent(
    parts: &RepositoryParts,
    vm: &Vm,
    watch: &mut LeaseWatch,
    now: Duration,
) -> Result<Vec<FencedSession>> {
    let state = parts.vm_state(vm.uuid)?;
    if state.open.is_empty() {
        return Ok(Vec::new());
    }
    // Read after the sessions: a holder writes a heartbeat before it opens one.
    let heartbeats = newest_heartbeats(parts)?;
    let mut fenced = Vec::new();
    for session in &state.open {
        let Some(holder) = state.holder_of(session) else {
            continue;
        };
        let newest = heartbeats.get(&holder).map_or(0, |beat| beat.number);
        let silence = watch.look(now, holder, newest);
        let is_dead = LeaseWatch::is_silent(silence) || process::has_died(holder);
        if is_dead && fence(parts, vm.uuid, session)? {
            tracing::info!(vm = vm.name, %holder, ?silence, "ended a session whose holder is silent");
            fenced.push(FencedSession { vm: vm.clone(), session: Session(*session), holder });
        }
    }
    Ok(fenced)
}
