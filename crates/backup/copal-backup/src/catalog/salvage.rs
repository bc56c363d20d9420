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

use super::Catalog;
use super::checkpoint;
use super::domain::DomainState;
use super::files::CatalogFiles;
use super::fold::LogState;
use super::log::{LogName, number_of};
use super::replay::is_checkpoint;
use crate::keys::SignatureState;
use crate::request::Vm;
use crate::request::error::{Error, Result};
use bytes::Bytes;
use copal_volume::{FileId, FileInfo};
use std::collections::BTreeSet;
use uuid::Uuid;

/// Files deleted at once.
const DELETED_AT_ONCE: usize = 1000;

/// Replaces every unreadable log by a checkpoint of its readable records. Returns the losses.
/// # Errors
/// Errors of the store that are not damage.
pub(crate) fn salvage_logs(catalog: &Catalog) -> Result<Vec<Error>> {
    let files = catalog.files();
    let mut lost = Vec::new();
    let mut domain = catalog.examine_domain(|error| {
        lost.push(error);
        Ok(())
    })?;
    for vm in unlisted(files, &domain)? {
        lost.push(Error::Damaged {
            what: format!("the name of VM {}", vm.simple()),
            detail: "it is missing".into(),
        });
        domain.vms.push(Vm { uuid: vm, name: format!("vm-{}", vm.simple()) });
    }
    if !lost.is_empty() {
        replace_log(files, LogName::Domain, &mut domain.clone())?;
    }
    for vm in &domain.vms {
        let before = lost.len();
        let mut state = catalog.examine_vm(vm.uuid, |error| {
            lost.push(error);
            Ok(())
        })?;
        if lost.len() > before {
            replace_log(files, LogName::Vm(vm.uuid), &mut state)?;
        }
    }
    catalog.forget_replays();
    Ok(lost)
}

/// VMs that have a log but no name.
fn unlisted(files: &CatalogFiles, domain: &DomainState) -> Result<BTreeSet<Uuid>> {
    let listed: BTreeSet<Uuid> = domain.vms.iter().map(|vm| vm.uuid).collect();
    let mut unlisted = BTreeSet::new();
    for prefix in ["v.", "c.v."] {
        files.for_each(prefix, |name, _| {
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
fn drop_forged(files: &CatalogFiles, log: LogName) -> Result<()> {
    if files.keys().signatures() != SignatureState::Needed {
        return Ok(());
    }
    let mut listed: Vec<(Bytes, FileInfo)> = Vec::new();
    files.for_each(&log.checkpoint_prefix(), |name, info| {
        listed.push((Bytes::copy_from_slice(name), info.clone()));
        Ok(())
    })?;
    let mut forged = Vec::new();
    for (name, info) in listed {
        if !is_checkpoint(files, &name, info.size)? {
            forged.push((name, info.fid));
        }
    }
    forged.chunks(DELETED_AT_ONCE).try_for_each(|covered| files.delete(covered))
}

/// Replaces the content of `log` by a checkpoint of `state`.
fn replace_log<S: LogState>(files: &CatalogFiles, log: LogName, state: &mut S) -> Result<()> {
    let mut next = state.next_number();
    let mut before: Vec<(Bytes, FileId)> = Vec::new();
    let first = log.first_removable().map(String::into_bytes);
    drop_forged(files, log)?;
    for prefix in [log.checkpoint_prefix(), log.prefix()] {
        files.for_each(&prefix, |name, info| {
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
    let body = Bytes::from(checkpoint::encode(state, &place, files.keys()));
    files.put(place.as_bytes(), body)?;
    before.chunks(DELETED_AT_ONCE).try_for_each(|covered| files.delete(covered))
}
