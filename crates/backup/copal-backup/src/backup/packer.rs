//! Packing thread of a backup: gives frames their places in packs, writes them in order, writes recipes, builds the trees.
//!
//! Steps are taken in the order in which the reader made them; they may arrive in another order. The frames of a job get
//! their places then. The pool seals them, and they are written in the order of their places.

use super::compress::ChunkCompressor;
use super::in_flight_chunks::InFlightChunks;
use super::job::{ChunkState, JobEntry, JobFrame, NewChunk, PackedChunk, SegmentJob, TreeStep};
use super::work_queue::{NumberedJob, WorkQueue};
use crate::keys::RecipeKey;
use crate::packs::home::PackHome;
use crate::packs::pack::format::FLAG_ZSTD;
use crate::packs::pack::writer::{FrameHead, FrameInput, WrittenPack};
use crate::packs::pack::{FrameLocation, format};
use crate::packs::pack_appender::PackAppender;
use crate::packs::pack_store::PackStore;
use crate::request::error::{Error, Result};
use crate::request::progress::Progress;
use crate::snapshot::recipe::format::{PAGE_LEVEL, ROOT_LEVEL};
use crate::snapshot::recipe::{DiskRoot, FrameRef, PAGE_SEGMENTS, RecipeEntry, RecipePage, SegmentRecipe};
use copal_chunk::ChunkId;
use copal_kv::Durability;
use crossbeam_channel::Receiver;
use std::collections::{BTreeMap, VecDeque};
use uuid::Uuid;

/// A message to the packer, with the number of its step.
pub(super) enum PackMessage {
    /// A step without a job.
    Step(u64, TreeStep),
    /// A job whose chunks are compressed.
    Packed(NumberedJob),
    /// A job whose frames are encrypted.
    Sealed(NumberedJob),
    /// This is no step: all before it are the backup.
    End(u64),
    /// A thread of the pool has failed.
    Failed(Error),
}

/// A disk whose tree is stored.
pub(crate) struct BuiltDisk {
    pub(crate) root: FrameRef,
    pub(crate) size_bytes: u64,
    pub(crate) data_bytes: u64,
}

/// State of the packing thread.
pub(crate) struct TreePacker<'a> {
    pack_store: &'a PackStore,
    in_flight: &'a InFlightChunks,
    progress: &'a dyn Progress,
    chunks: PackAppender<'a>,
    recipes: PackAppender<'a>,
    key: RecipeKey,
    compressor: ChunkCompressor,
    /// Roots of the base's disks, in the order of the request.
    bases: Vec<Option<(FrameRef, DiskRoot)>>,
    built: Vec<BuiltDisk>,
    pages: Vec<Option<FrameRef>>,
    page: RecipePage,
    /// Whether this backup wrote a segment of the open page, or a page of the open disk. Such a page or root
    /// is written even if its name is unchanged: the old one leads to the old frames, which may be lost.
    wrote_segment: bool,
    wrote_page: bool,
    reported: u64,
}

impl<'a> TreePacker<'a> {
    pub(crate) fn new(
        pack_store: &'a PackStore,
        in_flight: &'a InFlightChunks,
        progress: &'a dyn Progress,
        vm: Uuid,
        session: [u8; 16],
        bases: Vec<Option<(FrameRef, DiskRoot)>>,
    ) -> Result<TreePacker<'a>> {
        let appender = |home| PackAppender::new(pack_store, home, session, Durability::Deferred);
        Ok(TreePacker {
            pack_store,
            in_flight,
            progress,
            chunks: appender(pack_store.home_of_chunks(vm)).sending_ahead(),
            recipes: appender(PackHome::Recipes(vm)),
            key: pack_store.keys.recipe_key(vm),
            compressor: ChunkCompressor::new()?,
            bases,
            built: Vec::new(),
            pages: Vec::new(),
            page: RecipePage::default(),
            wrote_segment: false,
            wrote_page: false,
            reported: 0,
        })
    }

    /// Takes all steps until their end. Ends the work of the pool in any case.
    pub(super) fn run(&mut self, messages: &Receiver<PackMessage>, queue: &WorkQueue) -> Result<()> {
        let _end = EndOfWork(queue);
        let mut waiting = BTreeMap::new();
        let mut sealing = SealingJobs::default();
        let (mut next, mut end) = (0, None);
        for message in messages {
            match message {
                PackMessage::Step(number, step) => drop(waiting.insert(number, step)),
                PackMessage::Packed(NumberedJob { number, job }) => {
                    waiting.insert(number, TreeStep::Write(job));
                }
                PackMessage::Sealed(job) => sealing.add(job),
                PackMessage::End(number) => end = Some(number),
                PackMessage::Failed(error) => return Err(error),
            }
            let first = next;
            while let Some(step) = waiting.remove(&next) {
                if let Some(job) = self.take(step)? {
                    sealing.order.push_back(next);
                    queue.push_placed(NumberedJob { number: next, job });
                }
                next += 1;
            }
            if next > first {
                queue.note_packed(next);
            }
            while let Some(job) = sealing.next() {
                self.write(&job)?;
                queue.give_back(job);
            }
            if end == Some(next) && sealing.order.is_empty() {
                return Ok(());
            }
        }
        Err(Error::Invalid { reason: "a thread of the backup ended early".into() })
    }

    /// Makes chunks durable and adds them to the index, so that they are kept even if the session fails.
    pub(crate) fn finish_chunks(&mut self) -> Result<()> {
        let finished = self.chunks.finish()?;
        finished.iter().for_each(|written| self.in_flight.mark_indexed(written));
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

    fn take(&mut self, step: TreeStep) -> Result<Option<SegmentJob>> {
        match step {
            TreeStep::Page(page) => {
                assert!(self.page.segments.is_empty(), "a page is taken from the base only at its beginning");
                self.pages.push(page);
            }
            TreeStep::Segment(segment) => self.push_segment(segment)?,
            TreeStep::EndOfDisk { size_bytes, data_bytes } => self.end_disk(size_bytes, data_bytes)?,
            TreeStep::Write(mut job) => {
                let segment = self.write_segment(&mut job)?;
                self.wrote_segment = true;
                self.push_segment(Some(segment))?;
                return Ok(Some(job));
            }
        }
        Ok(None)
    }

    /// Gives the new chunks of a job their places, and writes its recipe.
    fn write_segment(&mut self, job: &mut SegmentJob) -> Result<FrameRef> {
        let mut entries = Vec::with_capacity(job.entries.len());
        job.frames.clear();
        for JobEntry { length, state, is_unresolved } in std::mem::take(&mut job.entries) {
            let chunk = match state {
                ChunkState::Hole => None,
                ChunkState::Known(reference) => Some(reference),
                ChunkState::InFlight(id) => Some(FrameRef { id, location: self.location_of(&id)? }),
                ChunkState::New(NewChunk { id, raw, packed }) => {
                    let packed = packed.expect("a chunk is packed before its segment is written");
                    let location = self.place(job, (id, raw.len()), packed)?;
                    Some(FrameRef { id, location })
                }
            };
            entries.push(RecipeEntry { length, chunk, is_unresolved });
        }
        let frame = SegmentRecipe { entries }.encode();
        self.write_recipe(job.recipe_id, &frame)
    }

    fn place(
        &mut self,
        job: &mut SegmentJob,
        (id, raw_bytes): (ChunkId, usize),
        packed: PackedChunk,
    ) -> Result<FrameLocation> {
        let head = FrameHead {
            id: id.short(),
            raw_bytes: raw_bytes as u32,
            flags: if packed.is_compressed { FLAG_ZSTD } else { 0 },
            payload_bytes: packed.payload_bytes(),
        };
        let (placed, finished) = self.chunks.place(&head)?;
        self.note_finished(finished);
        let location = placed.location;
        self.in_flight.place(&id, location);
        job.frames.push(JobFrame { range: packed.frame, placed });
        Ok(location)
    }

    /// Writes the sealed frames of a job.
    fn write(&mut self, job: &SegmentJob) -> Result<()> {
        for frame in job.sealed() {
            let finished = self.chunks.write(frame)?;
            self.note_finished(finished);
        }
        self.report();
        Ok(())
    }

    fn note_finished(&self, finished: Option<WrittenPack>) {
        if let Some(written) = finished {
            self.in_flight.mark_indexed(&written);
        }
    }

    /// Location of a chunk that an earlier job of this session stored.
    fn location_of(&self, id: &ChunkId) -> Result<FrameLocation> {
        if let Some(location) = self.in_flight.location(id) {
            return Ok(location);
        }
        match self.pack_store.index.find(self.chunks.home(), &id.short())? {
            Some((row, entry)) => Ok(entry.location(row)),
            None => Err(Error::Damaged {
                what: "the chunk index".into(),
                detail: format!("chunk {id:?} was stored a moment ago and is not in it"),
            }),
        }
    }

    fn write_recipe(&mut self, id: ChunkId, frame: &[u8]) -> Result<FrameRef> {
        let limit = format::MAX_RAW_BYTES as usize;
        assert!(frame.len() <= limit, "the largest root is far below {limit} bytes");
        let (flags, payload) = match self.compressor.compress(frame) {
            Some(packed) => (FLAG_ZSTD, packed),
            None => (0, frame),
        };
        let frame = FrameInput { id: id.short(), raw_bytes: frame.len() as u32, flags, payload };
        let (location, _) = self.recipes.append(&frame)?;
        Ok(FrameRef { id, location })
    }

    fn push_segment(&mut self, segment: Option<FrameRef>) -> Result<()> {
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
        let root = DiskRoot { size_bytes, pages: std::mem::take(&mut self.pages) };
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

/// Jobs whose frames have their places.
#[derive(Default)]
struct SealingJobs {
    /// Their numbers, in the order of the places.
    order: VecDeque<u64>,
    sealed: BTreeMap<u64, SegmentJob>,
}

impl SealingJobs {
    fn add(&mut self, NumberedJob { number, job }: NumberedJob) {
        self.sealed.insert(number, job);
    }

    /// The next job to be written, if it is sealed.
    fn next(&mut self) -> Option<SegmentJob> {
        let job = self.sealed.remove(self.order.front()?)?;
        self.order.pop_front();
        Some(job)
    }
}

/// Ends the work of the pool when dropped.
struct EndOfWork<'q>(&'q WorkQueue);

impl Drop for EndOfWork<'_> {
    fn drop(&mut self) {
        self.0.finish();
    }
}
