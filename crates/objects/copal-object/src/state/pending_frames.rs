//! Frames of one stream that are written or being written, and not durable yet.
//!
//! Between two flushes many frames collect here: a log with `Ack::Written` has thousands of them. So no step
//! walks over frames that wait only for the flush.
//! Invariants
//! - Frames are in append order; tickets ascend.
//! - The first `answered` frames have been written, with the commits they need, and their waiters for that
//!   were answered.

use crate::{Ack, FramePos, StoreError, format::ops::DurableFrames};
use copal_device::Completer;
use std::collections::VecDeque;

pub(crate) type FrameCompleter = Completer<Result<FramePos, StoreError>>;

/// One frame that is not acknowledged as durable yet.
pub(crate) struct PendingFrame {
    /// Identifies this write; frame numbers start again when a stream is deleted and made anew.
    pub(crate) ticket: u64,
    pub(crate) frame: u64,
    /// Its first page in its piece.
    pub(crate) at: u32,
    /// Epoch it was written in; `None`: written through.
    pub(crate) epoch: Option<u64>,
    pub(crate) written: bool,
    pub(crate) durable: bool,
    /// Commit that must be durable too.
    pub(crate) needs_lsn: u64,
    pub(crate) waiter: Option<(Ack, FrameCompleter)>,
    /// Groups with a commit that counts only if this frame survives.
    pub(crate) groups: Vec<u64>,
}

impl PendingFrame {
    /// A frame in flight, without a ticket and without a waiter.
    pub(crate) fn new(frame: u64, at: u32, epoch: Option<u64>, needs_lsn: u64) -> PendingFrame {
        PendingFrame {
            ticket: 0,
            frame,
            at,
            epoch,
            written: false,
            durable: false,
            needs_lsn,
            waiter: None,
            groups: Vec::new(),
        }
    }
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct PendingFrames {
    frames: VecDeque<PendingFrame>,
    answered: usize,
    /// Number of frames visited, for the test that it does not grow with the waiting frames.
    #[cfg(test)]
    pub(crate) visited: std::cell::Cell<u64>,
}

/// A waiter, and the frame it waits for.
type Answer = (FrameCompleter, u64);

impl PendingFrames {
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(crate) fn push(&mut self, frame: PendingFrame) {
        self.frames.push_back(frame);
    }

    /// Whether all frames are written through, so that none waits for a flush.
    pub(crate) fn is_through(&self) -> bool {
        self.frames.iter().all(|state| state.epoch.is_none())
    }

    pub(crate) fn find(&mut self, ticket: u64) -> Option<&mut PendingFrame> {
        let at = self.frames.binary_search_by_key(&ticket, |state| {
            #[cfg(test)]
            self.visited.set(self.visited.get() + 1);
            state.ticket
        });
        self.frames.get_mut(at.ok()?)
    }

    /// Whether the write of `frame` is still in flight.
    pub(crate) fn is_in_flight(&self, frame: u64) -> bool {
        let mut behind = self.frames.range(self.answered..);
        behind.any(|state| state.frame == frame && !state.written)
    }

    /// Frames whose write is still in flight.
    pub(crate) fn in_flight(&mut self) -> impl Iterator<Item = &mut PendingFrame> {
        self.frames.range_mut(self.answered..).filter(|state| !state.written)
    }

    /// All epochs up to `flushed` are durable.
    pub(crate) fn flushed(&mut self, flushed: u64) {
        for state in &mut self.frames {
            state.durable |= state.epoch.is_some_and(|epoch| epoch <= flushed);
        }
    }

    /// Adds to `answers` the waiters for writes that have completed without a gap before them. `written_lsn`
    /// is the last written commit.
    pub(crate) fn acknowledge_written(&mut self, written_lsn: u64, answers: &mut Vec<Answer>) {
        while let Some(state) = self.frames.get_mut(self.answered) {
            #[cfg(test)]
            {
                self.visited.set(self.visited.get() + 1);
            }
            // This also holds for a frame without a waiter: it counts only with its commit, and later frames
            // only with it.
            if !state.written || state.needs_lsn > written_lsn {
                break;
            }
            if matches!(state.waiter, Some((Ack::Written, _))) {
                answers.extend(state.waiter.take().map(|(_, completer)| (completer, state.frame)));
            }
            self.answered += 1;
        }
    }

    /// Takes the durable frames at the front; `durable_lsn` is the last durable commit. Returns the end of
    /// them.
    pub(crate) fn take_durable(
        &mut self,
        durable_lsn: u64,
        answers: &mut Vec<Answer>,
    ) -> Option<DurableFrames> {
        let mut end = None;
        while let Some(state) =
            self.frames.pop_front_if(|state| state.durable && state.needs_lsn <= durable_lsn)
        {
            self.answered = self.answered.saturating_sub(1);
            end = Some(DurableFrames { next: state.frame + 1, last: Some(state.at) });
            answers.extend(state.waiter.map(|(_, completer)| (completer, state.frame)));
        }
        end
    }

    /// Whether a frame that is written or durable waits for a commit only. Its answer then needs no further
    /// event of the stream.
    pub(crate) fn waits_for_commit(&self) -> bool {
        self.frames.get(self.answered).is_some_and(|state| state.written)
            || self.frames.front().is_some_and(|state| state.durable)
    }

    /// Takes all waiters.
    pub(crate) fn take_waiters(&mut self) -> impl Iterator<Item = FrameCompleter> {
        let waiters = self.frames.iter_mut().filter_map(|state| state.waiter.take());
        waiters.map(|(_, completer)| completer)
    }

    /// First page of `frame` in its piece, while it is not durable.
    pub(crate) fn page_of(&self, frame: u64) -> Option<u32> {
        let index = self.frames.binary_search_by_key(&frame, |state| state.frame).ok()?;
        Some(self.frames[index].at)
    }

    /// Takes the frames from `from` on.
    pub(crate) fn cut_off(&mut self, from: u64) -> VecDeque<PendingFrame> {
        let kept = self.frames.partition_point(|state| state.frame < from);
        self.answered = self.answered.min(kept);
        self.frames.split_off(kept)
    }

    pub(crate) fn into_frames(self) -> impl Iterator<Item = PendingFrame> {
        self.frames.into_iter()
    }
}

#[cfg(test)]
mod tests;
