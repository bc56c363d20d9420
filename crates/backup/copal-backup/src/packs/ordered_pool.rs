//! Computes jobs on several threads and takes their results in the order of the jobs.
//!
//! The calling thread makes the jobs, usually by reading, and takes the results. So an operation does the same steps
//! in the same order with any number of workers.
//!
//! Invariants
//! - Results are taken on the calling thread, each once, in the order in which their jobs were added.
//! - Jobs whose results were not taken have at most the bytes of the budget, unless a single job is larger.
//! - An error of the caller ends the workers: none waits for a job that never comes. A worker that panics ends the
//!   call.

use crate::request::error::{Error, Result};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;

/// Computes jobs. One per thread.
pub(crate) trait PoolWorker: Send {
    type Job: Send;
    type Done: Send;

    fn run(&mut self, job: Self::Job) -> Self::Done;
}

type NumberedJob<W> = (u64, <W as PoolWorker>::Job);
/// `None`: the worker panicked.
type NumberedDone<W> = (u64, Option<<W as PoolWorker>::Done>);

/// Takes the results in order.
pub(crate) type DoneSink<'s, D> = dyn FnMut(D) -> Result<()> + 's;

/// The jobs on their way.
pub(crate) struct OrderedQueue<'q, W: PoolWorker> {
    way: QueueWay<'q, W>,
    take: &'q mut DoneSink<'q, W::Done>,
    /// Results that wait for earlier ones, and the bytes of all jobs whose results were not taken.
    early: BTreeMap<u64, W::Done>,
    bytes_of: BTreeMap<u64, usize>,
    added: u64,
    taken: u64,
    held_bytes: usize,
    budget_bytes: usize,
}

/// Place where jobs are computed.
enum QueueWay<'q, W: PoolWorker> {
    Here(&'q mut W),
    Threads { jobs: Sender<NumberedJob<W>>, done: Receiver<NumberedDone<W>> },
}

impl<W: PoolWorker> OrderedQueue<'_, W> {
    /// Adds a job that holds `bytes` of memory. Takes results until the budget has room for it.
    /// # Errors
    /// Those of the sink.
    pub(crate) fn compute(&mut self, job: W::Job, bytes: usize) -> Result<()> {
        if let QueueWay::Here(worker) = &mut self.way {
            let done = worker.run(job);
            return (self.take)(done);
        }
        while self.held_bytes > 0 && self.held_bytes + bytes > self.budget_bytes {
            self.take_next()?;
        }
        let number = self.added;
        self.added += 1;
        self.held_bytes += bytes;
        self.bytes_of.insert(number, bytes);
        match &self.way {
            QueueWay::Threads { jobs, .. } => jobs.send((number, job)).map_err(|_| ended()),
            QueueWay::Here(_) => Ok(()),
        }
    }

    /// Adds a result that needs no computing. It is taken after those of the jobs before it.
    /// # Errors
    /// Those of the sink.
    pub(crate) fn ready(&mut self, done: W::Done) -> Result<()> {
        if self.added == self.taken {
            return (self.take)(done);
        }
        self.early.insert(self.added, done);
        self.added += 1;
        Ok(())
    }

    /// Waits for a result, then takes those whose turn it is.
    fn take_next(&mut self) -> Result<()> {
        if let QueueWay::Threads { done, .. } = &self.way {
            let (number, result) = done.recv().map_err(|_| ended())?;
            self.early.insert(number, result.ok_or_else(ended)?);
        }
        while let Some(done) = self.early.remove(&self.taken) {
            self.held_bytes -= self.bytes_of.remove(&self.taken).unwrap_or(0);
            self.taken += 1;
            (self.take)(done)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        while self.taken < self.added {
            self.take_next()?;
        }
        Ok(())
    }
}

/// Error of a caller whose workers have ended. The panic that ended them comes first.
fn ended() -> Error {
    Error::Invalid { reason: "the workers were stopped".into() }
}

/// Sends a result, or that there is none, when it goes out of scope.
struct DoneMessage<'d, W: PoolWorker> {
    number: u64,
    done: Option<W::Done>,
    to: &'d Sender<NumberedDone<W>>,
}

impl<W: PoolWorker> Drop for DoneMessage<'_, W> {
    fn drop(&mut self) {
        // Without a caller that takes it, the result is dropped.
        let _ = self.to.send((self.number, self.done.take()));
    }
}

/// Sets the flag when it goes out of scope.
struct StopOnDrop<'f>(&'f AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Settings of a pool.
#[derive(Clone, Copy)]
pub(crate) struct PoolSize {
    /// Threads that compute. With one, the calling thread does.
    pub(crate) workers: usize,
    /// Most bytes of jobs whose results were not taken.
    pub(crate) budget_bytes: usize,
}

/// Runs `feed`, which adds jobs, and takes their results in order. `make` makes a worker for each thread.
/// # Errors
/// Those of `feed`, `take` and `make`; the workers then end early.
pub(crate) fn run_in_order<W: PoolWorker>(
    size: PoolSize,
    make: impl Fn() -> Result<W>,
    take: &mut DoneSink<'_, W::Done>,
    feed: impl FnOnce(&mut OrderedQueue<'_, W>) -> Result<()>,
) -> Result<()> {
    let is_stopped = AtomicBool::new(false);
    let (jobs, jobs_out) = unbounded::<NumberedJob<W>>();
    let (done_in, done) = unbounded::<NumberedDone<W>>();
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&is_stopped);
        let mut started = 0;
        for _ in 0..if size.workers > 1 { size.workers } else { 0 } {
            let mut worker = make()?;
            let (jobs, done, is_stopped) = (jobs_out.clone(), done_in.clone(), &is_stopped);
            let work = move || {
                while let Ok((number, job)) = jobs.recv() {
                    if is_stopped.load(Ordering::Relaxed) {
                        break;
                    }
                    let mut message = DoneMessage::<W> { number, done: None, to: &done };
                    message.done = Some(worker.run(job));
                }
            };
            match Builder::new().name("compute".to_owned()).spawn_scoped(scope, work) {
                Ok(_) => started += 1,
                Err(error) => {
                    tracing::debug!(%error, started, "the system starts no more threads");
                    break;
                }
            }
        }
        // The workers alone hold the other ends, so that their end is noticed.
        drop((jobs_out, done_in));
        let mut here = make()?;
        let way = match started {
            0 => QueueWay::Here(&mut here),
            _ => QueueWay::Threads { jobs, done },
        };
        let mut queue = OrderedQueue {
            way,
            take,
            early: BTreeMap::new(),
            bytes_of: BTreeMap::new(),
            added: 0,
            taken: 0,
            held_bytes: 0,
            budget_bytes: size.budget_bytes,
        };
        feed(&mut queue)?;
        queue.finish()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Doubles numbers; panics at 13.
    struct DoublingWorker;

    impl PoolWorker for DoublingWorker {
        type Job = u64;
        type Done = u64;

        fn run(&mut self, job: u64) -> u64 {
            assert_ne!(job, 13, "the test's own panic");
            // Later jobs often end first.
            if job.is_multiple_of(3) {
                std::thread::yield_now();
            }
            job * 2
        }
    }

    fn size(workers: usize) -> PoolSize {
        PoolSize { workers, budget_bytes: 40 }
    }

    fn refused() -> Error {
        Error::Invalid { reason: "refused".into() }
    }

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        for workers in [0, 1, 2, 3, 16] {
            let mut taken = Vec::new();
            let mut take = |done| {
                taken.push(done);
                Ok(())
            };
            let feed = |queue: &mut OrderedQueue<'_, DoublingWorker>| {
                for number in 100..1100 {
                    match number % 7 {
                        0 => queue.ready(number * 2)?,
                        part => queue.compute(number, part as usize * 10)?,
                    }
                    assert!(queue.held_bytes <= 60, "{}", queue.held_bytes);
                }
                Ok(())
            };
            run_in_order(size(workers), || Ok(DoublingWorker), &mut take, feed).unwrap();
            assert!(taken.iter().copied().eq((100..1100).map(|number| number * 2)), "{workers}");
        }
    }

    #[test]
    fn an_error_of_sink_or_feed_ends_the_call() {
        for workers in [1, 2, 3, 16] {
            let mut take = |done| if done == 240 { Err(refused()) } else { Ok(()) };
            let feed = |queue: &mut OrderedQueue<'_, DoublingWorker>| {
                (100..1100).try_for_each(|number| queue.compute(number, 10))
            };
            let ended = run_in_order(size(workers), || Ok(DoublingWorker), &mut take, feed);
            assert!(matches!(ended, Err(Error::Invalid { reason }) if reason == "refused"), "{workers}");
            let feed = |queue: &mut OrderedQueue<'_, DoublingWorker>| {
                queue.compute(100, 10)?;
                Err(Error::Cancelled { kept_bytes: None })
            };
            let ended = run_in_order(size(workers), || Ok(DoublingWorker), &mut |_| Ok(()), feed);
            assert!(matches!(ended, Err(Error::Cancelled { .. })), "{workers}");
        }
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn a_panic_of_a_worker_ends_the_call() {
        let feed = |queue: &mut OrderedQueue<'_, DoublingWorker>| {
            (0..100).try_for_each(|number| queue.compute(number, 10))
        };
        drop(run_in_order(size(3), || Ok(DoublingWorker), &mut |_| Ok(()), feed));
    }
}
