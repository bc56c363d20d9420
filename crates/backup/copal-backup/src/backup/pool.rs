//! A thread of the pool: takes the oldest work that there is.

use super::compress::ChunkCompressor;
use super::decide::{ChunkDecider, StepOffer};
use super::job::SegmentJob;
use super::packer::PackMessage;
use super::pipeline_end::PipelineEnd;
use super::segment_reader::{SegmentReader, SegmentScope};
use super::segment_task::SegmentTask;
use super::work_queue::{NumberedJob, PoolWork, WorkQueue};
use crate::packs::pack::writer::SealScratch;
use crate::request::error::{Error, Result};
use crossbeam_channel::Sender;

/// The ends of a backup's threads that a thread of the pool needs.
#[derive(Clone)]
pub(super) struct PoolThread<'r, 'a> {
    pub(super) scope: &'r SegmentScope<'a>,
    pub(super) queue: &'r WorkQueue,
    pub(super) decider: &'r ChunkDecider<'r>,
    pub(super) packer: Sender<PackMessage>,
}

impl PoolThread<'_, '_> {
    /// Memory of a thread beside its job: compression, and the frame that is being sealed.
    pub(super) const MEMORY_BYTES: u64 = 512 << 10;

    /// Works until there is no more work.
    pub(super) fn run(self) {
        let _guard = FailureGuard(&self.packer);
        if let Err(error) = self.work() {
            // A packer that has failed reports the reason itself.
            let _ = self.packer.send(PackMessage::Failed(error));
        }
    }

    fn work(&self) -> Result<()> {
        let mut reader = SegmentReader::new(self.scope)?;
        let mut compressor = ChunkCompressor::new()?;
        let mut scratch = SealScratch::default();
        while let Some(work) = self.queue.take() {
            match work {
                PoolWork::Read(task, job) => self.read(&mut reader, task, job)?,
                PoolWork::Compress(NumberedJob { number, mut job }) => {
                    job.pack(&mut compressor);
                    let _ = self.packer.send(PackMessage::Packed(NumberedJob { number, job }));
                }
                PoolWork::Seal(NumberedJob { number, mut job }) => {
                    job.seal(&mut scratch)?;
                    let _ = self.packer.send(PackMessage::Sealed(NumberedJob { number, job }));
                }
            }
        }
        Ok(())
    }

    /// Reads a segment. If that fails, the disk ends there: the segments before it are stored.
    fn read(&self, reader: &mut SegmentReader<'_, '_>, task: SegmentTask, job: SegmentJob) -> Result<()> {
        let number = task.number;
        let read = match self.scope.cancel.is_cancelled() {
            true => Err(PipelineEnd::Cancelled),
            false => reader.prepare(task, job).map_err(PipelineEnd::Failed),
        };
        let offer = match read {
            Ok(segment) => StepOffer::Segment(Box::new(segment)),
            Err(end) => {
                self.queue.stop_reading();
                StepOffer::End(Some(end))
            }
        };
        self.decider.offer(number, offer).map(drop)
    }
}

/// Tells the packer if the thread panics, so that no other thread waits for it.
pub(super) struct FailureGuard<'p>(pub(super) &'p Sender<PackMessage>);

impl Drop for FailureGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let reason = "a thread of the backup ended early".into();
            let _ = self.0.send(PackMessage::Failed(Error::Invalid { reason }));
        }
    }
}
