//! Salvage: makes logs with lost or damaged records readable again, without those records.
//!
//! The readable records become a checkpoint behind the last record, and everything before it is removed. A
//! lost record may have published a snapshot, or removed one. The caller determines afterwards which
//! snapshots are complete.
//!
//! Invariants
//! - A readable log is not changed.
//! - A VM of which only the log is left is listed again, under a name made of its UUID.
//!
//! Not here: the check of the snapshots (`copal repair store`).

use super::checkpoint;
use super::domain::DomainState;
use super::fold::LogState;
use super::log::{Catalog, LogName, number_of};
use crate::keys::SignatureState;
use crate::packs::volumes::for_each_file;
use crate::request::Vm;
use crate::request::error::{Error, Result};
use bytes::Bytes;
use copal_volume::{FileId, FileInfo, PutOptions};
use std::collections::BTreeSet;
use uuid::Uuid;

/// Files deleted at once.
const DELETED_AT_ONCE: usize = 1000;

impl Catalog {
    /// Replaces every unreadable log by a checkpoint of its readable records. Returns the losses.
    /// # Errors
    /// Errors of the store that are not damage.
    pub(crate) fn salvage(&self) -> Result<Vec<Error>> {
        let mut lost = Vec::new();
        let mut domain = self.examine_domain(|error| {
            lost.push(error);
            Ok(())
        })?;
        for vm in self.unlisted(&domain)? {
            lost.push(Error::Damaged {
                what: format!("the name of VM {}", vm.simple()),
                detail: "it is missing".into(),
            });
            domain.vms.push(Vm { uuid: vm, name: format!("vm-{}", vm.simple()) });
        }
        if !lost.is_empty() {
            self.replace_log(LogName::Domain, &mut domain.clone())?;
        }
        for vm in &domain.vms {
            let before = lost.len();
            let mut state = self.examine_vm(vm.uuid, |error| {
                lost.push(error);
                Ok(())
            })?;
            if lost.len() > before {
                self.replace_log(LogName::Vm(vm.uuid), &mut state)?;
            }
        }
        self.forget_replays();
        Ok(lost)
    }

    /// VMs that have a log but no name.
    fn unlisted(&self, domain: &DomainState) -> Result<BTreeSet<Uuid>> {
        let listed: BTreeSet<Uuid> = domain.vms.iter().map(|vm| vm.uuid).collect();
        let mut unlisted = BTreeSet::new();
        for prefix in ["v.", "c.v."] {
            for_each_file(&*self.store, self.vid, prefix.as_bytes(), |name, _| {
                let name = String::from_utf8_lossy(name);
                let digits = name.strip_prefix(prefix).and_then(|rest| rest.split('.').next());
                let vm = digits.and_then(|digits| Uuid::try_parse(digits).ok());
                unlisted.extend(vm.filter(|vm| !listed.contains(vm)));
                Ok(())
            })?;
        }
        Ok(unlisted)
    }

    /// Deletes checkpoints that lack their signature. Their numbers are arbitrary.
    fn drop_forged(&self, log: LogName) -> Result<()> {
        if self.keys.signatures() != SignatureState::Needed {
            return Ok(());
        }
        let mut listed: Vec<(Bytes, FileInfo)> = Vec::new();
        for_each_file(&*self.store, self.vid, log.checkpoint_prefix().as_bytes(), |name, info| {
            listed.push((Bytes::copy_from_slice(name), info.clone()));
            Ok(())
        })?;
        let mut forged = Vec::new();
        for (name, info) in listed {
            if !self.is_checkpoint(&name, info.size)? {
                forged.push((name, info.fid));
            }
        }
        forged.chunks(DELETED_AT_ONCE).try_for_each(|files| self.delete(files))
    }

    /// Replaces the content of `log` by a checkpoint of `state`.
    fn replace_log<S: LogState>(&self, log: LogName, state: &mut S) -> Result<()> {
        let mut next = state.next_number();
        let mut before: Vec<(Bytes, FileId)> = Vec::new();
        let first = log.first_removable().map(String::into_bytes);
        self.drop_forged(log)?;
        for prefix in [log.checkpoint_prefix(), log.prefix()] {
            for_each_file(&*self.store, self.vid, prefix.as_bytes(), |name, info| {
                if let Ok(number) = number_of(&prefix, name) {
                    next = next.max(number.saturating_add(1));
                }
                if first.as_deref() != Some(name) {
                    before.push((Bytes::copy_from_slice(name), info.fid));
                }
                Ok(())
            })?;
        }
        state.set_next_number(next);
        let place = log.checkpoint_place(next);
        let body = Bytes::from(checkpoint::encode(state, &place, &self.keys));
        self.store.put(self.vid, place.as_bytes(), body, &PutOptions::default())?;
        before.chunks(DELETED_AT_ONCE).try_for_each(|files| self.delete(files))
    }
}
