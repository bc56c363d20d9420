//! Heartbeats: signs of life of whoever has sessions open in a fleet on several servers.
//!
//! Files `a.<holder>.<number>`, one Beat record each. A holder is one run of one program, drawn at random;
//! its numbers ascend. A newer number is a sign of life, and nothing else is: no time that a clock stamped
//! decides anything (BAK-21). Nobody needs any but the newest, so a holder takes its older ones away, and all
//! of them when it ends.
//!
//! Format: docs/formats/backup-catalog.md v4
//! Not here: when one is written (`lease::beating`), what follows from there being none (`lease::watch`).

use super::log::Catalog;
use super::record::Record;
use crate::keys::Keys;
use crate::packs::volumes::{for_each_file, settled};
use crate::request::error::{Error, Result};
use crate::request::open_session::HolderId;
use bytes::Bytes;
use copal_volume::{FileId, FileInfo, PutOptions, ReadOptions, VolumeError, VolumeId, VolumeStore};
use std::sync::Arc;

const PREFIX: &str = "a.";
/// What is left of a holder that has shown nothing for so long is cleared away. It decides nothing: a holder
/// that is alive after all has a newer one soon.
const CLEARED_AFTER_MS: u64 = 7 * 24 * 3600 * 1000;
/// No record of this kind is longer.
const MAX_BEAT_BYTES: u64 = 1024;

/// A sign of life as it lies in the catalog.
#[derive(Clone, Debug)]
pub(crate) struct StoredBeat {
    pub(crate) holder: HolderId,
    pub(crate) number: u64,
    /// By the store's order of events.
    pub(crate) created_ms: u64,
    file: (Bytes, FileId),
}

/// What a sign of life says.
#[derive(Clone, Debug, Default)]
pub(crate) struct BeatWords {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) progress: u64,
}

impl Catalog {
    /// All signs of life there are, by holder, each one's oldest first.
    /// # Errors
    /// Those of the store.
    pub(crate) fn beats(&self) -> Result<Vec<StoredBeat>> {
        let mut found = Vec::new();
        // A holder is taken for dead by what is not shown: files are listed strictly.
        for_each_file(&*self.store, self.vid, PREFIX.as_bytes(), |name, info| {
            found.extend(stored(Bytes::copy_from_slice(name), info));
            Ok(())
        })?;
        Ok(found)
    }

    /// What a sign of life says; `None`: it is gone meanwhile, or cannot be read. It is for people.
    /// # Errors
    /// Those of the store.
    pub(crate) fn beat_words(&self, beat: &StoredBeat) -> Result<Option<BeatWords>> {
        let (name, _) = &beat.file;
        let read = ReadOptions::default();
        let bytes = match self.store.get(self.vid, name, 0..MAX_BEAT_BYTES, &read) {
            Err(VolumeError::NotFound | VolumeError::Corrupt { .. }) => return Ok(None),
            read => read?,
        };
        match Record::decode(&bytes, &String::from_utf8_lossy(name), &self.keys) {
            Ok(Record::Beat { name, address, progress }) => Ok(Some(BeatWords { name, address, progress })),
            Ok(_) => Ok(None),
            Err(detail) => {
                tracing::warn!(beat = %String::from_utf8_lossy(&beat.file.0), detail, "a sign of life says nothing");
                Ok(None)
            }
        }
    }

    /// Takes away all signs of life but the newest of each holder, and that one too if it is old. Who may not
    /// delete leaves it to who may, such as a prune.
    /// # Errors
    /// Those of the store.
    pub(crate) fn clear_beats(&self) -> Result<()> {
        let beats = self.beats()?;
        let now_ms = self.store.now_ms();
        let is_old = |beat: &StoredBeat| now_ms.saturating_sub(beat.created_ms) > CLEARED_AFTER_MS;
        // A holder's stand in the order of their numbers.
        let has_newer = |at: usize| beats.get(at + 1).is_some_and(|next| next.holder == beats[at].holder);
        let of_no_use = beats.iter().enumerate().filter(|(at, beat)| has_newer(*at) || is_old(beat));
        self.drop_beats(of_no_use.map(|(_, beat)| beat))
    }

    /// Takes signs of life away. Who may not delete leaves it to who may.
    /// # Errors
    /// Those of the store.
    pub(crate) fn drop_beats<'a>(&self, beats: impl Iterator<Item = &'a StoredBeat>) -> Result<()> {
        let files: Vec<(Bytes, FileId)> = beats.map(|beat| beat.file.clone()).collect();
        self.tidy(&files)
    }

    /// Writes signs of life for as long as it is kept, whatever becomes of this handle.
    pub(crate) fn beat_writer(&self, holder: HolderId) -> BeatWriter {
        BeatWriter {
            store: Arc::clone(&self.store),
            vid: self.vid,
            keys: Arc::clone(&self.keys),
            holder,
            kept: Vec::new(),
        }
    }
}

/// Writes the signs of life of one holder.
pub(crate) struct BeatWriter {
    store: Arc<dyn VolumeStore>,
    vid: VolumeId,
    keys: Arc<Keys>,
    holder: HolderId,
    /// Those that it wrote and that are there, oldest first.
    kept: Vec<(Bytes, FileId)>,
}

impl BeatWriter {
    /// A holder has at most so many.
    pub(crate) const KEPT: usize = 8;

    /// Writes one; durable on return.
    /// # Errors
    /// Those of the store.
    pub(crate) fn write(&mut self, number: u64, words: &BeatWords) -> Result<()> {
        let place = format!("{PREFIX}{}.{number:016x}", self.holder);
        let record = Record::Beat {
            name: words.name.clone(),
            address: words.address.clone(),
            progress: words.progress,
        };
        let bytes = record.encode(&place, &self.keys);
        let put = self.store.put(self.vid, place.as_bytes(), bytes.into(), &PutOptions::default());
        let fid = match put {
            Ok(info) => info.fid,
            Err(VolumeError::Unknown { fid }) if settled(&*self.store, self.vid, fid)? => fid,
            Err(error) => return Err(error.into()),
        };
        self.kept.push((Bytes::from(place), fid));
        if self.kept.len() >= Self::KEPT {
            let newest = self.kept.split_off(self.kept.len() - 1);
            self.drop_kept();
            self.kept = newest;
        }
        Ok(())
    }

    /// Takes all of them away.
    pub(crate) fn end(mut self) {
        self.drop_kept();
    }

    /// What cannot be deleted is left to whoever clears up after holders that are gone.
    fn drop_kept(&mut self) {
        let files = std::mem::take(&mut self.kept);
        if files.is_empty() {
            return;
        }
        let deleted = self
            .store
            .delete_batch(self.vid, &files)
            .and_then(|each| each.into_iter().collect::<std::result::Result<(), _>>());
        if let Err(error) = deleted {
            tracing::debug!(error = %Error::from(error), "old signs of life stay");
        }
    }
}

/// A file whose name is no beat's is none.
fn stored(name: Bytes, info: &FileInfo) -> Option<StoredBeat> {
    let text = std::str::from_utf8(&name).ok()?;
    let (holder, number) = text.strip_prefix(PREFIX)?.split_once('.')?;
    let holder = HolderId(u128::from_str_radix(holder, 16).ok()?.to_be_bytes());
    let number = u64::from_str_radix(number, 16).ok()?;
    (text == format!("{PREFIX}{holder}.{number:016x}")).then_some(StoredBeat {
        holder,
        number,
        created_ms: info.created_ms,
        file: (name, info.fid),
    })
}
