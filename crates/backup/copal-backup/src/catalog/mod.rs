//! The catalog: logs of immutable records that determine which VMs and snapshots exist.
//!
//! Format: docs/formats/backup-catalog.md v4
//! - [`record`]: the records and their bytes; [`fields`]: fields that other formats share.
//! - [`Catalog`]: the logs. [`files`]: the files of the volume.
//! - [`log`]: reading and creating records. [`replay`]: replay from the newest [`checkpoint`], cached.
//! - [`domain`], [`vm`], [`popular`]: states of the logs.
//! - [`epoch`]: counter of changes to packs. [`removals`]: packs listed for removal.
//! - [`heartbeats`]: heartbeats of processes with open sessions. [`agents`]: agents of a fleet.
//! - [`salvage`]: recovery without lost records. [`split`]: the change to signatures with the first role key.
//!
//! Invariants
//! - A record is created under the next number of its log, exclusively: an append is a compare-and-swap by a
//!   process that has read the log to its end.
//! - Every record carries a MAC over its file name and content.
//! - A snapshot exists from its Publish record to a Forget record, independent of other files.

pub(crate) mod agents;
pub(crate) mod checkpoint;
pub(crate) mod directory;
pub(crate) mod domain;
pub(crate) mod epoch;
pub(crate) mod fields;
pub(crate) mod files;
pub(crate) mod fold;
pub(crate) mod heartbeats;
pub(crate) mod log;
pub(crate) mod pins;
pub(crate) mod popular;
pub(crate) mod record;
pub(crate) mod removals;
pub(crate) mod replay;
pub(crate) mod salvage;
pub(crate) mod split;
pub(crate) mod vm;

use crate::keys::DomainKeys;
use crate::request::Vm;
use crate::request::error::{Error, Result};
use copal_volume::{VolumeId, VolumeStore};
use domain::DomainState;
use files::CatalogFiles;
use fold::LogEntry;
use log::{AppendOutcome, CreatedRecord, LogName};
use popular::PopularState;
use record::Record;
use replay::{ReplayCache, ReplayedLog, note_append, replay, write_due_checkpoint};
use std::sync::Arc;
use uuid::Uuid;
use vm::VmState;

/// The logs of one repository.
pub(crate) struct Catalog {
    files: CatalogFiles,
    domains: ReplayCache<DomainState>,
    vms: ReplayCache<VmState>,
    popular: ReplayCache<PopularState>,
}

impl Catalog {
    pub(crate) fn new(store: Arc<dyn VolumeStore>, vid: VolumeId, keys: Arc<DomainKeys>) -> Catalog {
        Catalog {
            files: CatalogFiles::new(store, vid, keys),
            domains: ReplayCache::default(),
            vms: ReplayCache::default(),
            popular: ReplayCache::default(),
        }
    }

    /// The files of the catalog volume.
    pub(crate) fn files(&self) -> &CatalogFiles {
        &self.files
    }

    /// State of the domain's log, read to its end.
    /// # Errors
    /// `Damaged`; errors of the store.
    pub(crate) fn domain(&self) -> Result<Arc<ReplayedLog<DomainState>>> {
        replay(&self.files, &self.domains, LogName::Domain)
    }

    /// State of a VM's log, read to its end.
    /// # Errors
    /// `Damaged`; errors of the store.
    pub(crate) fn vm(&self, vm: Uuid) -> Result<Arc<ReplayedLog<VmState>>> {
        replay(&self.files, &self.vms, LogName::Vm(vm))
    }

    /// State of a VM's log up to some record that this handle has read or appended; later records may be missing.
    /// # Errors
    /// As [`Catalog::vm`].
    pub(crate) fn known_vm(&self, vm: Uuid) -> Result<Arc<ReplayedLog<VmState>>> {
        match self.vms.of(LogName::Vm(vm)) {
            Some(known) => Ok(known),
            None => self.vm(vm),
        }
    }

    /// State of the log of popular packs, read to its end.
    /// # Errors
    /// `Damaged`; errors of the store.
    pub(crate) fn popular(&self) -> Result<Arc<ReplayedLog<PopularState>>> {
        replay(&self.files, &self.popular, LogName::Popular)
    }

    fn domains(&self) -> &ReplayCache<DomainState> {
        &self.domains
    }

    fn vms(&self) -> &ReplayCache<VmState> {
        &self.vms
    }

    /// Drops all cached replays.
    fn forget_replays(&self) {
        self.domains.forget_all();
        self.vms.forget_all();
        self.popular.forget_all();
    }

    /// Reads the whole domain's log, and calls `note` for each damage.
    /// # Errors
    /// Errors of the store that are not damage, and errors of `note`.
    pub(crate) fn examine_domain(&self, note: impl FnMut(Error) -> Result<()>) -> Result<DomainState> {
        replay::examine(&self.files, LogName::Domain, note)
    }

    /// Reads the whole log of a VM, and calls `note` for each damage. The state is that of the readable
    /// records.
    /// # Errors
    /// As [`Catalog::examine_domain`].
    pub(crate) fn examine_vm(&self, vm: Uuid, note: impl FnMut(Error) -> Result<()>) -> Result<VmState> {
        replay::examine(&self.files, LogName::Vm(vm), note)
    }

    /// One record.
    /// # Errors
    /// `Damaged`; errors of the store.
    pub(crate) fn record(&self, log: LogName, number: u64) -> Result<LogEntry> {
        log::record(&self.files, log, number)
    }

    /// The records from `first` on.
    /// # Errors
    /// `Damaged` if a record is damaged or missing.
    pub(crate) fn tail(&self, log: LogName, first: u64) -> Result<Vec<LogEntry>> {
        log::tail(&self.files, log, first)
    }

    /// Whether a log has a checkpoint of a higher number.
    /// # Errors
    /// Errors of the store.
    pub(crate) fn has_checkpoint_behind(&self, log: LogName, number: u64) -> Result<bool> {
        replay::has_checkpoint_behind(&self.files, log, number)
    }

    /// Creates record `number` of a log unless that number is taken. `Lost` may also be returned for a record
    /// that counts, if others wrote a checkpoint behind it at once; reading on tells.
    pub(crate) fn append(&self, log: LogName, number: u64, record: &Record) -> Result<AppendOutcome> {
        let files = &self.files;
        let CreatedRecord::Ours(entry) = log::create(files, log, number, record)? else {
            return Ok(AppendOutcome::Lost);
        };
        // The number may have been free only because a checkpoint covers it and its record was removed.
        if self.has_checkpoint_behind(log, number)? {
            return Ok(AppendOutcome::Lost);
        }
        match log {
            LogName::Domain => note_append(files, &self.domains, log, entry),
            LogName::Vm(_) => note_append(files, &self.vms, log, entry),
            LogName::Popular => note_append(files, &self.popular, log, entry),
        }
        Ok(AppendOutcome::Done)
    }

    /// Writes the checkpoints that are due. Where checkpoints are signed a backup cannot write them, so
    /// commands of the delete role do.
    pub(crate) fn write_due_checkpoints(&self, vms: &[Vm]) {
        write_due_checkpoint(&self.files, &self.domains, LogName::Domain);
        for vm in vms {
            write_due_checkpoint(&self.files, &self.vms, LogName::Vm(vm.uuid));
        }
    }
}
