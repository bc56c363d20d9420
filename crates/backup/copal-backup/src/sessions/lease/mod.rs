//! Leases of sessions in a fleet on several servers: who holds a session, whether it is alive, and ending
//! those of the dead.
//!
//! Whoever holds sessions leaves a sign of life every minute ([`beating`]). Who wants to back up the same VM,
//! and any agent, watches ([`watch`]) and may end a session whose holder has left none for ten minutes by the
//! watcher's own clock. Clocks decide when that is, and never whether it is safe: a session that was ended
//! cannot publish (BAK-5), however alive it is.
//!
//! Design: docs/design/backup.md#sessions-of-a-fleet BAK-21
//! Not here: records of sessions (`backup::session`). On one machine, or in the layout solo, nobody beats or
//! watches: the lock of the store, or the right to write, proves that whoever opened a session is gone.

mod agents;
pub(crate) mod beating;
pub(crate) mod fence;
pub(crate) mod process;
pub(crate) mod sessions;
pub(crate) mod watch;

use crate::api::repository::Repository;
use crate::catalog::record::MAX_NAME_BYTES;
use crate::request::error::{Error, Result};
use crate::request::open_session::{Holder, HolderInfo, OpenSession, Session};
use crate::request::words::is_plain;
use crate::request::{FencedSession, Vm};
use crate::sessions::parts::Parts;
use beating::{Beating, Heart};
use fence::fence;
use sessions::{info, newest_beats, open_sessions, with_holders};
use std::sync::Arc;
use std::time::Duration;
use watch::LeaseWatch;

impl Repository {
    /// Leaves signs of life until the guard is dropped: the first at once, then one a minute. Several guards
    /// of a process that say the same share them. A backup does so by itself, as its request says, unless
    /// somebody in this process does already.
    /// # Errors
    /// `Invalid`: name or address is longer than 255 bytes, or steers a terminal. Those of the store.
    pub fn beat(&self, holder: &Holder) -> Result<Beating> {
        for (what, text) in [("name", &holder.name), ("address", &holder.address)] {
            if text.len() > MAX_NAME_BYTES || !is_plain(text) {
                return Err(Error::Invalid {
                    reason: format!(
                        "{text:?} cannot be the {what} of whoever backs up: at most {MAX_NAME_BYTES} bytes, none that steers a terminal"
                    ),
                });
            }
        }
        let shared = self.parts.locks().heart();
        // Several agents in one process are several to those who look for them.
        let beating = match shared.begin_as(self.parts.catalog(), holder)? {
            Some(beating) => beating,
            None => Arc::<Heart>::default().begin(self.parts.catalog(), holder)?,
        };
        if let Err(error) = self.parts.catalog().clear_beats() {
            tracing::debug!(%error, "signs of life of holders that are gone stay");
        }
        Ok(beating)
    }

    /// Signs of life for a session, whoever says them.
    pub(crate) fn beat_for_session(&self, holder: &Holder) -> Result<Beating> {
        self.parts.locks().heart().begin(self.parts.catalog(), holder)
    }

    /// Everybody who has left a sign of life and not ended since, by holder; those whose process has died
    /// stay for a week.
    /// # Errors
    /// Those of the store.
    pub fn holders(&self) -> Result<Vec<HolderInfo>> {
        let mut infos = Vec::new();
        for beat in newest_beats(&self.parts)?.values() {
            infos.push(info(&self.parts, beat)?);
        }
        infos.sort_by_key(|info| info.holder.0);
        Ok(infos)
    }

    /// Backups that have begun and not ended, by VM: those that run, and those whose process has died.
    /// # Errors
    /// `Damaged`; those of the store.
    pub fn sessions(&self) -> Result<Vec<(Vm, Vec<OpenSession>)>> {
        let mut beats = None;
        let mut found = Vec::new();
        for vm in self.parts.directory().all()? {
            let state = self.parts.vm_state(vm.uuid)?;
            if !state.open.is_empty() {
                let beats = match &mut beats {
                    Some(beats) => beats,
                    None => beats.insert(newest_beats(&self.parts)?),
                };
                found.push((vm, with_holders(&self.parts, &state, beats)?));
            }
        }
        Ok(found)
    }

    /// Looks at all sessions at `now`, by a monotonic clock of the observer who has `watch`, and ends those
    /// whose holder has left no new sign of life for ten minutes of it. Returns those. To be called every
    /// minute or so; who calls less often ends them later. Does nothing where nobody beats: in the layout
    /// solo, and on one machine.
    /// # Errors
    /// `Damaged`; those of the store.
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

    /// As [`Repository::watch_leases`], of one VM. Returns the sessions that are open still; none: the VM can
    /// be backed up.
    /// # Errors
    /// As [`Repository::watch_leases`].
    pub fn watch_vm(&self, vm: &str, watch: &mut LeaseWatch, now: Duration) -> Result<Vec<OpenSession>> {
        if !self.parts.is_written_by_several() {
            return Ok(Vec::new());
        }
        let vm = match self.parts.directory().find(vm) {
            // Its first backup enters it.
            Err(Error::NotFound { .. }) => return Ok(Vec::new()),
            found => found?,
        };
        fence_silent(&self.parts, &vm, watch, now)?;
        open_sessions(&self.parts, vm.uuid)
    }
}

/// Ends the sessions of a VM whose holders are silent. One whose record names no holder is left to people.
fn fence_silent(parts: &Parts, vm: &Vm, watch: &mut LeaseWatch, now: Duration) -> Result<Vec<FencedSession>> {
    let state = parts.vm_state(vm.uuid)?;
    if state.open.is_empty() {
        return Ok(Vec::new());
    }
    // Behind the sessions: a holder beats before it opens one.
    let beats = newest_beats(parts)?;
    let mut fenced = Vec::new();
    for session in &state.open {
        let Some(holder) = state.holder_of(session) else {
            continue;
        };
        let newest = beats.get(&holder).map_or(0, |beat| beat.number);
        let silence = watch.look(now, holder, newest);
        let is_dead = LeaseWatch::is_silent(silence) || process::has_died(holder);
        if is_dead && fence(parts, vm.uuid, session)? {
            tracing::info!(vm = vm.name, %holder, ?silence, "ended a session whose holder is silent");
            fenced.push(FencedSession { vm: vm.clone(), session: Session(*session), holder });
        }
    }
    Ok(fenced)
}
