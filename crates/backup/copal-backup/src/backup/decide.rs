//! Decides about segments in the order of the disk: which chunks are new within this backup.
//!
//! Threads offer segments in any order; each waits here until all before it are decided. Look-ups that need no other
//! segment were made before (`segment_reader`). So a backup makes the same recipes with any number of threads.
//!
//! The first end in the order of the steps is that of the backup: an error of a later segment does not count.

use super::in_flight_chunks::InFlightChunks;
use super::job::{ChunkState, NewChunk, SegmentJob, TreeStep};
use super::packer::PackMessage;
use super::pipeline_end::PipelineEnd;
use super::segment_task::{LookedUpChunks, PreparedSegment, SegmentContent};
use super::spool::SpoolWriter;
use super::work_queue::{NumberedJob, WorkQueue};
use crate::request::BackupCounts;
use crate::request::error::Result;
use crossbeam_channel::Sender;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The next thing in the order of a disk.
pub(super) enum StepOffer {
    Step(TreeStep),
    /// The disk has this size, and these bytes that are not holes beside the segments that were read.
    EndOfDisk {
        size_bytes: u64,
        data_bytes: u64,
    },
    Segment(Box<PreparedSegment>),
    /// No step follows: all is read (`None`), or reading ended here.
    End(Option<PipelineEnd>),
}

/// Sink of decided steps.
pub(super) enum StepSink {
    /// The compressors and the packer.
    Line(Arc<WorkQueue>, Sender<PackMessage>),
    /// A file: chunks are named, and stored later or never.
    Spool(SpoolWriter),
}

/// Decides in order. Shared by all threads of a backup.
pub(super) struct ChunkDecider<'a> {
    in_flight: &'a InFlightChunks,
    state: Mutex<DeciderState>,
}

struct DeciderState {
    next: u64,
    /// Offers that wait for those before them.
    waiting: BTreeMap<u64, StepOffer>,
    sink: StepSink,
    counts: BackupCounts,
    /// Bytes that are not holes: the difference between segments that were read and those of the base.
    more_data: i64,
    end: Option<Option<PipelineEnd>>,
}

/// The result of reading and deciding.
pub(super) struct DecidedPart {
    pub(super) sink: StepSink,
    pub(super) counts: BackupCounts,
    /// Reason of an early end.
    pub(super) end: Option<PipelineEnd>,
}

impl<'a> ChunkDecider<'a> {
    pub(super) fn new(in_flight: &'a InFlightChunks, sink: StepSink) -> ChunkDecider<'a> {
        let state = DeciderState {
            next: 0,
            waiting: BTreeMap::new(),
            sink,
            counts: BackupCounts::default(),
            more_data: 0,
            end: None,
        };
        ChunkDecider { in_flight, state: Mutex::new(state) }
    }

    /// Takes step `number`, and decides all steps that waited for it. Returns a job that is free again.
    /// # Errors
    /// Errors of the spool.
    pub(super) fn offer(&self, number: u64, offer: StepOffer) -> Result<Option<SegmentJob>> {
        let mut state = self.state.lock();
        state.waiting.insert(number, offer);
        let mut free = None;
        while state.end.is_none()
            && let next = state.next
            && let Some(offer) = state.waiting.remove(&next)
        {
            state.next += 1;
            let step = match offer {
                StepOffer::Step(step) => step,
                StepOffer::EndOfDisk { size_bytes, data_bytes } => {
                    let data_bytes = data_bytes.saturating_add_signed(std::mem::take(&mut state.more_data));
                    state.counts.logical_bytes += size_bytes;
                    state.counts.data_bytes += data_bytes;
                    TreeStep::EndOfDisk { size_bytes, data_bytes }
                }
                StepOffer::Segment(segment) => state.decide(self.in_flight, segment, &mut free),
                StepOffer::End(end) => {
                    state.end = Some(end);
                    state.waiting.clear();
                    if let StepSink::Line(_, packer) = &state.sink {
                        // A packer that has failed reports the reason itself.
                        let _ = packer.send(PackMessage::End(next));
                    }
                    break;
                }
            };
            state.send(next, step, &mut free)?;
        }
        Ok(free)
    }

    /// Bytes of a disk that are not holes, if it had `data` before the segments that were decided since the last call.
    pub(super) fn data_after(&self, data: u64) -> u64 {
        let more = std::mem::take(&mut self.state.lock().more_data);
        data.saturating_add_signed(more)
    }

    /// Ends deciding.
    pub(super) fn into_part(self) -> DecidedPart {
        let state = self.state.into_inner();
        // Without an end a thread has failed, and reports the reason itself.
        let end = state.end.unwrap_or(Some(PipelineEnd::Disconnected));
        DecidedPart { sink: state.sink, counts: state.counts, end }
    }
}

impl DeciderState {
    /// Decides about a segment that was read.
    fn decide(
        &mut self,
        in_flight: &InFlightChunks,
        segment: Box<PreparedSegment>,
        free: &mut Option<SegmentJob>,
    ) -> TreeStep {
        let PreparedSegment { mut job, data_bytes, old_data_bytes, counts, content } = *segment;
        self.counts.add(&counts);
        self.more_data += data_bytes as i64 - old_data_bytes as i64;
        let step = match content {
            SegmentContent::Hole => TreeStep::Segment(None),
            SegmentContent::Same(reference) => TreeStep::Segment(Some(reference)),
            SegmentContent::Chunks(chunks) => {
                self.decide_chunks(in_flight, &mut job, chunks);
                return TreeStep::Write(job);
            }
        };
        self.release(job, free);
        step
    }

    fn decide_chunks(&mut self, in_flight: &InFlightChunks, job: &mut SegmentJob, looked_up: LookedUpChunks) {
        let is_stored = !matches!(self.sink, StepSink::Spool(_));
        let mut table = in_flight.lock();
        for chunk in looked_up.chunks {
            let bytes = chunk.raw.len() as u64;
            let counts = &mut self.counts;
            job.entries[chunk.entry].state = if table.has(&chunk.id.short()) {
                counts.inner_dup_bytes += bytes;
                ChunkState::InFlight(chunk.id)
            } else if let Some(known) = chunk.found {
                match table.wrote(known.location.pack) {
                    true => counts.inner_dup_bytes += bytes,
                    false => counts.cross_dup_bytes += bytes,
                }
                ChunkState::Known(known)
            } else {
                // A first pass only names a new chunk; the second pass decides whether it is stored.
                if is_stored {
                    table.enter(&chunk.id.short());
                    counts.new_bytes += bytes;
                    counts.new_chunks += 1;
                }
                ChunkState::New(NewChunk { id: chunk.id, raw: chunk.raw, packed: None })
            };
        }
        table.end_look_up(looked_up.look_up);
    }

    fn send(&mut self, number: u64, step: TreeStep, free: &mut Option<SegmentJob>) -> Result<()> {
        match &mut self.sink {
            StepSink::Line(queue, packer) => match step {
                TreeStep::Write(job) => queue.push_decided(NumberedJob { number, job }),
                // A packer that has failed reports the reason itself.
                step => drop(packer.send(PackMessage::Step(number, step))),
            },
            StepSink::Spool(spool) => {
                spool.push(&step)?;
                if let TreeStep::Write(job) = step {
                    *free = Some(job);
                }
            }
        }
        Ok(())
    }

    fn release(&mut self, job: SegmentJob, free: &mut Option<SegmentJob>) {
        match &self.sink {
            StepSink::Line(queue, _) => queue.give_back(job),
            StepSink::Spool(_) => *free = Some(job),
        }
    }
}
