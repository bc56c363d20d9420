//! The vault: finds and opens frames, given what they are called and where they were put.
//!
//! Invariants
//! - A reference's spot is tried first; when its pack is gone or holds something else there, the index
//!   decides. Marking (`mark`) resolves in the same order, so what it keeps is what is read.
//! - Memory: footers up to a fixed budget, and one window per reader.

use crate::error::{Error, Result};
use crate::index::Index;
use crate::keys::Keys;
use crate::pack::format::Row;
use crate::pack::reader::{self, Footer, Inflater};
use crate::pack::{PackNumber, Spot};
use crate::recipe::Ref;
use crate::seal::TAG_BYTES;
use crate::volumes::{Home, Volumes};
use bytes::Bytes;
use copal_volume::{ReadOptions, VolumeError, VolumeId};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Memory of cached footers, in bytes.
const FOOTER_BUDGET_BYTES: usize = 6 << 20;
/// Packs remembered to be gone.
const MISSING_PACKS: usize = 4096;
/// Bytes fetched at once when frames are read one after another.
const WINDOW_BYTES: u64 = 64 << 10;

/// A frame that exists: its pack and row.
#[derive(Clone)]
pub(crate) struct Located {
    pub(crate) footer: Arc<Footer>,
    pub(crate) vid: VolumeId,
    pub(crate) spot: Spot,
}

impl Located {
    pub(crate) fn row(&self) -> &Row {
        // `locate` looked at this very row.
        &self.footer.rows[self.spot.slot as usize]
    }
}

/// Everything that is needed to read a repository; shared between threads.
pub(crate) struct Vault {
    pub(crate) volumes: Volumes,
    pub(crate) index: Index,
    pub(crate) keys: Arc<Keys>,
    footers: Mutex<Footers>,
}

#[derive(Default)]
struct Footers {
    known: HashMap<PackNumber, (u64, Arc<Footer>)>,
    missing: HashSet<PackNumber>,
    bytes: usize,
    clock: u64,
}

impl Vault {
    pub(crate) fn new(volumes: Volumes, index: Index, keys: Arc<Keys>) -> Vault {
        Vault {
            volumes,
            index,
            keys,
            footers: Mutex::default(),
        }
    }

    /// Drops everything cached: packs came or went.
    pub(crate) fn forget_cached(&self) {
        *self.footers.lock() = Footers::default();
    }

    /// The footer of a pack; `None` when there is no such pack.
    /// # Errors
    /// `Damaged`, and those of the store.
    pub(crate) fn footer(
        &self,
        home: Home,
        volume: u32,
        pack: PackNumber,
    ) -> Result<Option<(Arc<Footer>, VolumeId)>> {
        let Some(vid) = self.volumes.find(home, volume)? else {
            return Ok(None);
        };
        {
            let mut cache = self.footers.lock();
            cache.clock += 1;
            let clock = cache.clock;
            if let Some((used, footer)) = cache.known.get_mut(&pack) {
                *used = clock;
                return Ok(Some((Arc::clone(footer), vid)));
            }
            if cache.missing.contains(&pack) {
                return Ok(None);
            }
        }
        match reader::footer(&*self.volumes.store, vid, pack, &self.keys) {
            Ok(footer) => {
                if footer.kind != home.kind() {
                    return Err(footer.damaged("it is of another kind than its place"));
                }
                let footer = Arc::new(footer);
                self.footers.lock().insert(pack, Arc::clone(&footer));
                Ok(Some((footer, vid)))
            }
            Err(Error::Volume(VolumeError::NotFound | VolumeError::VolumeGone)) => {
                let mut cache = self.footers.lock();
                if cache.missing.len() >= MISSING_PACKS {
                    cache.missing.clear();
                }
                cache.missing.insert(pack);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Finds the frame of a reference.
    /// # Errors
    /// `Damaged` when neither its spot nor the index leads to it.
    pub(crate) fn locate(&self, home: Home, reference: &Ref) -> Result<Located> {
        let id = reference.id.short();
        let spot = reference.spot;
        let direct = self.at(home, spot, &id);
        if let Ok(Some(located)) = direct {
            return Ok(located);
        }
        let indexed = match self.index.find(&id)? {
            Some((row, entry)) if entry.home == home => {
                let spot = Spot {
                    volume: entry.volume,
                    pack: row.pack,
                    slot: row.slot,
                };
                self.at(home, spot, &id)?
            }
            _ => None,
        };
        match (indexed, direct) {
            (Some(located), _) => Ok(located),
            (None, Err(error)) => Err(error),
            (None, Ok(_)) => Err(Error::Damaged {
                what: format!("frame {:?}", reference.id),
                detail: format!(
                    "pack {} has it not, and the index knows no other place",
                    spot.pack
                ),
            }),
        }
    }

    fn at(&self, home: Home, spot: Spot, id: &[u8; 16]) -> Result<Option<Located>> {
        let Some((footer, vid)) = self.footer(home, spot.volume, spot.pack)? else {
            return Ok(None);
        };
        let fits = footer
            .rows
            .get(spot.slot as usize)
            .is_some_and(|row| row.id == *id);
        Ok(fits.then_some(Located { footer, vid, spot }))
    }

    /// Reads `range` of a pack.
    pub(crate) fn read(&self, vid: VolumeId, pack: PackNumber, range: std::ops::Range<u64>) -> Result<Bytes> {
        let wanted = range.end - range.start;
        let name = pack.file_name();
        let bytes = self
            .volumes
            .store
            .get(vid, name.as_bytes(), range, &ReadOptions::default())?;
        if bytes.len() as u64 != wanted {
            return Err(reader::damaged(
                pack,
                format!("{wanted} bytes were asked for, {} are there", bytes.len()),
            ));
        }
        Ok(bytes)
    }
}

impl Footers {
    fn insert(&mut self, pack: PackNumber, footer: Arc<Footer>) {
        self.bytes += footer.memory_bytes();
        self.clock += 1;
        if let Some((_, old)) = self.known.insert(pack, (self.clock, footer)) {
            self.bytes -= old.memory_bytes();
        }
        while self.bytes > FOOTER_BUDGET_BYTES && self.known.len() > 1 {
            let Some(oldest) = self
                .known
                .iter()
                .min_by_key(|(_, (used, _))| *used)
                .map(|(&pack, _)| pack)
            else {
                return;
            };
            if let Some((_, old)) = self.known.remove(&oldest) {
                self.bytes -= old.memory_bytes();
            }
        }
    }
}

/// Reads frames one after another; neighbours come from one fetch. One per thread.
pub(crate) struct FrameReader<'a> {
    vault: &'a Vault,
    inflater: Inflater,
    window: Option<(PackNumber, u64, Bytes)>,
    sealed: Vec<u8>,
    raw: Vec<u8>,
}

impl<'a> FrameReader<'a> {
    pub(crate) fn new(vault: &'a Vault) -> Result<FrameReader<'a>> {
        Ok(FrameReader {
            vault,
            inflater: Inflater::new()?,
            window: None,
            sealed: Vec::new(),
            raw: Vec::new(),
        })
    }

    /// The raw bytes of a located frame, as sealed: the caller compares them with their id.
    /// # Errors
    /// `Damaged`, and those of the store.
    pub(crate) fn raw(&mut self, located: &Located) -> Result<&[u8]> {
        self.payload(located)?;
        let row = *located.row();
        let payload = &self.sealed[..self.sealed.len() - TAG_BYTES];
        self.inflater
            .inflate(&row, payload, &mut self.raw)
            .map_err(|detail| {
                located
                    .footer
                    .damaged(format!("frame {}: {detail}", located.spot.slot))
            })?;
        Ok(&self.raw)
    }

    /// The opened bytes of a located frame, still compressed if its row says so.
    /// # Errors
    /// `Damaged`, and those of the store.
    pub(crate) fn payload(&mut self, located: &Located) -> Result<&[u8]> {
        let row = *located.row();
        let pack = located.footer.number;
        let (start, end) = (u64::from(row.offset), row.end());
        let held = self
            .window
            .take()
            .filter(|(held, at, bytes)| *held == pack && *at <= start && end <= at + bytes.len() as u64);
        let (_, at, bytes) = match held {
            Some(held) => self.window.insert(held),
            None => {
                let last = located.footer.rows.last().map_or(end, Row::end);
                let until = end.max((start + WINDOW_BYTES).min(last));
                let bytes = self.vault.read(located.vid, pack, start..until)?;
                self.window.insert((pack, start, bytes))
            }
        };
        self.sealed.clear();
        self.sealed
            .extend_from_slice(&bytes[(start - *at) as usize..(end - *at) as usize]);
        let payload = reader::open_frame(&located.footer, located.spot.slot, &mut self.sealed)?;
        Ok(payload)
    }
}
