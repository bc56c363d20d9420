//! Fetches all chunks of one segment: in pack order, neighbours in one read, each compared with its id.

use crate::packs::pack::PackNumber;
use crate::packs::pack::reader::{FrameInflater, open_frame};
use crate::packs::pack_store::{LocatedFrame, PackStore};
use crate::request::error::{Error, Result};
use crate::rules::broken::{self, Flaw};
use crate::snapshot::recipe::{FrameRef, SegmentRecipe};
use std::collections::HashSet;
use std::ops::Range;

/// Largest gap between frames of one read.
const GAP_BYTES: u64 = 16 << 10;
/// Most bytes of one read, unless a single frame is longer.
const READ_BYTES: u64 = 1 << 20;

/// Fetches segments one after another. One per thread.
pub(crate) struct SegmentFetcher<'a> {
    pack_store: &'a PackStore,
    inflater: FrameInflater,
    encrypted: Vec<u8>,
    raw: Vec<u8>,
    /// Bytes read from packs.
    pub(crate) fetched_bytes: u64,
    /// Packs that were read from.
    pub(crate) packs: HashSet<PackNumber>,
}

struct WantedFrame {
    located: LocatedFrame,
    chunk: FrameRef,
    place: Range<usize>,
}

impl<'a> SegmentFetcher<'a> {
    pub(crate) fn new(pack_store: &'a PackStore) -> Result<SegmentFetcher<'a>> {
        Ok(SegmentFetcher {
            pack_store,
            inflater: FrameInflater::new()?,
            encrypted: Vec::new(),
            raw: Vec::new(),
            fetched_bytes: 0,
            packs: HashSet::new(),
        })
    }

    /// Fills the data ranges of `segment`; holes are left alone.
    ///
    /// `fault` gets the error of each chunk that cannot be fetched, and decides whether the rest is fetched.
    /// # Errors
    /// The error that `fault` returns.
    pub(crate) fn fetch(
        &mut self,
        recipe: &SegmentRecipe,
        segment: &mut [u8],
        fault: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<()> {
        let mut wanted = Vec::with_capacity(recipe.entries.len());
        let mut at = 0;
        for entry in &recipe.entries {
            let place = at..at + entry.length as usize;
            at = place.end;
            let Some(chunk) = &entry.chunk else { continue };
            match self.pack_store.locate(chunk) {
                Ok(located) => wanted.push(WantedFrame { located, chunk: *chunk, place }),
                Err(error) => fault(error)?,
            }
        }
        wanted.sort_by_key(|wanted| (wanted.located.location.pack, wanted.located.location.slot));
        let mut rest = &wanted[..];
        while let Some(first) = rest.first() {
            let run = run_length(rest);
            let (now, later) = rest.split_at(run);
            rest = later;
            let start = u64::from(first.located.row().offset);
            let end = now.iter().map(|wanted| wanted.located.row().end()).max().unwrap_or(start);
            let pack = first.located.footer.number;
            self.packs.insert(pack);
            match self.pack_store.read(first.located.vid, pack, start..end) {
                Ok(bytes) => {
                    self.fetched_bytes += end - start;
                    for wanted in now {
                        if let Err(error) = self.open(wanted, &bytes, start, segment) {
                            self.elsewhere(wanted, error, segment).or_else(&mut *fault)?;
                        }
                    }
                }
                Err(error) if now.len() == 1 => {
                    self.elsewhere(&now[0], error, segment).or_else(&mut *fault)?;
                }
                // A damaged place must not hide its neighbours: read each frame alone.
                Err(_) => {
                    for wanted in now {
                        let (from, to) = (u64::from(wanted.located.row().offset), wanted.located.row().end());
                        let alone = self.pack_store.read(wanted.located.vid, pack, from..to);
                        if let Err(error) = alone.and_then(|bytes| self.open(wanted, &bytes, from, segment)) {
                            self.elsewhere(wanted, error, segment).or_else(&mut *fault)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Fetches a chunk from another location if `error` is damage.
    fn elsewhere(&mut self, wanted: &WantedFrame, error: Error, segment: &mut [u8]) -> Result<()> {
        if !error.is_corruption() {
            return Err(error);
        }
        let pack_store = self.pack_store;
        let tried = wanted.located.location;
        pack_store.note_damaged(&wanted.located.footer, tried.slot);
        pack_store.next_good(&wanted.chunk, tried, Some(error), |located| {
            let (from, to) = (u64::from(located.row().offset), located.row().end());
            let wanted =
                WantedFrame { located: located.clone(), chunk: wanted.chunk, place: wanted.place.clone() };
            let bytes = pack_store.read(located.vid, located.footer.number, from..to);
            self.fetched_bytes += to - from;
            let opened = bytes.and_then(|bytes| self.open(&wanted, &bytes, from, segment));
            if opened.as_ref().is_err_and(Error::is_corruption) {
                pack_store.note_damaged(&located.footer, located.location.slot);
            }
            opened
        })
    }

    fn open(&mut self, wanted: &WantedFrame, bytes: &[u8], start: u64, segment: &mut [u8]) -> Result<()> {
        let row = *wanted.located.row();
        let footer = &wanted.located.footer;
        let slot = wanted.located.location.slot;
        let from = (u64::from(row.offset) - start) as usize;
        let damaged = |detail: String| footer.damaged(format!("frame {slot}: {detail}"));
        let encrypted = bytes
            .get(from..from + row.stored as usize)
            .ok_or_else(|| damaged("it lies outside of the bytes that were read".into()))?;
        self.encrypted.clear();
        self.encrypted.extend_from_slice(encrypted);
        let payload = open_frame(footer, slot, &mut self.encrypted)?;
        self.inflater.inflate(&row, payload, &mut self.raw).map_err(damaged)?;
        if self.pack_store.keys.id.id(&self.raw) != wanted.chunk.id && !broken::by(Flaw::NoIdCheck) {
            return Err(damaged("its bytes do not fit its id".into()));
        }
        if self.raw.len() != wanted.place.len() {
            return Err(damaged("its length does not fit the recipe".into()));
        }
        segment[wanted.place.clone()].copy_from_slice(&self.raw);
        Ok(())
    }
}

/// Number of frames, from the first on, that one read covers.
fn run_length(wanted: &[WantedFrame]) -> usize {
    let first = &wanted[0].located;
    let start = u64::from(first.row().offset);
    let mut end = first.row().end();
    let more = wanted[1..].iter().take_while(|next| {
        let row = next.located.row();
        // Within one pack the frames ascend, so nothing here underflows.
        let joins = next.located.footer.number == first.footer.number
            && u64::from(row.offset) <= end + GAP_BYTES
            && row.end() - start <= READ_BYTES;
        if joins {
            end = end.max(row.end());
        }
        joins
    });
    1 + more.count()
}
