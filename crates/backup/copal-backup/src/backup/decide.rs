//! Decides about a segment that was read: names its chunks and finds out which are new.
//!
//! The questions, cheapest first: Is the whole recipe that of the base? Is the chunk in the old recipe of
//! this segment? Is it in flight in this backup? Is it in the index?

use super::job::{ChunkState, JobEntry, NewChunk, SegmentJob, TreeStep};
use super::pipeline_end::PipelineResult;
use super::read_helpers::data_of;
use super::reader::DiskReader;
use crate::index::IndexRow;
use crate::packs::pack::{FrameLocation, PackNumber};
use crate::request::error::Result;
use crate::snapshot::recipe::format::SEGMENT_LEVEL;
use crate::snapshot::recipe::{FrameRef, RecipeEntry, SegmentRecipe};
use copal_chunk::{ChunkId, SegmentPiece};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

/// Rows of the chunk index by id, for the ids of one segment that it was asked for.
type SegmentRows = HashMap<[u8; 16], Vec<IndexRow>>;

impl DiskReader<'_> {
    /// Names the chunks, decides about each and sends the segment on. Returns the bytes of the segment that
    /// are not holes.
    pub(super) fn finish_segment(
        &mut self,
        mut job: Box<SegmentJob>,
        layout: &[(SegmentPiece, Option<FrameRef>)],
        reference: Option<FrameRef>,
        old: Option<&SegmentRecipe>,
    ) -> PipelineResult<u64> {
        let (recipe, fresh) = self.name_chunks(&job, layout);
        let data = data_of(&recipe.entries);
        if data == 0 {
            self.spare = Some(job);
            self.send(TreeStep::Segment(None))?;
            return Ok(0);
        }
        let recipe_id = self.key.id(SEGMENT_LEVEL, &recipe.logical());
        let length: u64 = recipe.entries.iter().map(|entry| u64::from(entry.length)).sum();
        let same = reference.filter(|reference| reference.id == recipe_id);
        let is_hurt = match &same {
            Some(same) => self.is_hurt(same, length)?,
            None => false,
        };
        if let Some(same) = same.filter(|_| !is_hurt) {
            let read = fresh.iter().zip(&recipe.entries).filter(|(fresh, _)| **fresh);
            self.counts.inner_dup_bytes += read.map(|(_, entry)| u64::from(entry.length)).sum::<u64>();
            self.spare = Some(job);
            self.send(TreeStep::Segment(Some(same)))?;
            return Ok(data);
        }
        let read_old;
        let old = match (old, reference) {
            (Some(old), _) => Some(old),
            (None, Some(reference)) => {
                // Segment 0 of a disk of `length` bytes is `length` bytes long.
                read_old = self.tree.segment(&reference, length, 0).ok();
                read_old.as_ref()
            }
            (None, None) => None,
        };
        job.recipe_id = recipe_id;
        job.entries.clear();
        let rows = self.look_up(&recipe, &fresh, old)?;
        self.stored.read_ahead(&rows)?;
        for ((entry, fresh), (piece, _)) in recipe.entries.iter().zip(fresh).zip(layout) {
            let state = match entry.chunk {
                None => ChunkState::Hole,
                Some(known) if !fresh => ChunkState::Known(known),
                Some(new) => self.decide(new.id, piece, old, &rows)?,
            };
            job.entries.push(JobEntry::new(entry.length, state));
        }
        self.send(TreeStep::Write(job))?;
        Ok(data)
    }

    /// The recipe of a segment, in which new chunks have a name but no location; and which of the entries are
    /// new.
    fn name_chunks(
        &mut self,
        job: &SegmentJob,
        layout: &[(SegmentPiece, Option<FrameRef>)],
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
                    self.counts.chunks += 1;
                    let id = self.pack_store.keys.id.id(&job.segment[piece.range()]);
                    Some(FrameRef { id, location: nowhere })
                }
            };
            entries.push(RecipeEntry::new(piece.length, chunk));
        }
        (SegmentRecipe { entries }, fresh)
    }

    /// Asks the index at once for the chunks of a segment that are neither in its old recipe nor in flight.
    fn look_up(
        &self,
        recipe: &SegmentRecipe,
        fresh: &[bool],
        old: Option<&SegmentRecipe>,
    ) -> Result<SegmentRows> {
        if self.stores_whole_segments {
            return Ok(SegmentRows::new());
        }
        let old: HashSet<ChunkId> =
            old.into_iter().flat_map(|old| &old.entries).filter_map(|entry| Some(entry.chunk?.id)).collect();
        let new =
            recipe.entries.iter().zip(fresh).filter_map(|(entry, fresh)| entry.chunk.filter(|_| *fresh));
        let unknown = new.filter(|new| !old.contains(&new.id) && !self.in_flight.has(&new.id.short()));
        let ids: BTreeSet<[u8; 16]> = unknown.map(|new| new.id.short()).collect();
        let ids: Vec<[u8; 16]> = ids.into_iter().collect();
        let rows = self.pack_store.index.rows_of(self.stored.home(), &ids)?;
        Ok(ids.into_iter().zip(rows).collect())
    }

    /// Decides about one chunk: old recipe, in flight, index, or new.
    fn decide(
        &mut self,
        id: ChunkId,
        piece: &SegmentPiece,
        old: Option<&SegmentRecipe>,
        rows: &SegmentRows,
    ) -> PipelineResult<ChunkState> {
        if self.stores_whole_segments && !self.in_flight.has(&id.short()) {
            return Ok(self.state_of_new(id, piece.range()));
        }
        let bytes = u64::from(piece.length);
        let mut old_chunks = old.into_iter().flat_map(|old| &old.entries).filter_map(|entry| entry.chunk);
        let known = old_chunks.find(|old| old.id == id);
        if let Some(known) = known
            && !self.pack_store.index.is_damaged(known.location.pack, known.location.slot)?
        {
            self.counts.inner_dup_bytes += bytes;
            return Ok(ChunkState::Known(known));
        }
        if let Some(state) = self.known_to_vm(id, bytes, rows.get(&id.short()))? {
            return Ok(state);
        }
        Ok(self.state_of_new(id, piece.range()))
    }

    /// The state of a chunk that this backup, or the index of its home, has. `rows`: index rows of its id, if they were
    /// looked up already.
    pub(super) fn known_to_vm(
        &mut self,
        id: ChunkId,
        bytes: u64,
        rows: Option<&Vec<IndexRow>>,
    ) -> PipelineResult<Option<ChunkState>> {
        if self.in_flight.has(&id.short()) {
            self.counts.inner_dup_bytes += bytes;
            return Ok(Some(ChunkState::InFlight(id)));
        }
        if let Some(known) = self.stored.find(id, rows)? {
            if self.in_flight.wrote(known.location.pack) {
                self.counts.inner_dup_bytes += bytes;
            } else {
                self.counts.cross_dup_bytes += bytes;
            }
            return Ok(Some(ChunkState::Known(known)));
        }
        Ok(None)
    }

    /// The state of a new chunk. The first pass only names it; the second pass decides whether it is stored.
    pub(super) fn state_of_new(&mut self, id: ChunkId, raw: Range<usize>) -> ChunkState {
        if !self.outlet.is_spool() {
            self.in_flight.enter(&id.short());
            self.counts.new_bytes += raw.len() as u64;
            self.counts.new_chunks += 1;
        }
        ChunkState::New(NewChunk { id, raw, packed: None })
    }

    /// Whether the base's recipe of a segment, or a chunk in it, is noted as damaged: then the segment is
    /// written anew.
    fn is_hurt(&mut self, reference: &FrameRef, length: u64) -> Result<bool> {
        let index = &self.pack_store.index;
        if !index.has_damaged() {
            return Ok(false);
        }
        if index.is_damaged(reference.location.pack, reference.location.slot)? {
            return Ok(true);
        }
        let recipe = match self.tree.segment(reference, length, 0) {
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
