//! Third thread of a backup: encrypts chunks into packs, writes recipes, builds the trees.
//!
//! Steps are taken in the order in which the reader made them; they may arrive in another order.

use super::compress::Compressor;
use super::in_flight_chunks::InFlightChunks;
use super::job::{ChunkState, Job, JobEntry, NewChunk, Numbered, Step};
use crate::keys::RecipeKey;
use crate::packs::pack::format::FLAG_ZSTD;
use crate::packs::pack::writer::Frame;
use crate::packs::pack::{Spot, format};
use crate::packs::pack_appender::PackAppender;
use crate::packs::pack_store::PackStore;
use crate::packs::volumes::Home;
use crate::request::error::{Error, Result};
use crate::request::progress::Progress;
use crate::snapshot::recipe::format::{PAGE_LEVEL, ROOT_LEVEL};
use crate::snapshot::recipe::{Entry, PAGE_SEGMENTS, Page, Ref, Root, SegmentRecipe};
use copal_chunk::ChunkId;
use copal_kv::Durability;
use crossbeam_channel::{Receiver, Sender};
use std::collections::BTreeMap;
use uuid::Uuid;

/// A disk whose tree is stored.
pub(crate) struct BuiltDisk {
    pub(crate) root: Ref,
    pub(crate) size_bytes: u64,
    pub(crate) data_bytes: u64,
}

/// State of the packing thread.
pub(crate) struct Packer<'a> {
    pack_store: &'a PackStore,
    in_flight: &'a InFlightChunks,
    progress: &'a dyn Progress,
    chunks: PackAppender<'a>,
    recipes: PackAppender<'a>,
    key: RecipeKey,
    compressor: Compressor,
    /// Roots of the base's disks, in the order of the request.
    bases: Vec<Option<(Ref, Root)>>,
    built: Vec<BuiltDisk>,
    pages: Vec<Option<Ref>>,
    page: Page,
    /// Whether this backup wrote a segment of the open page, or a page of the open disk. Such a page or root
    /// is written even if its name is unchanged: the old one leads to the old frames, which may be lost.
    wrote_segment: bool,
    wrote_page: bool,
    reported: u64,
}

impl<'a> Packer<'a> {
    pub(crate) fn new(
        pack_store: &'a PackStore,
        in_flight: &'a InFlightChunks,
        progress: &'a dyn Progress,
        vm: Uuid,
        session: [u8; 16],
        bases: Vec<Option<(Ref, Root)>>,
    ) -> Result<Packer<'a>> {
        let appender = |home| PackAppender::new(pack_store, home, session, Durability::Deferred);
        Ok(Packer {
            pack_store,
            in_flight,
            progress,
            chunks: appender(pack_store.home_of_chunks(vm)),
            recipes: appender(Home::Recipes(vm)),
            key: pack_store.keys.recipe_key(vm),
            compressor: Compressor::new()?,
            bases,
            built: Vec::new(),
            pages: Vec::new(),
            page: Page::default(),
            wrote_segment: false,
            wrote_page: false,
            reported: 0,
        })
    }

    /// Takes all steps; jobs go back to `free`.
    pub(crate) fn run(&mut self, steps: &Receiver<Numbered>, free: &Sender<Box<Job>>) -> Result<()> {
        let mut waiting = BTreeMap::new();
        let mut next = 0;
        for Numbered { number, step } in steps {
            waiting.insert(number, step);
            while let Some(step) = waiting.remove(&next) {
                next += 1;
                if let Some(job) = self.take(step)? {
                    // The reader may have ended already, and then needs no job.
                    let _ = free.send(job);
                }
            }
        }
        Ok(())
    }

    /// Makes chunks durable and adds them to the index, so that they are kept even if the session fails.
    pub(crate) fn finish_chunks(&mut self) -> Result<()> {
        if let Some(written) = self.chunks.finish()? {
            self.in_flight.mark_indexed(&written);
        }
        self.report();
        Ok(())
    }

    /// Finishes the session's packs, chunks before recipes, and returns the disks.
    pub(crate) fn finish(&mut self) -> Result<Vec<BuiltDisk>> {
        self.finish_chunks()?;
        self.recipes.finish()?;
        self.report();
        Ok(std::mem::take(&mut self.built))
    }

    /// Drops the recipes of a session that will not publish.
    pub(crate) fn abandon_recipes(&mut self) {
        self.recipes.abandon();
    }

    /// Bytes of finished packs.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.chunks.stored_bytes + self.recipes.stored_bytes
    }

    fn report(&mut self) {
        let now = self.stored_bytes() + self.chunks.open_bytes() + self.recipes.open_bytes();
        self.progress.stored(now.saturating_sub(self.reported));
        self.reported = now.max(self.reported);
    }

    fn take(&mut self, step: Step) -> Result<Option<Box<Job>>> {
        match step {
            Step::Page(page) => {
                assert!(self.page.segments.is_empty(), "a page is taken from the base only at its beginning");
                self.pages.push(page);
            }
            Step::Segment(segment) => self.push_segment(segment)?,
            Step::EndOfDisk { size_bytes, data_bytes } => self.end_disk(size_bytes, data_bytes)?,
            Step::Write(mut job) => {
                let segment = self.write_segment(&mut job)?;
                self.wrote_segment = true;
                self.push_segment(Some(segment))?;
                self.report();
                return Ok(Some(job));
            }
        }
        Ok(None)
    }

    fn write_segment(&mut self, job: &mut Job) -> Result<Ref> {
        let mut entries = Vec::with_capacity(job.entries.len());
        for JobEntry { length, state, is_unresolved } in std::mem::take(&mut job.entries) {
            let chunk = match state {
                ChunkState::Hole => None,
                ChunkState::Known(reference) => Some(reference),
                ChunkState::InFlight(id) => Some(Ref { id, spot: self.spot_of(&id)? }),
                ChunkState::New(chunk) => Some(Ref { id: chunk.id, spot: self.store(job, &chunk)? }),
            };
            entries.push(Entry { length, chunk, is_unresolved });
        }
        let frame = SegmentRecipe { entries }.encode();
        self.write_recipe(job.recipe_id, &frame)
    }

    fn store(&mut self, job: &Job, chunk: &NewChunk) -> Result<Spot> {
        let (flags, payload) = match &chunk.packed {
            Some(packed) => (FLAG_ZSTD, &job.packed[packed.clone()]),
            None => (0, &job.segment[chunk.raw.clone()]),
        };
        let raw_bytes = chunk.raw.len() as u32;
        let (spot, finished) =
            self.chunks.append(&Frame { id: chunk.id.short(), raw_bytes, flags, payload })?;
        if let Some(written) = finished {
            self.in_flight.mark_indexed(&written);
        }
        self.in_flight.place(&chunk.id, spot);
        Ok(spot)
    }

    /// Location of a chunk that an earlier job of this session stored.
    fn spot_of(&self, id: &ChunkId) -> Result<Spot> {
        if let Some(spot) = self.in_flight.spot(id) {
            return Ok(spot);
        }
        match self.pack_store.index.find(self.chunks.home(), &id.short())? {
            Some((row, entry)) => Ok(entry.spot(row)),
            None => Err(Error::Damaged {
                what: "the chunk index".into(),
                detail: format!("chunk {id:?} was stored a moment ago and is not in it"),
            }),
        }
    }

    fn write_recipe(&mut self, id: ChunkId, frame: &[u8]) -> Result<Ref> {
        let limit = format::MAX_RAW_BYTES as usize;
        assert!(frame.len() <= limit, "the largest root is far below {limit} bytes");
        let (flags, payload) = match self.compressor.compress(frame) {
            Some(packed) => (FLAG_ZSTD, packed),
            None => (0, frame),
        };
        let frame = Frame { id: id.short(), raw_bytes: frame.len() as u32, flags, payload };
        let (spot, _) = self.recipes.append(&frame)?;
        Ok(Ref { id, spot })
    }

    fn push_segment(&mut self, segment: Option<Ref>) -> Result<()> {
        self.page.segments.push(segment);
        if self.page.segments.len() == PAGE_SEGMENTS {
            self.end_page()?;
        }
        Ok(())
    }

    fn end_page(&mut self) -> Result<()> {
        let page = std::mem::take(&mut self.page);
        let wrote = std::mem::take(&mut self.wrote_segment);
        if page.is_hole() {
            self.pages.push(None);
            return Ok(());
        }
        let id = self.key.id(PAGE_LEVEL, &page.logical());
        let base = self.bases.get(self.built.len()).and_then(Option::as_ref);
        let old = base.and_then(|(_, root)| root.pages.get(self.pages.len()).copied().flatten());
        let reference = match old {
            Some(old) if old.id == id && !wrote => old,
            _ => {
                self.wrote_page = true;
                self.write_recipe(id, &page.encode())?
            }
        };
        self.pages.push(Some(reference));
        Ok(())
    }

    fn end_disk(&mut self, size_bytes: u64, data_bytes: u64) -> Result<()> {
        if !self.page.segments.is_empty() {
            self.end_page()?;
        }
        let root = Root { size_bytes, pages: std::mem::take(&mut self.pages) };
        let id = self.key.id(ROOT_LEVEL, &root.logical());
        let wrote = std::mem::take(&mut self.wrote_page);
        let base = self.bases.get(self.built.len()).and_then(Option::as_ref);
        let reference = match base {
            Some((old, _)) if old.id == id && !wrote => *old,
            _ => self.write_recipe(id, &root.encode())?,
        };
        self.built.push(BuiltDisk { root: reference, size_bytes, data_bytes });
        Ok(())
    }
}
