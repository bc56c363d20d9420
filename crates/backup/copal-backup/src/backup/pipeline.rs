//! The pipeline of a backup: the reader feeds the compressors, these feed the packer, and empty jobs return
//! to the reader.
//!
//! Not here: the work of each thread (`reader`, `compress`, `packer`).

use super::chunk_sink::ReaderChannels;
use super::compress;
use super::job::{NumberedStep, SegmentJob};
use super::packer::TreePacker;
use super::pipeline_end::PipelineResult;
use crate::request::error::{Error, Result};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

/// Capacity of a channel between two threads, in steps.
const CHANNEL_STEPS: usize = 64;
const COMPRESSORS: usize = 2;

/// The ends of the channels that the compressors and the packer hold.
pub(super) struct Pipeline {
    free: Sender<Box<SegmentJob>>,
    to_compress: Receiver<NumberedStep>,
    compressed: Sender<NumberedStep>,
    to_pack: Receiver<NumberedStep>,
}

impl Pipeline {
    /// A pipeline in which `jobs` circulate, and the reader's ends of it.
    pub(super) fn with_jobs(jobs: u64) -> (Pipeline, ReaderChannels) {
        let (free_in, free_out) = unbounded();
        for _ in 0..jobs {
            // The receiver is alive: it is in the channels returned below.
            let _ = free_in.send(SegmentJob::new());
        }
        let (compress_in, compress_out) = bounded(CHANNEL_STEPS);
        let (pack_in, pack_out) = bounded(CHANNEL_STEPS);
        let channels = ReaderChannels { free: free_out, compress: compress_in, pack: pack_in.clone() };
        let line =
            Pipeline { free: free_in, to_compress: compress_out, compressed: pack_in, to_pack: pack_out };
        (line, channels)
    }

    /// Runs `read` on this thread and the other stages beside it; all have ended when this returns. `read`
    /// drops its channels at its end.
    /// # Errors
    /// Errors of the packer, then of the compressors; the inner result is that of `read`. `Invalid`: the
    /// system starts no threads, and `read` was not run.
    pub(super) fn run<T>(
        self,
        packer: &mut TreePacker<'_>,
        read: impl FnOnce() -> PipelineResult<T>,
    ) -> Result<PipelineResult<T>> {
        let Pipeline { free, to_compress, compressed, to_pack } = self;
        let (read, compressed, packed) = std::thread::scope(|scope| {
            // The packer starts first: if it cannot, the channels close with `read`.
            let packing = std::thread::Builder::new()
                .name("pack".to_owned())
                .spawn_scoped(scope, move || packer.run(&to_pack, &free))
                .map_err(no_thread)?;
            let mut compressors = Vec::new();
            let mut refused = None;
            for _ in 0..COMPRESSORS {
                let (jobs, done) = (to_compress.clone(), compressed.clone());
                let compressor = std::thread::Builder::new().name("compress".to_owned());
                match compressor.spawn_scoped(scope, move || compress::run(&jobs, &done)) {
                    Ok(compressor) => compressors.push(compressor),
                    Err(error) => refused = Some(error),
                }
            }
            drop((to_compress, compressed));
            if let (true, Some(error)) = (compressors.is_empty(), refused) {
                // The packer ends when the last channel to it closes.
                drop(read);
                join(packing)?;
                return Err(no_thread(error));
            }
            let read = read();
            let compressed = compressors.into_iter().map(join).collect::<Result<Vec<()>>>();
            Ok((read, compressed, join(packing)))
        })?;
        packed?;
        compressed?;
        Ok(read)
    }
}

fn no_thread(error: std::io::Error) -> Error {
    Error::Invalid {
        reason: format!(
            "the system starts no thread: {error}; raise its limit of processes (ulimit -u, pids.max) and try again"
        ),
    }
}

fn join(thread: std::thread::ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
