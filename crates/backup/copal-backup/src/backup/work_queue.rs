//! The work of a backup's pool of threads: segments to be read, decided ones to be compressed, frames to be sealed.
//!
//! Invariants
//! - The oldest work goes first: sealing before compressing before reading. So jobs come back before new ones begin.
//! - Threads wait only here. Each end of the work wakes them: [`WorkQueue::stop_reading`] the reader,
//!   [`WorkQueue::finish`] all.
//! - The reader is at most `STEPS_AHEAD` steps ahead of the packer, and has at most as many segments waiting as there
//!   are jobs.
//! - Segments get their jobs in their order. So the oldest step always has one, and jobs come back.

use super::job::SegmentJob;
use super::pipeline_end::{PipelineEnd, PipelineResult};
use super::segment_task::SegmentTask;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;

/// Most steps between the reader and the packer.
const STEPS_AHEAD: u64 = 4096;

/// One piece of work.
pub(super) enum PoolWork {
    Seal(NumberedJob),
    Compress(NumberedJob),
    Read(SegmentTask, SegmentJob),
}

/// A job with the number of its step.
pub(super) struct NumberedJob {
    pub(super) number: u64,
    pub(super) job: SegmentJob,
}

/// Work and free jobs, shared by all threads of one backup.
pub(super) struct WorkQueue {
    state: Mutex<QueueState>,
    /// Number of jobs that circulate.
    jobs: usize,
    /// There is work, or its end.
    work: Condvar,
    /// There is a free job or room for a step, or the end of reading.
    room: Condvar,
}

#[derive(Default)]
struct QueueState {
    /// The job that was used last is taken first: its memory is in the processor's cache.
    free: Vec<SegmentJob>,
    seal: VecDeque<NumberedJob>,
    compress: VecDeque<NumberedJob>,
    /// Segments to be read. A stream has been read into its job; others get a free one when a thread begins.
    read: VecDeque<(SegmentTask, Option<SegmentJob>)>,
    /// Steps that the packer has taken.
    packed: u64,
    /// No new segment is read.
    is_stopped: bool,
    /// No work is left, or none is done any more.
    is_finished: bool,
}

impl WorkQueue {
    /// A queue in which `jobs` circulate.
    pub(super) fn with_jobs(jobs: usize) -> WorkQueue {
        let free = (0..jobs).map(|_| SegmentJob::new()).collect();
        WorkQueue {
            state: Mutex::new(QueueState { free, ..QueueState::default() }),
            jobs,
            work: Condvar::new(),
            room: Condvar::new(),
        }
    }

    /// Takes a job for the step after those that were pushed. Blocks until there is one, and until each segment before
    /// it has its own.
    /// # Errors
    /// `Disconnected`: reading has been stopped.
    pub(super) fn free_job(&self) -> PipelineResult<SegmentJob> {
        let mut state = self.state.lock();
        loop {
            if state.is_stopped {
                return Err(PipelineEnd::Disconnected);
            }
            let all_have_one = state.read.back().is_none_or(|(_, job)| job.is_some());
            match state.free.pop_if(|_| all_have_one) {
                Some(job) => return Ok(job),
                None => self.room.wait(&mut state),
            }
        }
    }

    /// Waits until step `number` is not too far ahead of the packer and of the threads that read.
    /// # Errors
    /// As [`WorkQueue::free_job`].
    pub(super) fn wait_for_room(&self, number: u64) -> PipelineResult<()> {
        let mut state = self.state.lock();
        while !state.is_stopped && (number >= state.packed + STEPS_AHEAD || state.read.len() >= self.jobs) {
            self.room.wait(&mut state);
        }
        if state.is_stopped { Err(PipelineEnd::Disconnected) } else { Ok(()) }
    }

    /// Takes a job back.
    pub(super) fn give_back(&self, job: SegmentJob) {
        self.state.lock().free.push(job);
        self.work.notify_one();
        self.room.notify_one();
    }

    /// Notes that the packer has taken this many steps.
    pub(super) fn note_packed(&self, steps: u64) {
        self.state.lock().packed = steps;
        self.room.notify_one();
    }

    /// Adds a segment. `job`: one into which it has been read.
    pub(super) fn push_segment(&self, task: SegmentTask, job: Option<SegmentJob>) {
        self.state.lock().read.push_back((task, job));
        self.work.notify_one();
    }

    /// Adds a job whose chunks are to be compressed.
    pub(super) fn push_decided(&self, job: NumberedJob) {
        self.state.lock().compress.push_back(job);
        self.work.notify_one();
    }

    /// Adds a job whose frames have their places.
    pub(super) fn push_placed(&self, job: NumberedJob) {
        self.state.lock().seal.push_back(job);
        self.work.notify_one();
    }

    /// The next piece of work; blocks until there is one. `None`: there will be no more.
    pub(super) fn take(&self) -> Option<PoolWork> {
        let mut state = self.state.lock();
        loop {
            if state.is_finished {
                return None;
            }
            let work = state.seal.pop_front().map(PoolWork::Seal);
            let work = work.or_else(|| state.compress.pop_front().map(PoolWork::Compress));
            match work {
                Some(work) => return Some(work),
                None => match state.next_segment() {
                    Some((task, job)) => {
                        self.room.notify_one();
                        return Some(PoolWork::Read(task, job));
                    }
                    None => self.work.wait(&mut state),
                },
            }
        }
    }

    /// Ends reading: segments that no thread has begun are not read. Work on the others goes on.
    pub(super) fn stop_reading(&self) {
        let mut state = self.state.lock();
        state.is_stopped = true;
        state.read.clear();
        drop(state);
        self.room.notify_all();
    }

    /// Ends all work: the packer has the last step, or has failed.
    pub(super) fn finish(&self) {
        let mut state = self.state.lock();
        *state = QueueState { is_stopped: true, is_finished: true, ..QueueState::default() };
        drop(state);
        self.room.notify_all();
        self.work.notify_all();
    }
}

impl QueueState {
    /// The next segment to be read, if there is a job for it.
    fn next_segment(&mut self) -> Option<(SegmentTask, SegmentJob)> {
        let (task, job) = self.read.pop_front()?;
        match job.or_else(|| self.free.pop()) {
            Some(job) => Some((task, job)),
            None => {
                self.read.push_front((task, None));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::segment_task::SegmentReading;
    use crossbeam_channel::unbounded;

    fn task(number: u64) -> SegmentTask {
        SegmentTask { number, disk: 0, range: 0..1, reference: None, reading: SegmentReading::Done }
    }

    fn read(queue: &WorkQueue) -> (u64, SegmentJob) {
        match queue.take() {
            Some(PoolWork::Read(task, job)) => (task.number, job),
            _ => panic!("a segment is to be read"),
        }
    }

    #[test]
    fn the_job_that_was_used_last_is_taken_first() {
        let queue = WorkQueue::with_jobs(3);
        (0..2).for_each(|number| queue.push_segment(task(number), None));
        let (first, mut job) = read(&queue);
        job.start = 77;
        queue.give_back(job);
        let (second, job) = read(&queue);
        assert_eq!((first, second, job.start), (0, 1, 77));
    }

    #[test]
    fn a_stream_gets_a_job_after_the_segments_before_it() {
        let queue = WorkQueue::with_jobs(1);
        (0..2).for_each(|number| queue.push_segment(task(number), None));
        let (taken, order) = unbounded();
        std::thread::scope(|scope| {
            let stream = taken.clone();
            let queue = &queue;
            scope.spawn(move || {
                let Ok(job) = queue.free_job() else { panic!("reading goes on") };
                stream.send(2).unwrap();
                queue.push_segment(task(2), Some(job));
            });
            for _ in 0..3 {
                let (number, job) = read(queue);
                taken.send(10 + number).unwrap();
                queue.give_back(job);
            }
        });
        assert!(order.try_iter().eq([10, 11, 2, 12]), "number of a step: taken; 2: the job of the stream");
    }

    #[test]
    fn segments_wait_for_jobs_and_other_work_does_not() {
        let queue = WorkQueue::with_jobs(1);
        queue.push_segment(task(0), None);
        let (_, job) = read(&queue);
        queue.push_segment(task(1), None);
        queue.push_decided(NumberedJob { number: 0, job });
        assert!(matches!(queue.take(), Some(PoolWork::Compress(NumberedJob { number: 0, .. }))));
        queue.stop_reading();
        assert!(matches!(queue.free_job(), Err(PipelineEnd::Disconnected)));
        queue.finish();
        assert!(queue.take().is_none());
    }
}
