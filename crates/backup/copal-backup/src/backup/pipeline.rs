//! The pipeline of a backup: the calling thread walks the disk, a pool reads, compresses and seals segments, and one
//! thread packs them in order.
//!
//! Not here: the work of each thread (`reader`, `pool`, `packer`), the decisions (`decide`).

use super::decide::{ChunkDecider, StepSink};
use super::in_flight_chunks::InFlightChunks;
use super::job::SegmentJob;
use super::packer::{PackMessage, TreePacker};
use super::pipeline_end::{PipelineEnd, PipelineResult};
use super::pool::{FailureGuard, PoolThread};
use super::reader::DiskReader;
use super::segment_reader::SegmentScope;
use super::work_queue::WorkQueue;
use crate::request::BackupCounts;
use crate::request::error::{Error, Result};
use crate::rules::broken::ThreadFlaws;
use crossbeam_channel::unbounded;
use std::sync::Arc;

/// Fixed memory of a backup: pack blocks, footers, pages and recipes of the base.
const FIXED_MEMORY_BYTES: u64 = 14 << 20;
/// Jobs that wait for their turn while each thread has one.
const WAITING_JOBS: usize = 2;

/// Number of threads and jobs of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PipelineSize {
    /// Threads of the pool.
    pub(super) threads: usize,
    /// Segments in memory at once.
    pub(super) jobs: usize,
}

impl PipelineSize {
    /// As many of `threads` as there is memory for. `thread_bytes`: memory of a thread beside its job.
    pub(super) fn within(memory_bytes: u64, threads: usize, thread_bytes: u64) -> PipelineSize {
        let memory = memory_bytes.saturating_sub(FIXED_MEMORY_BYTES);
        let waiting = WAITING_JOBS as u64 * SegmentJob::MEMORY_BYTES;
        let each = SegmentJob::MEMORY_BYTES + thread_bytes;
        let most = usize::try_from(memory.saturating_sub(waiting) / each).unwrap_or(usize::MAX);
        let threads = threads.min(most).max(1);
        let jobs = memory.saturating_sub(threads as u64 * thread_bytes) / SegmentJob::MEMORY_BYTES;
        let jobs = usize::try_from(jobs).unwrap_or(usize::MAX).min(2 * threads + WAITING_JOBS);
        // With two, reading and storing overlap.
        PipelineSize { threads, jobs: jobs.max(2) }
    }
}

/// Runs `read` on this thread, with a reader that gives its segments to a pool, and packs them. All threads have ended
/// when this returns.
/// # Errors
/// Errors of the packer and of sealing; the inner result is that of reading. `Invalid`: the system starts no threads.
pub(super) fn run<'a>(
    size: PipelineSize,
    scope: &SegmentScope<'a>,
    in_flight: &InFlightChunks,
    packer: &mut TreePacker<'_>,
    read: impl FnOnce(&mut DiskReader<'_, 'a>) -> PipelineResult<()>,
) -> Result<PipelineResult<BackupCounts>> {
    let queue = Arc::new(WorkQueue::with_jobs(size.jobs));
    let (to_pack, steps) = unbounded();
    let decider = ChunkDecider::new(in_flight, StepSink::Line(Arc::clone(&queue), to_pack.clone()));
    let mut reader = DiskReader::new(scope, &decider, Some(&queue))?;
    let packed = std::thread::scope(|scope_of_threads| {
        let _guard = FailureGuard(&to_pack);
        let (to_packer, queue, flaws) = (to_pack.clone(), &*queue, ThreadFlaws::here());
        let packing = std::thread::Builder::new()
            .name("pack".to_owned())
            .spawn_scoped(scope_of_threads, move || flaws.run(|| packer.run(&steps, queue)))
            .map_err(no_thread)?;
        let mut refused = None;
        let mut pool = Vec::new();
        for number in 0..size.threads {
            let thread = PoolThread { scope, queue, decider: &decider, packer: to_pack.clone() };
            let builder = std::thread::Builder::new().name(format!("backup-{number}"));
            match builder.spawn_scoped(scope_of_threads, move || flaws.run(|| thread.run())) {
                Ok(thread) => pool.push(thread),
                Err(error) => refused = Some(error),
            }
        }
        if let (true, Some(error)) = (pool.is_empty(), refused) {
            let _ = to_packer.send(PackMessage::Failed(no_thread(error)));
        } else {
            let end = read(&mut reader).err();
            // A failed thread has named the end, or reports it to the packer.
            if !matches!(end, Some(PipelineEnd::Disconnected)) {
                reader.end(end)?;
            }
        }
        pool.into_iter().for_each(join);
        join(packing)
    });
    packed?;
    let mut counts = reader.counts;
    drop(reader);
    let part = decider.into_part();
    counts.add(&part.counts);
    Ok(match part.end {
        None => Ok(counts),
        Some(end) => Err(end),
    })
}

fn no_thread(error: std::io::Error) -> Error {
    Error::Invalid {
        reason: format!(
            "the system starts no thread: {error}; raise its limit of processes (ulimit -u, pids.max) and try again"
        ),
    }
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::pool::PoolThread;

    #[test]
    fn threads_and_jobs_take_no_more_than_the_memory() {
        let each = PoolThread::MEMORY_BYTES;
        for mebibytes in [16, 24, 40, 45, 128, 1024] {
            for threads in [1, 2, 3, 16, 1024] {
                let size = PipelineSize::within(mebibytes << 20, threads, each);
                let bytes = size.jobs as u64 * SegmentJob::MEMORY_BYTES + size.threads as u64 * each;
                // A backup needs two jobs and one thread, with less memory, too.
                let least = 2 * SegmentJob::MEMORY_BYTES + each;
                assert!(bytes <= least.max((mebibytes << 20) - FIXED_MEMORY_BYTES), "{size:?}");
                assert!((1..=threads).contains(&size.threads) && size.jobs >= 2, "{size:?}");
            }
        }
        let by_default = PipelineSize::within(48_000_000, 16, each);
        assert!(by_default.threads >= 10, "{by_default:?}: the memory of a program by default");
        assert_eq!(PipelineSize::within(1 << 30, 16, each), PipelineSize { threads: 16, jobs: 34 });
    }
}
