//! Appending to and reading the logs of the catalog volume.

use super::record::Record;
use crate::error::{Error, Result};
use crate::keys::Keys;
use crate::volumes::settled;
use bytes::Bytes;
use copal_volume::{PutOptions, ReadOptions, VolumeError, VolumeId, VolumeStore};
use std::sync::Arc;
use uuid::Uuid;

/// Records asked for at once.
const PAGE: usize = 1000;
/// No record is longer; what is has another length than its envelope says.
const MAX_RECORD_BYTES: u64 = 64 << 10;

/// Which log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LogName {
    /// Of the domain: its policy and its VMs.
    Domain,
    /// Of one VM: its sessions and snapshots.
    Vm(Uuid),
}

impl LogName {
    fn prefix(self) -> String {
        match self {
            LogName::Domain => "d.".into(),
            LogName::Vm(vm) => format!("v.{}.", vm.simple()),
        }
    }
    /// Name of the file of record `number`; names ascend with numbers.
    pub(crate) fn place(self, number: u64) -> String {
        format!("{}{number:016x}", self.prefix())
    }
}

/// A record as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    pub(crate) created_ms: u64,
    pub(crate) record: Record,
}

/// What became of an append.
pub(crate) enum Append {
    /// It is the record of that number now.
    Done,
    /// Somebody else's record has that number: read on and decide again.
    Lost,
}

/// The logs of one repository.
pub(crate) struct Catalog {
    store: Arc<dyn VolumeStore>,
    pub(crate) vid: VolumeId,
    keys: Arc<Keys>,
}

impl Catalog {
    pub(crate) fn new(store: Arc<dyn VolumeStore>, vid: VolumeId, keys: Arc<Keys>) -> Catalog {
        Catalog { store, vid, keys }
    }

    /// Reads a log from its beginning.
    /// # Errors
    /// `Damaged` when a record is not as written or missing from the middle.
    pub(crate) fn read(&self, log: LogName) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        self.read_each(log, |number, outcome| {
            entries.push(outcome?);
            debug_assert_eq!(entries.len() as u64, number + 1);
            Ok(())
        })?;
        Ok(entries)
    }

    /// Reads a log, handing over each record or the reason why it cannot be read.
    pub(crate) fn read_each(
        &self,
        log: LogName,
        mut visit: impl FnMut(u64, Result<Entry>) -> Result<()>,
    ) -> Result<()> {
        let prefix = log.prefix();
        let mut expected = 0;
        let mut after: Option<Bytes> = None;
        loop {
            let page = self
                .store
                .list(self.vid, prefix.as_bytes(), after.as_deref(), PAGE)?;
            let Some((last, _)) = page.last() else {
                return Ok(());
            };
            after = Some(last.clone());
            let names: Vec<Bytes> = page.iter().map(|(name, _)| name.clone()).collect();
            let bodies = self.store.get_batch(self.vid, &names, &ReadOptions::default())?;
            for ((name, info), body) in page.iter().zip(bodies) {
                let place = String::from_utf8_lossy(name).into_owned();
                let number = place
                    .strip_prefix(&prefix)
                    .and_then(|digits| u64::from_str_radix(digits, 16).ok())
                    .filter(|&number| log.place(number) == place)
                    .ok_or_else(|| damaged(&place, "its name is no record's"))?;
                while expected < number {
                    let missing = log.place(expected);
                    visit(expected, Err(damaged(&missing, "it is missing")))?;
                    expected += 1;
                }
                expected = number + 1;
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
    ) -> Result<Entry> {
        let body = match body {
            // The batch was full, or says so of a record that is no record: ask for it alone.
            Err(VolumeError::TooLarge { .. }) => {
                let range = 0..MAX_RECORD_BYTES + 1;
                self.store
                    .get(self.vid, place.as_bytes(), range, &ReadOptions::default())
            }
            body => body,
        };
        let body = match body {
            Err(VolumeError::Corrupt { what }) => return Err(damaged(place, what)),
            body => body?,
        };
        let record = Record::decode(&body, place, &self.keys).map_err(|detail| damaged(place, detail))?;
        Ok(Entry {
            number,
            created_ms,
            record,
        })
    }

    /// Creates record `number` of a log, if nobody has.
    pub(crate) fn append(&self, log: LogName, number: u64, record: &Record) -> Result<Append> {
        let place = log.place(number);
        let body = Bytes::from(record.encode(&place, &self.keys));
        match self
            .store
            .put(self.vid, place.as_bytes(), body, &PutOptions::default())
        {
            Ok(_) => Ok(Append::Done),
            Err(VolumeError::Exists { .. }) => Ok(Append::Lost),
            Err(VolumeError::Unknown { fid }) => match settled(&*self.store, self.vid, fid)? {
                true => Ok(Append::Done),
                false => Ok(Append::Lost),
            },
            Err(error) => Err(error.into()),
        }
    }
}

fn damaged(place: &str, detail: impl Into<String>) -> Error {
    Error::Damaged {
        what: format!("catalog record {place}"),
        detail: detail.into(),
    }
}
