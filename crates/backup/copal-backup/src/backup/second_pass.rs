//! Second pass over a part of a disk: decides about the chunks that the first pass named, and reads again
//! only the new ones.
//!
//! Invariants
//! - A chunk that differs from its name of the first pass is never stored under that name. That happens if a
//!   disk is written while it is read. The segment is then read whole and decided anew, without the other
//!   hosts.
//! - An answer is verified: a hit counts if its pack was checked, and the frame has the id (BAK-20).

use super::job::{ChunkState, JobEntry, NewChunk, TreeStep};
use super::pipeline_end::{PipelineEnd, PipelineResult};
use super::popular::PopularPacker;
use super::read_helpers::read_exactly;
use super::reader::DiskReader;
use super::spool::{ChunkSpool, SpoolItem, SpooledSegment};
use crate::catalog::popular::PopularState;
use crate::packs::home::PackHome;
use crate::packs::pack::FrameLocation;
use crate::request::DiskSource;
use crate::request::error::Result;
use crate::request::peers::Answer;
use crate::snapshot::recipe::FrameRef;
use crate::steps::popular::counts;
use copal_chunk::{ChunkId, SEGMENT_BYTES};
use std::ops::Range;

/// Most bytes of one read, unless a chunk is larger.
const RUN_BYTES: usize = 256 << 10;
/// At most one byte in this many of a read is not needed.
const WANTED_SHARE: usize = 5;

/// The answers for a part, and the log of popular packs.
pub(super) struct PartAnswers<'a> {
    /// In the order of the questions.
    pub(super) answers: &'a [Answer],
    pub(super) popular: &'a PopularState,
}

impl PartAnswers<'_> {
    fn of(&self, number: usize) -> Answer {
        self.answers.get(number).copied().unwrap_or(Answer::UNANSWERED)
    }
}

impl DiskReader<'_, '_> {
    /// Stores the popular chunks of a part that were assigned to this host.
    pub(super) fn store_popular(
        &mut self,
        disk: usize,
        spool: &ChunkSpool,
        answers: &[Answer],
        packer: &mut PopularPacker<'_>,
    ) -> PipelineResult<()> {
        let disk = self.choose_disk(disk);
        let mut number = 0;
        let mut bytes = vec![0; SEGMENT_BYTES];
        spool.for_each(|spooled| {
            let SpoolItem::Segment(segment) = spooled else {
                return Ok(());
            };
            self.check_cancel()?;
            let mut wanted = Vec::new();
            for entry in segment.entries {
                let ChunkState::New(chunk) = entry.state else {
                    continue;
                };
                let is_popular = answers.get(number) == Some(&Answer::STORE_POPULAR);
                number += 1;
                if is_popular && !packer.has(&chunk.id.short())? {
                    wanted.push(chunk);
                }
            }
            self.read_wanted(disk, segment.start, &wanted, &mut bytes)?;
            for chunk in wanted {
                let raw = &bytes[chunk.raw];
                // A chunk that differs by now is left to the pass that stores the rest. A chunk that occurs
                // twice is stored once.
                if self.scope.pack_store.keys.id.id(raw) == chunk.id && !packer.has(&chunk.id.short())? {
                    packer.store(&chunk.id.short(), raw)?;
                    self.counts.popular_bytes += raw.len() as u64;
                }
            }
            Ok(())
        })
    }

    /// Sends the steps of a part, with the bytes of new chunks.
    pub(super) fn store_rest(
        &mut self,
        disk: usize,
        spool: &ChunkSpool,
        said: &PartAnswers<'_>,
        packer: &PopularPacker<'_>,
    ) -> PipelineResult<()> {
        let disk = self.choose_disk(disk);
        // Chunks are decided on this thread, in order, so no segment may be decided elsewhere.
        self.reads_itself = true;
        let mut number = 0;
        // Bytes of data that segments had in the first pass and that are read anew.
        let mut less = 0;
        spool.for_each(|spooled| match spooled {
            SpoolItem::Step(TreeStep::EndOfDisk { size_bytes, data_bytes }) => {
                let more = self.more_data();
                let data_bytes = (data_bytes + more).saturating_sub(less);
                self.send(TreeStep::EndOfDisk { size_bytes, data_bytes })
            }
            SpoolItem::Step(step) => self.send(step),
            SpoolItem::Segment(segment) => {
                self.check_cancel()?;
                let first = number;
                number += segment.entries.iter().filter_map(JobEntry::new_id).count();
                let range = segment.range();
                let before = segment.data_bytes();
                if !self.store_segment(disk, segment, first, said, packer)? {
                    self.whole_segment(disk, &range, None)?;
                    less += before;
                }
                Ok(())
            }
        })
    }

    /// Stores one segment; `false`: its bytes have changed since the first pass.
    fn store_segment(
        &mut self,
        disk: &DiskSource,
        segment: SpooledSegment,
        first: usize,
        said: &PartAnswers<'_>,
        packer: &PopularPacker<'_>,
    ) -> PipelineResult<bool> {
        let mut number = first;
        let mut entries = Vec::with_capacity(segment.entries.len());
        let mut wanted = Vec::new();
        for entry in segment.entries {
            let ChunkState::New(chunk) = entry.state else {
                entries.push(entry);
                continue;
            };
            let (state, is_unresolved) = self.settle(chunk, said.of(number), said.popular, packer)?;
            number += 1;
            if let ChunkState::New(chunk) = &state {
                wanted.push(chunk.clone());
            }
            entries.push(JobEntry { length: entry.length, state, is_unresolved });
        }
        let mut job = self.job()?;
        job.start = segment.start;
        self.read_wanted(disk, segment.start, &wanted, job.segment_mut())?;
        let ids = &self.scope.pack_store.keys.id;
        if wanted.iter().any(|chunk| ids.id(&job.segment()[chunk.raw.clone()]) != chunk.id) {
            self.keep(job);
            return Ok(false);
        }
        let mut in_flight = self.scope.in_flight.lock();
        for entry in &mut entries {
            let ChunkState::New(NewChunk { id, raw, .. }) = &entry.state else {
                continue;
            };
            // The chunk may occur twice in the segment.
            if in_flight.has(&id.short()) {
                entry.state = ChunkState::InFlight(*id);
                continue;
            }
            in_flight.enter(&id.short());
            self.counts.unresolved_chunks += u64::from(entry.is_unresolved);
            self.counts.new_bytes += raw.len() as u64;
            self.counts.new_chunks += 1;
        }
        drop(in_flight);
        job.recipe_id = segment.recipe_id;
        job.entries = entries;
        self.send(TreeStep::Write(job))?;
        Ok(true)
    }

    /// The state of a chunk that this backup, or the index of its home, has.
    fn known_to_vm(&mut self, id: ChunkId, bytes: u64) -> Result<Option<ChunkState>> {
        if self.scope.in_flight.has(&id.short()) {
            self.counts.inner_dup_bytes += bytes;
            return Ok(Some(ChunkState::InFlight(id)));
        }
        let Some(known) = self.segments.stored.find(id, None)? else {
            return Ok(None);
        };
        match self.scope.in_flight.wrote(known.location.pack) {
            true => self.counts.inner_dup_bytes += bytes,
            false => self.counts.cross_dup_bytes += bytes,
        }
        Ok(Some(ChunkState::Known(known)))
    }

    /// Decides about a chunk that the VM did not have. The flag tells whether it lacks an answer.
    fn settle(
        &mut self,
        chunk: NewChunk,
        answer: Answer,
        popular: &PopularState,
        packer: &PopularPacker<'_>,
    ) -> PipelineResult<(ChunkState, bool)> {
        let bytes = chunk.raw.len() as u64;
        if let Some(known) = self.known_to_vm(chunk.id, bytes)? {
            return Ok((known, false));
        }
        let found = match answer.ordinal() {
            Some(ordinal) => self.popular_frame(ordinal, &chunk.id, popular)?,
            None if answer == Answer::STORE_POPULAR => packer.find(&chunk.id.short())?,
            None => None,
        };
        if let Some(location) = found {
            self.counts.popular_dup_bytes += bytes;
            let id = chunk.id;
            return Ok((ChunkState::Known(FrameRef { id, location }), false));
        }
        let is_unresolved = !answer.leaves_it_to_the_vm() && answer != Answer::STORE_POPULAR;
        Ok((ChunkState::New(chunk), is_unresolved))
    }

    /// The frame of an ordinal, if its pack may be used and the frame has that id.
    fn popular_frame(
        &mut self,
        ordinal: u32,
        id: &ChunkId,
        popular: &PopularState,
    ) -> Result<Option<FrameLocation>> {
        let Some((pack, slot)) = popular.of_ordinal(ordinal) else {
            return Ok(None);
        };
        if !counts(popular, pack.pack) {
            return Ok(None);
        }
        let location = FrameLocation { home: PackHome::Shared, volume: pack.volume, pack: pack.pack, slot };
        let located = match self.scope.pack_store.at(location, &id.short()) {
            Err(error) if error.is_corruption() => None,
            located => located?,
        };
        let opens = match &located {
            Some(located) => self.segments.stored.opens_to(located, id)?,
            None => false,
        };
        Ok(opens.then_some(location))
    }

    /// Reads chunks to their places in a segment, neighbours in one read.
    fn read_wanted(
        &mut self,
        disk: &DiskSource,
        start: u64,
        wanted: &[NewChunk],
        segment: &mut [u8],
    ) -> PipelineResult<()> {
        for run in runs_of(wanted.iter().map(|chunk| chunk.raw.clone())) {
            self.counts.read_again_bytes += run.len() as u64;
            read_exactly(disk, start + run.start as u64, &mut segment[run]).map_err(PipelineEnd::from)?;
        }
        Ok(())
    }
}

/// The reads that cover ascending ranges.
fn runs_of(wanted: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut unwanted = 0;
    for range in wanted {
        if let Some(run) = runs.last_mut() {
            let gap = range.start - run.end;
            let whole = range.end - run.start;
            if whole <= RUN_BYTES && (unwanted + gap) * WANTED_SHARE <= whole {
                unwanted += gap;
                run.end = range.end;
                continue;
            }
        }
        unwanted = 0;
        runs.push(range);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_read_at_once_with_few_bytes_between_them() {
        const K: usize = 1 << 10;
        let wanted = [0..16 * K, 16 * K..40 * K, 44 * K..60 * K, 100 * K..104 * K];
        assert_eq!(runs_of(wanted.into_iter()), [0..60 * K, 100 * K..104 * K]);
        let long = (0..40).map(|number| number * 16 * K..(number + 1) * 16 * K);
        assert!(runs_of(long).iter().all(|run| run.len() <= RUN_BYTES));
        assert!(runs_of(std::iter::empty()).is_empty());
    }
}
