//! PoolWork of the pool on a segment before the decision: reads it, cuts it, names its chunks and looks them up.
//!
//! The questions, cheapest first: Is the whole recipe that of the base? Is the chunk in the old recipe of this segment? Is
//! it in flight in this backup? Is it in the index? The third one is asked again in the order of the segments
//! (`decide`).
//!
//! Invariant: the bytes that are hashed are the bytes that are stored: they are read once.

use super::in_flight_chunks::InFlightChunks;
use super::job::{ChunkState, JobEntry, SegmentJob};
use super::old_recipes::OldRecipes;
use super::read_helpers::{data_of, pieces_of, read_exactly};
use super::segment_task::{
    LookedUpChunk, LookedUpChunks, PreparedSegment, SegmentContent, SegmentReading, SegmentTask,
};
use super::stored_chunks::{StoredChunks, StoredScope};
use crate::index::IndexRow;
use crate::keys::RecipeKey;
use crate::packs::pack::{FrameLocation, PackNumber};
use crate::packs::pack_store::PackStore;
use crate::request::error::Result;
use crate::request::progress::{CancelFlag, Progress};
use crate::request::{BackupCounts, DiskSource};
use crate::snapshot::recipe::format::SEGMENT_LEVEL;
use crate::snapshot::recipe::{FrameRef, RecipeEntry, SegmentRecipe};
use copal_chunk::{BLOCK_BYTES, BlockChange, ChunkId, Chunker, NewPiece, SegmentPiece, rechunk, split};
use std::collections::{BTreeSet, HashMap, HashSet};
use uuid::Uuid;

/// Rows of the chunk index by id, for the ids of one segment that it was asked for.
type SegmentRows = HashMap<[u8; 16], Vec<IndexRow>>;

/// Knowledge that all threads of a backup share.
pub(super) struct SegmentScope<'a> {
    pub(super) disks: &'a [DiskSource],
    pub(super) vm: Uuid,
    pub(super) pack_store: &'a PackStore,
    pub(super) chunker: &'a Chunker,
    pub(super) in_flight: &'a InFlightChunks,
    pub(super) progress: &'a dyn Progress,
    pub(super) cancel: &'a CancelFlag,
    pub(super) key: RecipeKey,
    pub(super) old: OldRecipes<'a>,
    pub(super) stored: StoredScope<'a>,
    /// Chunks of changed segments are stored without a look-up.
    pub(super) stores_whole_segments: bool,
}

/// Reads segments. One per thread.
pub(super) struct SegmentReader<'r, 'a> {
    scope: &'r SegmentScope<'a>,
    pub(super) stored: StoredChunks<'r>,
}

/// A piece of a segment, and the chunk that it keeps.
type LaidPiece = (SegmentPiece, Option<FrameRef>);

impl<'r, 'a> SegmentReader<'r, 'a> {
    pub(super) fn new(scope: &'r SegmentScope<'a>) -> Result<SegmentReader<'r, 'a>> {
        Ok(SegmentReader { scope, stored: StoredChunks::new(&scope.stored)? })
    }

    /// Reads a segment into a job, and names it.
    /// # Errors
    /// Errors of the source, the store and the index.
    pub(super) fn prepare(&mut self, task: SegmentTask, mut job: SegmentJob) -> Result<PreparedSegment> {
        let SegmentTask { disk, range, reference, reading, .. } = task;
        job.start = range.start;
        let disk = &self.scope.disks[disk];
        let length = (range.end - range.start) as usize;
        let mut counts = BackupCounts::default();
        let segment = &mut job.segment_mut()[..length];
        match reading {
            SegmentReading::Whole(blocks) => {
                let mut first = 0;
                for run in blocks.chunk_by(|a, b| a == b) {
                    let bytes = first * BLOCK_BYTES..((first + run.len()) * BLOCK_BYTES).min(length);
                    first += run.len();
                    if run[0] == BlockChange::Zeroed {
                        segment[bytes].fill(0);
                    } else {
                        counts.read_bytes += bytes.len() as u64;
                        read_exactly(disk, range.start + bytes.start as u64, &mut segment[bytes])?;
                    }
                }
                counts.dirty_bytes = counts.read_bytes;
                self.scope.progress.advance(counts.read_bytes);
                self.split(job, length, reference, counts)
            }
            SegmentReading::Done => self.split(job, length, reference, counts),
            SegmentReading::Changed { blocks, old, dirty_bytes } => {
                let pieces = pieces_of(&old.entries);
                let fresh = rechunk(self.scope.chunker, &pieces, &blocks, segment, |at, buffer| {
                    counts.read_bytes += buffer.len() as u64;
                    read_exactly(disk, range.start + at as u64, buffer)
                })?;
                let layout: Vec<LaidPiece> = fresh
                    .into_iter()
                    .map(|fresh| match fresh {
                        NewPiece::Kept(index) => (pieces[index], old.entries[index].chunk),
                        NewPiece::New(piece) => (piece, None),
                    })
                    .collect();
                self.scope.progress.advance(dirty_bytes);
                let mut prepared = self.name(job, &layout, reference, Some(&old), counts)?;
                prepared.old_data_bytes = data_of(&old.entries);
                Ok(prepared)
            }
        }
    }

    /// Cuts a segment that was read completely.
    fn split(
        &mut self,
        job: SegmentJob,
        length: usize,
        reference: Option<FrameRef>,
        counts: BackupCounts,
    ) -> Result<PreparedSegment> {
        let pieces = split(self.scope.chunker, &job.segment()[..length]);
        let layout: Vec<LaidPiece> = pieces.into_iter().map(|piece| (piece, None)).collect();
        // The old recipe is read only if the new one differs.
        self.name(job, &layout, reference, None, counts)
    }

    /// Names the chunks, and looks up those of a segment that differs from the base.
    fn name(
        &mut self,
        mut job: SegmentJob,
        layout: &[LaidPiece],
        reference: Option<FrameRef>,
        old: Option<&SegmentRecipe>,
        mut counts: BackupCounts,
    ) -> Result<PreparedSegment> {
        let (recipe, fresh) = self.name_chunks(&job, layout, &mut counts);
        let data_bytes = data_of(&recipe.entries);
        let done = |job, counts, content| {
            Ok(PreparedSegment { job, data_bytes, old_data_bytes: 0, counts, content })
        };
        if data_bytes == 0 {
            return done(job, counts, SegmentContent::Hole);
        }
        let recipe_id = self.scope.key.id(SEGMENT_LEVEL, &recipe.logical());
        let length: u64 = recipe.entries.iter().map(|entry| u64::from(entry.length)).sum();
        let same = reference.filter(|reference| reference.id == recipe_id);
        let is_hurt = match &same {
            Some(same) => self.is_hurt(same, length)?,
            None => false,
        };
        if let Some(same) = same.filter(|_| !is_hurt) {
            let read = fresh.iter().zip(&recipe.entries).filter(|(fresh, _)| **fresh);
            counts.inner_dup_bytes += read.map(|(_, entry)| u64::from(entry.length)).sum::<u64>();
            return done(job, counts, SegmentContent::Same(same));
        }
        let read_old;
        let old = match (old, reference) {
            (Some(old), _) => Some(old),
            (None, Some(reference)) => {
                read_old = self.scope.old.segment(&reference, length).ok();
                read_old.as_ref()
            }
            (None, None) => None,
        };
        job.recipe_id = recipe_id;
        job.entries.clear();
        let looked_up = self.look_up(&mut job, (&recipe, layout, &fresh), old, &mut counts)?;
        done(job, counts, SegmentContent::Chunks(looked_up))
    }

    /// The recipe of a segment, in which new chunks have a name but no location; and which of the entries are
    /// new.
    fn name_chunks(
        &self,
        job: &SegmentJob,
        layout: &[LaidPiece],
        counts: &mut BackupCounts,
    ) -> (SegmentRecipe, Vec<bool>) {
        let nowhere = FrameLocation { home: self.stored.home(), volume: 0, pack: PackNumber(0), slot: 0 };
        let mut entries = Vec::with_capacity(layout.len());
        let mut fresh = vec![false; layout.len()];
        for (index, (piece, kept)) in layout.iter().enumerate() {
            let chunk = match kept {
                _ if piece.hole => None,
                Some(kept) => Some(*kept),
                None => {
                    fresh[index] = true;
                    counts.chunks += 1;
                    let id = self.scope.pack_store.keys.id.id(&job.segment()[piece.range()]);
                    Some(FrameRef { id, location: nowhere })
                }
            };
            entries.push(RecipeEntry::new(piece.length, chunk));
        }
        (SegmentRecipe { entries }, fresh)
    }

    /// Fills the job's entries, and looks up the new chunks that the old recipe does not have.
    fn look_up(
        &mut self,
        job: &mut SegmentJob,
        (recipe, layout, fresh): (&SegmentRecipe, &[LaidPiece], &[bool]),
        old: Option<&SegmentRecipe>,
        counts: &mut BackupCounts,
    ) -> Result<LookedUpChunks> {
        let look_up = self.scope.in_flight.begin_look_up();
        let mut chunks = Vec::new();
        let found = self.rows(recipe, fresh, old).and_then(|rows| {
            self.stored.read_ahead(&rows)?;
            for ((entry, fresh), (piece, _)) in recipe.entries.iter().zip(fresh).zip(layout) {
                let state = match entry.chunk {
                    None => ChunkState::Hole,
                    Some(known) if !fresh => ChunkState::Known(known),
                    Some(new) => match self.in_old_recipe(new.id, old)? {
                        Some(known) => {
                            counts.inner_dup_bytes += u64::from(piece.length);
                            ChunkState::Known(known)
                        }
                        None => {
                            let found = self.found(new.id, rows.get(&new.id.short()))?;
                            let entry = job.entries.len();
                            chunks.push(LookedUpChunk { entry, id: new.id, raw: piece.range(), found });
                            ChunkState::InFlight(new.id)
                        }
                    },
                };
                job.entries.push(JobEntry::new(entry.length, state));
            }
            Ok(())
        });
        match found {
            Ok(()) => Ok(LookedUpChunks { look_up, chunks }),
            Err(error) => {
                self.scope.in_flight.lock().end_look_up(look_up);
                Err(error)
            }
        }
    }

    /// Asks the index at once for the chunks of a segment that are neither in its old recipe nor in flight.
    fn rows(
        &self,
        recipe: &SegmentRecipe,
        fresh: &[bool],
        old: Option<&SegmentRecipe>,
    ) -> Result<SegmentRows> {
        if self.scope.stores_whole_segments {
            return Ok(SegmentRows::new());
        }
        let old: HashSet<ChunkId> =
            old.into_iter().flat_map(|old| &old.entries).filter_map(|entry| Some(entry.chunk?.id)).collect();
        let new =
            recipe.entries.iter().zip(fresh).filter_map(|(entry, fresh)| entry.chunk.filter(|_| *fresh));
        let mut ids: BTreeSet<[u8; 16]> =
            new.filter(|new| !old.contains(&new.id)).map(|new| new.id.short()).collect();
        let in_flight = self.scope.in_flight.lock();
        ids.retain(|id| !in_flight.has(id));
        drop(in_flight);
        let ids: Vec<[u8; 16]> = ids.into_iter().collect();
        let rows = self.scope.pack_store.index.rows_of(self.stored.home(), &ids)?;
        Ok(ids.into_iter().zip(rows).collect())
    }

    /// The frame of a chunk in the old recipe of its segment, unless it is damaged.
    fn in_old_recipe(&self, id: ChunkId, old: Option<&SegmentRecipe>) -> Result<Option<FrameRef>> {
        if self.scope.stores_whole_segments {
            return Ok(None);
        }
        let mut chunks = old.into_iter().flat_map(|old| &old.entries).filter_map(|entry| entry.chunk);
        let Some(known) = chunks.find(|old| old.id == id) else {
            return Ok(None);
        };
        let FrameLocation { pack, slot, .. } = known.location;
        Ok((!self.scope.pack_store.index.is_damaged(pack, slot)?).then_some(known))
    }

    /// The frame of a chunk in the index. `rows`: those of its id, if it was looked up; else it is in flight, or in the
    /// old recipe and damaged there.
    fn found(&mut self, id: ChunkId, rows: Option<&Vec<IndexRow>>) -> Result<Option<FrameRef>> {
        match rows {
            None if self.scope.stores_whole_segments || self.scope.in_flight.has(&id.short()) => Ok(None),
            rows => self.stored.find(id, rows),
        }
    }

    /// Whether the base's recipe of a segment, or a chunk in it, is noted as damaged: then the segment is
    /// written anew.
    fn is_hurt(&self, reference: &FrameRef, length: u64) -> Result<bool> {
        let index = &self.scope.pack_store.index;
        if !index.has_damaged() {
            return Ok(false);
        }
        if index.is_damaged(reference.location.pack, reference.location.slot)? {
            return Ok(true);
        }
        let recipe = match self.scope.old.segment(reference, length) {
            Err(error) if error.is_corruption() => return Ok(true),
            recipe => recipe?,
        };
        for chunk in recipe.entries.iter().filter_map(|entry| entry.chunk) {
            if index.is_damaged(chunk.location.pack, chunk.location.slot)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
