//! Appends to and reads the logs of the catalog volume.
//!
//! Not here: checkpoints, and the cache of replayed logs (`replay`).

use super::domain::DomainState;
use super::fold::LogEntry;
use super::popular::PopularState;
use super::record::Record;
use super::replay::{ReplayCache, ReplayedLog, missing};
use super::vm::VmState;
use crate::keys::role::Role;
use crate::keys::{DomainKeys, SignatureState};
use crate::packs::volumes::settled;
use crate::request::error::{Error, Result};
use bytes::Bytes;
use copal_volume::{PutOptions, ReadOptions, VolumeError, VolumeId, VolumeStore};
use std::sync::Arc;
use uuid::Uuid;

/// Records in one page of a listing.
pub(super) const PAGE: usize = 1000;
/// Longest record. A longer file is read one byte beyond this, so that its envelope refuses it.
const MAX_RECORD_BYTES: u64 = 64 << 10;

/// Name of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LogName {
    /// The domain's log: its policy and its VMs.
    Domain,
    /// The log of one VM: its sessions and snapshots.
    Vm(Uuid),
    /// The log of a fleet's popular packs.
    Popular,
}

impl LogName {
    pub(super) fn prefix(self) -> String {
        match self {
            LogName::Domain => "d.".into(),
            LogName::Vm(vm) => format!("v.{}.", vm.simple()),
            LogName::Popular => "k.".into(),
        }
    }
    pub(super) fn checkpoint_prefix(self) -> String {
        format!("c.{}", self.prefix())
    }
    /// File name of the checkpoint that covers all records below `number`.
    pub(crate) fn checkpoint_place(self, number: u64) -> String {
        format!("{}{number:016x}", self.checkpoint_prefix())
    }
    /// The record behind which records may be removed; `None`: all may.
    pub(super) fn first_removable(self) -> Option<String> {
        match self {
            LogName::Domain => Some(self.place(0)),
            LogName::Vm(_) | LogName::Popular => None,
        }
    }
    /// File name of record `number`; names ascend with numbers.
    pub(crate) fn place(self, number: u64) -> String {
        format!("{}{number:016x}", self.prefix())
    }
}

/// Outcome of an append.
pub(crate) enum AppendOutcome {
    /// The record has that number now.
    Done,
    /// Another process's record has that number: read on and decide again.
    Lost,
}

/// The logs of one repository.
pub(crate) struct Catalog {
    pub(super) store: Arc<dyn VolumeStore>,
    pub(crate) vid: VolumeId,
    pub(super) keys: Arc<DomainKeys>,
    domains: ReplayCache<DomainState>,
    vms: ReplayCache<VmState>,
    popular: ReplayCache<PopularState>,
}

impl Catalog {
    pub(crate) fn new(store: Arc<dyn VolumeStore>, vid: VolumeId, keys: Arc<DomainKeys>) -> Catalog {
        Catalog {
            store,
            vid,
            keys,
            domains: ReplayCache::default(),
            vms: ReplayCache::default(),
            popular: ReplayCache::default(),
        }
    }

    /// State of the domain's log, read to its end.
    /// # Errors
    /// `Damaged`; errors of the store.
    pub(crate) fn domain(&self) -> Result<Arc<ReplayedLog<DomainState>>> {
        self.replay(&self.domains, LogName::Domain)
    }

    /// State of a VM's log, read to its end.
    /// # Errors
    /// `Damaged`; errors of the store.
    pub(crate) fn vm(&self, vm: Uuid) -> Result<Arc<ReplayedLog<VmState>>> {
        self.replay(&self.vms, LogName::Vm(vm))
    }

    /// State of the log of popular packs, read to its end.
    /// # Errors
    /// `Damaged`; errors of the store.
    pub(crate) fn popular(&self) -> Result<Arc<ReplayedLog<PopularState>>> {
        self.replay(&self.popular, LogName::Popular)
    }

    pub(super) fn domains(&self) -> &ReplayCache<DomainState> {
        &self.domains
    }

    pub(super) fn vms(&self) -> &ReplayCache<VmState> {
        &self.vms
    }

    /// Drops all cached replays.
    pub(super) fn forget_replays(&self) {
        self.domains.forget_all();
        self.vms.forget_all();
        self.popular.forget_all();
    }

    /// Reads the whole domain's log, and calls `note` for each damage.
    /// # Errors
    /// Errors of the store that are not damage, and errors of `note`.
    pub(crate) fn examine_domain(&self, note: impl FnMut(Error) -> Result<()>) -> Result<DomainState> {
        self.examine(LogName::Domain, note)
    }

    /// Reads the whole log of a VM, and calls `note` for each damage. The state is that of the readable
    /// records.
    /// # Errors
    /// As [`Catalog::examine_domain`].
    pub(crate) fn examine_vm(&self, vm: Uuid, note: impl FnMut(Error) -> Result<()>) -> Result<VmState> {
        self.examine(LogName::Vm(vm), note)
    }

    /// One record.
    /// # Errors
    /// `Damaged`; errors of the store.
    pub(crate) fn record(&self, log: LogName, number: u64) -> Result<LogEntry> {
        let place = log.place(number);
        let read = ReadOptions::default();
        let info = self.store.stat(self.vid, place.as_bytes(), &read)?;
        let body = self.store.get(self.vid, place.as_bytes(), 0..MAX_RECORD_BYTES + 1, &read);
        self.decode(&place, number, info.created_ms, body)
    }

    /// The records from `first` on.
    /// # Errors
    /// `Damaged` if a record is damaged or missing.
    pub(crate) fn tail(&self, log: LogName, first: u64) -> Result<Vec<LogEntry>> {
        let mut entries = Vec::new();
        self.read_from(log, first, first, |_, outcome| {
            entries.push(outcome?);
            Ok(())
        })?;
        Ok(entries)
    }

    /// Calls `visit` for each record of a log, with the record or its damage. Records below `needed` may be
    /// missing.
    pub(super) fn read_each(
        &self,
        log: LogName,
        needed: u64,
        visit: impl FnMut(u64, Result<LogEntry>) -> Result<()>,
    ) -> Result<()> {
        self.read_from(log, 0, needed, visit)
    }

    fn read_from(
        &self,
        log: LogName,
        first: u64,
        needed: u64,
        mut visit: impl FnMut(u64, Result<LogEntry>) -> Result<()>,
    ) -> Result<()> {
        let prefix = log.prefix();
        let mut expected = needed;
        let mut after = first.checked_sub(1).map(|before| Bytes::from(log.place(before)));
        loop {
            // The end of the list is taken for the end of the log, and the next record relies on all earlier
            // ones. An acknowledged Fence or Retired must be listed, so the listing is strict.
            let page =
                self.store.list(self.vid, prefix.as_bytes(), after.as_deref(), PAGE, &ReadOptions::STRICT)?;
            let Some((last, _)) = page.last() else {
                return Ok(());
            };
            after = Some(last.clone());
            let names: Vec<Bytes> = page.iter().map(|(name, _)| name.clone()).collect();
            let bodies = self.store.get_batch(self.vid, &names, &ReadOptions::default())?;
            for ((name, info), body) in page.iter().zip(bodies) {
                let place = String::from_utf8_lossy(name).into_owned();
                let number = number_of(&prefix, name)?;
                while expected < number {
                    visit(expected, Err(missing(log, expected)))?;
                    expected += 1;
                }
                expected = expected.max(number.saturating_add(1));
                visit(number, self.decode(&place, number, info.created_ms, body))?;
            }
        }
    }

    fn decode(
        &self,
        place: &str,
        number: u64,
        created_ms: u64,
        body: std::result::Result<Bytes, VolumeError>,
    ) -> Result<LogEntry> {
        let body = match body {
            // The batch reached its size limit, or the file is too long for a record: read it alone.
            Err(VolumeError::TooLarge { .. }) => {
                let range = 0..MAX_RECORD_BYTES + 1;
                self.store.get(self.vid, place.as_bytes(), range, &ReadOptions::default())
            }
            body => body,
        };
        let body = match body {
            Err(VolumeError::Corrupt { what }) => return Err(damaged_record(place, what)),
            body => body?,
        };
        let mut record =
            Record::decode(&body, place, &self.keys).map_err(|detail| damaged_record(place, detail))?;
        if let Record::Void { code } = record {
            tracing::warn!(place, kind = code, "record without the signature of the delete role ignored");
        }
        if let Record::Publish { clock_ms, .. } = &mut record
            && self.keys.signatures() == SignatureState::Needed
        {
            // Where role keys exist, the file's time counts: a backup key must not choose the time of a
            // snapshot.
            *clock_ms = Some(created_ms);
        }
        Ok(LogEntry { number, created_ms, record })
    }

    /// Refuses to write a record that would be ignored.
    /// # Errors
    /// `Denied`.
    pub(super) fn may_write(&self, role: Role) -> Result<()> {
        match role {
            Role::Delete if !self.keys.can_sign() => self.keys.roles().require(role),
            _ => Ok(()),
        }
    }

    /// Creates record `number` of a log unless that number is taken. `Lost` may also be returned for a record
    /// that counts, if others wrote a checkpoint behind it at once; reading on tells.
    pub(crate) fn append(&self, log: LogName, number: u64, record: &Record) -> Result<AppendOutcome> {
        let outcome = self.create(log, number, record)?;
        if let AppendOutcome::Done = outcome {
            // The number may have been free only because a checkpoint covers it and its record was removed.
            if self.has_checkpoint_behind(log, number)? {
                return Ok(AppendOutcome::Lost);
            }
            match log {
                LogName::Domain => self.write_due_checkpoint(&self.domains, log),
                LogName::Vm(_) => self.write_due_checkpoint(&self.vms, log),
                LogName::Popular => self.write_due_checkpoint(&self.popular, log),
            }
        }
        Ok(outcome)
    }

    fn create(&self, log: LogName, number: u64, record: &Record) -> Result<AppendOutcome> {
        self.may_write(record.role())?;
        let place = log.place(number);
        let body = Bytes::from(record.encode(&place, &self.keys));
        match self.store.put(self.vid, place.as_bytes(), body, &PutOptions::default()) {
            Ok(_) => Ok(AppendOutcome::Done),
            Err(VolumeError::Exists { .. }) => Ok(AppendOutcome::Lost),
            Err(VolumeError::Unknown { fid }) => match settled(&*self.store, self.vid, fid)? {
                true => Ok(AppendOutcome::Done),
                false => Ok(AppendOutcome::Lost),
            },
            Err(error) => Err(error.into()),
        }
    }
}

/// The number at the end of the name of a record or checkpoint file.
pub(super) fn number_of(prefix: &str, name: &[u8]) -> Result<u64> {
    let text = String::from_utf8_lossy(name);
    text.strip_prefix(prefix)
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .filter(|number| text == format!("{prefix}{number:016x}"))
        .ok_or_else(|| damaged_record(&text, "its name is no record's"))
}

pub(super) fn damaged_record(place: &str, detail: impl Into<String>) -> Error {
    Error::Damaged { what: format!("catalog record {place}"), detail: detail.into() }
}
