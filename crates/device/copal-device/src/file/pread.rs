//! Engine without io_uring: a small thread pool, one blocking command per thread.
//!
//! Used when the kernel or a container's seccomp filter refuses the ring. It is no degraded mode: same
//! contract, same conformance suite. It also serves the ring's engine with the commands that the ring does
//! not take.

use super::queue::{IoJob, JobQueue};
use super::target::FileTarget;
use crate::completion::enter_delivering_thread;
use crate::device::tally::IoTally;
use crate::{DeviceError, IoDone, IoKind};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Threads of a pool that replaces the ring; also its queue depth.
pub(crate) const THREADS: usize = 8;

/// A thread pool. Dropping it finishes waiting jobs and joins its threads.
pub(crate) struct ThreadPool {
    queue: Arc<JobQueue>,
    threads: Vec<JoinHandle<()>>,
}

impl ThreadPool {
    /// A pool of `threads` threads on `target`.
    pub(crate) fn start(
        target: &Arc<FileTarget>,
        tally: &Arc<IoTally>,
        threads: usize,
    ) -> std::io::Result<ThreadPool> {
        let queue = Arc::new(JobQueue::new(threads, || {}));
        let mut pool = ThreadPool { queue, threads: Vec::with_capacity(threads) };
        for number in 0..threads {
            let (queue, target, tally) = (Arc::clone(&pool.queue), Arc::clone(target), Arc::clone(tally));
            let builder = std::thread::Builder::new().name(format!("copal-io-{number}"));
            pool.threads.push(builder.spawn(move || serve(&queue, &target, &tally))?);
        }
        Ok(pool)
    }

    pub(crate) fn queue(&self) -> &JobQueue {
        &self.queue
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.queue.close();
        for thread in self.threads.drain(..) {
            join_unless_self(thread);
        }
    }
}

/// Joins an engine's thread. If a hook on that very thread drops the engine, the thread is not joined and
/// ends by itself.
pub(crate) fn join_unless_self(thread: JoinHandle<()>) {
    if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
        tracing::error!("a device thread panicked; some I/Os may stay unanswered");
    }
}

fn serve(queue: &JobQueue, target: &FileTarget, tally: &IoTally) {
    enter_delivering_thread();
    while let Some(IoJob { mut io, reply }) = queue.take_blocking() {
        let result = run(target, io.at, &mut io.kind);
        if result.is_ok() {
            tally.count(&io.kind);
        }
        queue.finished(io.class);
        let done = IoDone { result, buf: io.kind.into_buf() };
        reply.deliver_from_engine(done, target);
        queue.answered();
    }
}

/// Runs one command on this thread. Poisons the target as the contract requires (C7).
pub(crate) fn run(target: &FileTarget, at: u64, kind: &mut IoKind) -> Result<(), DeviceError> {
    let (op, len) = (kind.name(), kind.len_bytes());
    allowed(target, kind)?;
    let result = match kind {
        IoKind::Read(buf) => target.read(at, buf),
        IoKind::Write { buf, fua } => target.write(at, buf, *fua),
        IoKind::Flush => target.flush(),
        IoKind::Discard(len) => target.discard(at, *len),
        IoKind::WriteZeroes(len) => target.write_zeroes(at, *len),
    };
    result.map_err(|error| {
        let error = DeviceError::io(op, at, len, error);
        if poisons(kind) {
            target.poison(&error);
        }
        error
    })
}

/// `Ok` if this handle may run commands of this kind.
pub(crate) fn allowed(target: &FileTarget, kind: &IoKind) -> Result<(), DeviceError> {
    match kind {
        IoKind::Read(_) => Ok(()),
        IoKind::Flush => target.may_flush(),
        IoKind::Write { .. } | IoKind::Discard(_) | IoKind::WriteZeroes(_) => target.may_write(),
    }
}

/// Whether a failure of this command leaves the medium in an unknown state.
pub(crate) fn poisons(kind: &IoKind) -> bool {
    matches!(kind, IoKind::Write { .. } | IoKind::Flush | IoKind::WriteZeroes(_))
}
