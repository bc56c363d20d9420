//! Decodes batches of stored frames, and fetches those that are damaged from another location.

use super::fetch_job::{ChunkTaker, FetchJob, LostChunk, WantedChunk};
use crate::packs::frame_plan::PlannedFrame;
use crate::packs::frame_reader::FrameReader;
use crate::packs::pack::reader::{FrameInflater, PackFooter, open_frame};
use crate::request::error::{Error, Result};
use crate::request::progress::CancelFlag;
use crate::rules::broken::{self, Flaw};
use copal_chunk::ChunkId;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Stored frames of one pack.
#[derive(Default)]
pub(super) struct FrameBatch {
    footer: Option<Arc<PackFooter>>,
    /// The frames, each with its place in `bytes`.
    pub(super) frames: Vec<(PlannedFrame, Range<usize>)>,
    pub(super) bytes: Vec<u8>,
}

impl FrameBatch {
    /// Empties the batch for frames of a pack.
    pub(super) fn begin(&mut self, footer: &Arc<PackFooter>) {
        self.footer = Some(Arc::clone(footer));
        self.frames.clear();
        self.bytes.clear();
    }

    pub(super) fn push(&mut self, frame: PlannedFrame, stored: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(stored);
        self.frames.push((frame, start..self.bytes.len()));
    }
}

/// Decodes frames. One per thread.
pub(super) struct ChunkDecoder<'f, 't> {
    job: &'f FetchJob<'f>,
    taker: Box<dyn ChunkTaker + 't>,
    inflater: FrameInflater,
    raw: Vec<u8>,
}

impl<'f, 't> ChunkDecoder<'f, 't> {
    pub(super) fn new(
        job: &'f FetchJob<'f>,
        taker: Box<dyn ChunkTaker + 't>,
    ) -> Result<ChunkDecoder<'f, 't>> {
        Ok(ChunkDecoder { job, taker, inflater: FrameInflater::new()?, raw: Vec::new() })
    }

    pub(super) fn pause(&mut self) -> Result<()> {
        self.taker.pause()
    }

    pub(super) fn end(mut self) -> Result<()> {
        self.taker.pause()
    }

    /// Decodes a batch in place and hands its chunks on. Damage is left to the end of the fetch.
    pub(super) fn batch(&mut self, batch: &mut FrameBatch) -> Result<()> {
        let Some(footer) = &batch.footer else { return Ok(()) };
        for (frame, place) in &batch.frames {
            self.frame(footer, frame, &mut batch.bytes[place.clone()])?;
        }
        Ok(())
    }

    /// Decodes a frame and hands it on for each request.
    fn frame(&mut self, footer: &PackFooter, frame: &PlannedFrame, encrypted: &mut [u8]) -> Result<()> {
        let ChunkDecoder { job, taker, inflater, raw } = self;
        let slot = frame.location.slot;
        let raw = open_frame(footer, slot, encrypted).and_then(|payload| {
            let inflated = inflater.inflate(&footer.rows[slot as usize], payload, raw);
            inflated.map_err(|detail| footer.damaged(format!("frame {slot}: {detail}")))
        });
        let raw = match raw {
            Ok(raw) => raw,
            Err(error) => {
                job.lose(frame, error);
                return Ok(());
            }
        };
        let id = job.pack_store.keys.id.id(raw);
        for request in job.plan.requests(frame) {
            let wanted = &job.wanted[*request as usize];
            match fits(wanted, &id, raw) {
                Ok(()) => taker.take(wanted, raw)?,
                Err(detail) => {
                    let error = footer.damaged(format!("frame {slot}: {detail}"));
                    job.lost.lock().push(LostChunk { request: *request, location: frame.location, error });
                }
            }
        }
        Ok(())
    }
}

/// Whether bytes with this id are those of a chunk; else the difference.
fn fits(wanted: &WantedChunk, id: &ChunkId, raw: &[u8]) -> std::result::Result<(), &'static str> {
    if *id != wanted.chunk.id && !broken::by(Flaw::NoIdCheck) {
        return Err("its bytes do not fit its id");
    }
    match raw.len() == wanted.length as usize {
        true => Ok(()),
        false => Err("its length does not fit the recipe"),
    }
}

impl FetchJob<'_> {
    /// Fetches a lost chunk from another location. Returns the request and its damage if there is none.
    /// # Errors
    /// `Cancelled`; errors of the store that are not damage, and those of the taker.
    pub(super) fn elsewhere(
        &self,
        lost: LostChunk,
        taker: &mut dyn ChunkTaker,
    ) -> Result<Option<(u32, Error)>> {
        if self.cancel.is_some_and(CancelFlag::is_cancelled) {
            return Err(Error::Cancelled { kept_bytes: None });
        }
        let LostChunk { request, location, error } = lost;
        match self.pack_store.footer(location.home, location.volume, location.pack) {
            Ok(Some((footer, _))) => self.pack_store.note_damaged(&footer, location.slot),
            Ok(None) => {}
            Err(error) if error.is_corruption() => {}
            Err(error) => return Err(error),
        }
        let wanted = &self.wanted[request as usize];
        let mut frames = FrameReader::new(self.pack_store)?;
        let mut taken = Ok(());
        let found = self.pack_store.next_good(&wanted.chunk, location, Some(error), |located| {
            let raw = frames.raw(located)?;
            self.fetched_bytes.fetch_add(u64::from(located.row().stored), Ordering::Relaxed);
            if let Err(detail) = fits(wanted, &self.pack_store.keys.id.id(raw), raw) {
                let slot = located.location.slot;
                self.pack_store.note_damaged(&located.footer, slot);
                return Err(located.footer.damaged(format!("frame {slot}: {detail}")));
            }
            taken = taker.take(wanted, raw);
            Ok(())
        });
        taken?;
        match found {
            Ok(()) => Ok(None),
            Err(error) if error.is_corruption() => Ok(Some((request, error))),
            Err(error) => Err(error),
        }
    }
}
