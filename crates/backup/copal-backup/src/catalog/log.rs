//! Names, reads and creates the records of the logs.
//!
//! Not here: checkpoints, and the cache of replayed logs (`replay`).

use super::files::CatalogFiles;
use super::fold::LogEntry;
use super::record::Record;
use crate::keys::SignatureState;
use crate::request::error::{Error, Result};
use bytes::Bytes;
use copal_volume::{FilePage, ReadOptions, VolumeError};
use uuid::Uuid;

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

/// Outcome of the creation of a record.
pub(super) enum CreatedRecord {
    /// The number is this record's. The record as it reads, unless its time is not known.
    Ours(Option<LogEntry>),
    /// Another process has the number.
    Lost,
}

/// One record.
/// # Errors
/// `Damaged`; errors of the store.
pub(super) fn record(files: &CatalogFiles, log: LogName, number: u64) -> Result<LogEntry> {
    let place = log.place(number);
    let info = files.store().stat(files.vid(), place.as_bytes(), &ReadOptions::default())?;
    let body = files.get(place.as_bytes(), MAX_RECORD_BYTES + 1);
    decode(files, &place, number, info.created_ms, body)
}

/// The records from `first` on.
/// # Errors
/// `Damaged` if a record is damaged or missing.
pub(super) fn tail(files: &CatalogFiles, log: LogName, first: u64) -> Result<Vec<LogEntry>> {
    let mut entries = Vec::new();
    read_from(files, log, first, first, |_, outcome| {
        entries.push(outcome?);
        Ok(())
    })?;
    Ok(entries)
}

/// Calls `visit` for each record of a log, with the record or its damage. Records below `needed` may be
/// missing.
pub(super) fn read_each(
    files: &CatalogFiles,
    log: LogName,
    needed: u64,
    visit: impl FnMut(u64, Result<LogEntry>) -> Result<()>,
) -> Result<()> {
    read_from(files, log, 0, needed, visit)
}

fn read_from(
    files: &CatalogFiles,
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
        let FilePage { files: page, is_last } = files.strict_page(&prefix, after.as_deref())?;
        let Some((last, _)) = page.last() else {
            return Ok(());
        };
        after = Some(last.clone());
        let names: Vec<Bytes> = page.iter().map(|(name, _)| name.clone()).collect();
        let bodies = files.store().get_batch(files.vid(), &names, &ReadOptions::default())?;
        for ((name, info), body) in page.iter().zip(bodies) {
            let place = String::from_utf8_lossy(name).into_owned();
            let number = number_of(&prefix, name)?;
            while expected < number {
                visit(expected, Err(missing(log, expected)))?;
                expected += 1;
            }
            expected = expected.max(number.saturating_add(1));
            visit(number, decode(files, &place, number, info.created_ms, body))?;
        }
        if is_last {
            return Ok(());
        }
    }
}

fn decode(
    files: &CatalogFiles,
    place: &str,
    number: u64,
    created_ms: u64,
    body: std::result::Result<Bytes, VolumeError>,
) -> Result<LogEntry> {
    let body = match body {
        // The batch reached its size limit, or the file is too long for a record: read it alone.
        Err(VolumeError::TooLarge { .. }) => files.get(place.as_bytes(), MAX_RECORD_BYTES + 1),
        body => body,
    };
    let body = match body {
        Err(VolumeError::Corrupt { what }) => return Err(damaged_record(place, what)),
        body => body?,
    };
    let mut record =
        Record::decode(&body, place, files.keys()).map_err(|detail| damaged_record(place, detail))?;
    if let Record::Void { code } = record {
        tracing::warn!(place, kind = code, "record without the signature of the delete role ignored");
    }
    if let Record::Publish { clock_ms, is_dated: false, .. } = &mut record
        && files.keys().signatures() == SignatureState::Needed
    {
        // Where role keys exist, the file's time counts unless the delete role signed another one: a backup key must not
        // choose the time of a snapshot.
        *clock_ms = Some(created_ms);
    }
    Ok(LogEntry { number, created_ms, record })
}

/// Creates record `number` of a log unless that number is taken.
pub(super) fn create(
    files: &CatalogFiles,
    log: LogName,
    number: u64,
    record: &Record,
) -> Result<CreatedRecord> {
    files.may_write(record.role())?;
    let place = log.place(number);
    let body = Bytes::from(record.encode(&place, files.keys()));
    match files.put(place.as_bytes(), body.clone()) {
        // As a reader sees it.
        Ok(info) => {
            decode(files, &place, number, info.created_ms, Ok(body)).map(Some).map(CreatedRecord::Ours)
        }
        Err(VolumeError::Exists { .. }) => Ok(CreatedRecord::Lost),
        Err(VolumeError::Unknown { fid }) => match files.settled(fid)? {
            true => Ok(CreatedRecord::Ours(None)),
            false => Ok(CreatedRecord::Lost),
        },
        Err(error) => Err(error.into()),
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

/// Error of a record that is missing before the end of the log.
pub(super) fn missing(log: LogName, number: u64) -> Error {
    damaged_record(&log.place(number), "it is missing")
}
