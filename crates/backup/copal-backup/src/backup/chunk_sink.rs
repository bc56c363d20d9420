//! Sink of the reader's steps: the pipeline, or a spool until the answers of other hosts have come.

use super::job::{NumberedStep, SegmentJob, TreeStep};
use super::pipeline_end::{PipelineEnd, PipelineResult};
use super::spool::SpoolWriter;
use crossbeam_channel::{Receiver, Sender};

/// The reader's ends of the pipeline: empty jobs come from one, steps go to the others.
pub(crate) struct ReaderChannels {
    pub(crate) free: Receiver<Box<SegmentJob>>,
    pub(crate) compress: Sender<NumberedStep>,
    pub(crate) pack: Sender<NumberedStep>,
}

/// Sink of steps.
pub(crate) enum ChunkSink {
    /// The compressors and the packer, with the number of the next step.
    Line(ReaderChannels, u64),
    /// A file: chunks are named, and stored later or never.
    Spool(SpoolWriter),
}

impl ChunkSink {
    pub(super) fn line(channels: ReaderChannels) -> ChunkSink {
        ChunkSink::Line(channels, 0)
    }

    pub(super) fn is_spool(&self) -> bool {
        matches!(self, ChunkSink::Spool(_))
    }

    /// Takes an empty job; blocks until there is one.
    pub(super) fn job(&self) -> PipelineResult<Box<SegmentJob>> {
        match self {
            ChunkSink::Line(channels, _) => channels.free.recv().map_err(|_| PipelineEnd::Disconnected),
            // Only one job is in use: `send` returns it.
            ChunkSink::Spool(_) => Ok(SegmentJob::new()),
        }
    }

    /// Sends a step on. Returns a job that is free again.
    pub(super) fn send(&mut self, step: TreeStep) -> PipelineResult<Option<Box<SegmentJob>>> {
        match self {
            ChunkSink::Line(channels, next) => {
                let outlet = match &step {
                    TreeStep::Write(_) => &channels.compress,
                    _ => &channels.pack,
                };
                let number = *next;
                *next += 1;
                let sent = outlet.send(NumberedStep { number, step });
                sent.map(|()| None).map_err(|_| PipelineEnd::Disconnected)
            }
            ChunkSink::Spool(spool) => {
                spool.push(&step)?;
                Ok(match step {
                    TreeStep::Write(job) => Some(job),
                    _ => None,
                })
            }
        }
    }
}
