//! Change to role keys: with the first role key, each record that removes something must be signed.
//!
//! Each log gets a Roles record behind all others, then a signed checkpoint; everything before that is
//! removed. So no record is left to which the old rule would apply. At last a file of its own states it for
//! the whole repository.
//!
//! Invariants
//! - A handle that was open before reads a signature before it appends, since it appends behind all records.
//!   From then on it signs too (`keys`).
//! - The process may die at any step; the change is repeatable.

use super::Catalog;
use super::files::CatalogFiles;
use super::fold::LogState;
use super::log::{AppendOutcome, LogName, number_of};
use super::record::Record;
use super::replay::{ReplayCache, replay, write_checkpoint};
use crate::keys::{DomainKeys, SignatureState};
use crate::request::error::{Error, Result};
use bytes::Bytes;
use copal_volume::{FileId, ReadOptions, VolumeError, VolumeId, VolumeStore};

/// The file of a repository that has had role keys.
const PLACE: &str = "roles";
/// Larger than any record without fields.
const MAX_FILE_BYTES: u64 = 4 << 10;
/// Attempts to write a checkpoint. Another key holder may have created a file of that name; then the next
/// number is used.
const TRIES: usize = 16;
/// Files deleted at once.
const DELETED_AT_ONCE: usize = 1000;

/// Whether a repository has had role keys; if so, its keys require signatures. `keys` are derived from the
/// master key.
/// # Errors
/// `Damaged`: the file lacks the signature. Errors of the store.
pub(crate) fn has_roles(store: &dyn VolumeStore, vid: VolumeId, keys: &DomainKeys) -> Result<bool> {
    let damaged =
        |detail: String| Error::Damaged { what: "the file that marks the use of role keys".into(), detail };
    let read = ReadOptions::default();
    match store.get(vid, PLACE.as_bytes(), 0..MAX_FILE_BYTES, &read) {
        Ok(bytes) => match Record::decode(&bytes, PLACE, keys).map_err(damaged)? {
            Record::Roles if keys.signatures() == SignatureState::Needed => Ok(true),
            _ => Err(damaged("it lacks the signature of the delete role".into())),
        },
        Err(VolumeError::NotFound) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Signs all logs, and requires signatures from then on. `prepare` makes sure that no removal list is
/// unfinished. The caller has the master key.
/// # Errors
/// `Busy`: a VM is being backed up. `Damaged`; errors of the store and of `prepare`.
pub(crate) fn begin_signing(catalog: &Catalog, prepare: impl FnOnce() -> Result<()>) -> Result<()> {
    let keys = catalog.files().keys();
    // A process that died half way has left both signed and unsigned logs.
    keys.set_signatures(SignatureState::Begun);
    catalog.forget_replays();
    let outcome = prepare().and_then(|()| sign_all(catalog));
    keys.set_signatures(match &outcome {
        Ok(()) => SignatureState::Needed,
        Err(_) => SignatureState::None,
    });
    catalog.forget_replays();
    outcome
}

fn sign_all(catalog: &Catalog) -> Result<()> {
    loop {
        let domain = catalog.domain()?;
        for vm in &domain.vms {
            sign_vm(catalog, LogName::Vm(vm.uuid), &vm.name)?;
        }
        // The record must stand behind the list of VMs that was read. If a VM was added meanwhile, the
        // next round signs its log too.
        let next = domain.next_number;
        if let AppendOutcome::Done = catalog.append(LogName::Domain, next, &Record::Roles)? {
            break;
        }
    }
    leave_signed(catalog, catalog.domains(), LogName::Domain)?;
    let files = catalog.files();
    let file = Bytes::from(Record::Roles.encode(PLACE, files.keys()));
    match files.put(PLACE.as_bytes(), file) {
        Ok(_) | Err(VolumeError::Exists { .. }) => Ok(()),
        Err(VolumeError::Unknown { fid }) if files.settled(fid)? => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn sign_vm(catalog: &Catalog, log: LogName, name: &str) -> Result<()> {
    let LogName::Vm(vm) = log else {
        return Ok(());
    };
    loop {
        let state = catalog.vm(vm)?;
        if !state.open.is_empty() {
            return Err(Error::Busy {
                what: format!("VM {name} (`copal sessions fence {name}` ends a backup whose host has died)"),
            });
        }
        if let AppendOutcome::Done = catalog.append(log, state.next_number, &Record::Roles)? {
            return leave_signed(catalog, catalog.vms(), log);
        }
    }
}

/// Reduces a log to a signed checkpoint and later records.
fn leave_signed<S: LogState>(catalog: &Catalog, replays: &ReplayCache<S>, log: LogName) -> Result<()> {
    let files = catalog.files();
    for _ in 0..TRIES {
        let replayed = replay(files, replays, log)?;
        let number = replayed.next_number();
        if replayed.has_checkpoint_at(number) || write_checkpoint(files, replays, log, &replayed)? {
            return drop_below(files, log, number);
        }
        catalog.append(log, number, &Record::Roles)?;
    }
    Err(Error::Invalid {
        reason: format!("the log {} cannot be given a checkpoint; nothing was added", log.prefix()),
    })
}

/// Deletes all files that checkpoint `number` covers.
fn drop_below(files: &CatalogFiles, log: LogName, number: u64) -> Result<()> {
    let mut before: Vec<(Bytes, FileId)> = Vec::new();
    let first = log.first_removable().map(String::into_bytes);
    for prefix in [log.checkpoint_prefix(), log.prefix()] {
        files.for_each(&prefix, |name, info| {
            if number_of(&prefix, name)? < number && first.as_deref() != Some(name) {
                before.push((Bytes::copy_from_slice(name), info.fid));
            }
            Ok(())
        })?;
    }
    before.chunks(DELETED_AT_ONCE).try_for_each(|covered| files.delete(covered))
}
