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

pub(crate) mod agents;
pub(crate) mod fence;
pub(crate) mod heartbeat;
pub(crate) mod process;
pub(crate) mod sessions;
pub(crate) mod watch;

use crate::catalog::heartbeats::clear_heartbeats;
use crate::catalog::record::MAX_NAME_BYTES;
use crate::request::error::{Error, Result};
use crate::request::open_session::{Holder, HolderId, HolderInfo, OpenSession, Session};
use crate::request::words::is_plain;
use crate::request::{FencedSession, Vm};
use crate::sessions::parts::RepositoryParts;
use fence::fence;
use heartbeat::{HeartbeatGuard, HeartbeatThread};
use sessions::{info, newest_heartbeats, open_sessions, with_holders};
use std::sync::Arc;
use std::time::Duration;
use watch::LeaseWatch;

/// Carries out `Repository::beat`.
pub(crate) fn beat(parts: &RepositoryParts, holder: &Holder) -> Result<HeartbeatGuard> {
    for (what, text) in [("name", &holder.name), ("address", &holder.address)] {
        if text.len() > MAX_NAME_BYTES || !is_plain(text) {
            return Err(Error::Invalid {
                reason: format!(
                    "{text:?} cannot be the {what} of a holder: at most {MAX_NAME_BYTES} bytes without control characters"
                ),
            });
        }
    }
    let shared = parts.locks().heartbeat_thread();
    // Several agents in one process appear as several holders.
    let beating = match shared.begin_as(parts.catalog(), holder)? {
        Some(beating) => beating,
        None => Arc::<HeartbeatThread>::default().begin(parts.catalog(), holder)?,
    };
    if let Err(error) = clear_heartbeats(parts.catalog().files()) {
        tracing::debug!(%error, "heartbeats of dead holders could not be removed");
    }
    Ok(beating)
}

/// Holder of the session of a backup, and its heartbeats while the backup runs.
pub(crate) struct SessionHolder<'a> {
    holder: &'a Holder,
    beating: Option<HeartbeatGuard>,
}

impl<'a> SessionHolder<'a> {
    /// A holder that has no heartbeat yet.
    pub(crate) fn new(holder: &'a Holder) -> SessionHolder<'a> {
        SessionHolder { holder, beating: None }
    }

    /// The holder that a session names; its first heartbeat is durable. `None`: sessions name none here.
    pub(crate) fn begin(&mut self, parts: &RepositoryParts) -> Result<Option<HolderId>> {
        if self.beating.is_none() && parts.is_written_by_several() {
            // Shared with any holder of this process.
            self.beating = Some(parts.locks().heartbeat_thread().begin(parts.catalog(), self.holder)?);
        }
        Ok(self.beating.as_ref().map(HeartbeatGuard::holder))
    }
}

/// Carries out `Repository::holders`.
pub(crate) fn list_holders(parts: &RepositoryParts) -> Result<Vec<HolderInfo>> {
    let mut infos = Vec::new();
    for beat in newest_heartbeats(parts)?.values() {
        infos.push(info(parts, beat)?);
    }
    infos.sort_by_key(|info| info.holder.0);
    Ok(infos)
}

/// Carries out `Repository::sessions`.
pub(crate) fn list_sessions(parts: &RepositoryParts) -> Result<Vec<(Vm, Vec<OpenSession>)>> {
    let mut heartbeats = None;
    let mut found = Vec::new();
    for vm in parts.directory().all()? {
        let state = parts.vm_state(vm.uuid)?;
        if !state.open.is_empty() {
            let heartbeats = match &mut heartbeats {
                Some(heartbeats) => heartbeats,
                None => heartbeats.insert(newest_heartbeats(parts)?),
            };
            found.push((vm, with_holders(parts, &state, heartbeats)?));
        }
    }
    Ok(found)
}

/// Carries out `Repository::watch_leases`.
pub(crate) fn watch_leases(
    parts: &RepositoryParts,
    watch: &mut LeaseWatch,
    now: Duration,
) -> Result<Vec<FencedSession>> {
    let mut fenced = Vec::new();
    if !parts.is_written_by_several() {
        return Ok(fenced);
    }
    look_again(parts);
    // One list shows all heartbeats. The logs of all VMs are read only if a holder may be dead.
    let heartbeats = newest_heartbeats(parts)?;
    let may_be_dead = heartbeats.values().filter(|beat| {
        let silence = watch.look(now, beat.holder, beat.number);
        LeaseWatch::is_silent(silence) || process::has_died(beat.holder)
    });
    let suspects = may_be_dead.map(|beat| (beat.holder, beat.number)).collect();
    if !watch.must_read_logs(now, &suspects) {
        return Ok(fenced);
    }
    for vm in parts.directory().all()? {
        fenced.extend(fence_silent(parts, &vm, watch, now)?);
    }
    watch.note_logs_read(now, suspects);
    Ok(fenced)
}

/// Carries out `Repository::watch_vm`.
pub(crate) fn watch_vm(
    parts: &RepositoryParts,
    vm: &str,
    watch: &mut LeaseWatch,
    now: Duration,
) -> Result<Vec<OpenSession>> {
    if !parts.is_written_by_several() {
        return Ok(Vec::new());
    }
    look_again(parts);
    let vm = match parts.directory().find(vm) {
        // Its first backup adds it.
        Err(Error::NotFound { .. }) => return Ok(Vec::new()),
        found => found?,
    };
    fence_silent(parts, &vm, watch, now)?;
    open_sessions(parts, vm.uuid)
}

/// Lets an observer see the present state: sessions and heartbeats change while it watches.
fn look_again(parts: &RepositoryParts) {
    parts.pack_store().volumes.store.release_lists();
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
