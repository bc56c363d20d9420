//! The work of a backup's pool of threads: segments to be read, decided ones to be compressed, frames to be sealed.
//!
//! Invariants
//! - The oldest work goes first: sealing before compressing before reading. So jobs come back before new ones begin.
//! - Threads wait only here. Each end of the work wakes them: [`WorkQueue::stop_reading`] the reader,
//!   [`WorkQueue::finish`] all.
//! - The reader is at most `STEPS_AHEAD` steps ahead of the packer, however many of them carry no job.

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
    Read(SegmentTask),
}

/// A job with the number of its step.
pub(super) struct NumberedJob {
    pub(super) number: u64,
    pub(super) job: SegmentJob,
}

/// PoolWork and free jobs, shared by all threads of one backup.
pub(super) struct WorkQueue {
    state: Mutex<QueueState>,
    /// There is work, or its end.
    work: Condvar,
    /// There is a free job or room for a step, or the end of reading.
    room: Condvar,
}

#[derive(Default)]
struct QueueState {
    free: Vec<SegmentJob>,
    seal: VecDeque<NumberedJob>,
    compress: VecDeque<NumberedJob>,
    read: VecDeque<SegmentTask>,
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
            work: Condvar::new(),
            room: Condvar::new(),
        }
    }

    /// Takes an empty job; blocks until there is one.
    /// # Errors
    /// `Disconnected`: reading has been stopped.
    pub(super) fn free_job(&self) -> PipelineResult<SegmentJob> {
        let mut state = self.state.lock();
        loop {
            if state.is_stopped {
                return Err(PipelineEnd::Disconnected);
            }
            match state.free.pop() {
                Some(job) => return Ok(job),
                None => self.room.wait(&mut state),
            }
        }
    }

    /// Waits until step `number` is not too far ahead of the packer.
    /// # Errors
    /// As [`WorkQueue::free_job`].
    pub(super) fn wait_for_room(&self, number: u64) -> PipelineResult<()> {
        let mut state = self.state.lock();
        while number >= state.packed + STEPS_AHEAD && !state.is_stopped {
            self.room.wait(&mut state);
        }
        if state.is_stopped { Err(PipelineEnd::Disconnected) } else { Ok(()) }
    }

    /// Takes a job back.
    pub(super) fn give_back(&self, job: SegmentJob) {
        self.state.lock().free.push(job);
        self.room.notify_one();
    }

    /// Notes that the packer has taken this many steps.
    pub(super) fn note_packed(&self, steps: u64) {
        self.state.lock().packed = steps;
        self.room.notify_one();
    }

    pub(super) fn push(&self, work: PoolWork) {
        let mut state = self.state.lock();
        match work {
            PoolWork::Seal(job) => state.seal.push_back(job),
            PoolWork::Compress(job) => state.compress.push_back(job),
            PoolWork::Read(task) => state.read.push_back(task),
        }
        drop(state);
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
            let work = work.or_else(|| state.read.pop_front().map(PoolWork::Read));
            match work {
                Some(work) => return Some(work),
                None => self.work.wait(&mut state),
            }
        }
    }

    /// Ends reading: segments that no thread has begun are not read. PoolWork on the others goes on.
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
