//! Stream state: the end of every open stream, its frames in flight, and raw extents in use.
//!
//! Invariants
//! - Frames of a stream are acknowledged in order.
//! - No step visits a stream without frames in flight: sets of ids list the streams that have some.
//!
//! Not here: which commits a frame needs (`commit`), the steps of an append (`stream`).

use crate::{
    format::{ops::DurableFrames, run::PageRun},
    state::pending_frames::{FrameCompleter, PendingFrame, PendingFrames},
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The end of an open stream.
#[derive(Default)]
pub(crate) struct StreamTail {
    /// Number of the next frame.
    pub(crate) next: u64,
    /// Used pages of the last piece.
    pub(crate) used: u32,
    /// Piece in which the end was found; used by the mount only.
    pub(crate) piece: usize,
    pub(crate) durable: DurableFrames,
    /// Recovery found damaged acknowledged frames at `next`.
    pub(crate) damaged: bool,
    pub(crate) pending: PendingFrames,
}

/// The place of a newly numbered frame.
pub(crate) struct FramePlace {
    pub(crate) number: u64,
    /// Pages of the piece before it.
    pub(crate) used: u32,
    /// Frames below this are durable.
    pub(crate) durable: u64,
}

/// Tails of open streams, their frames in flight, and raw extents in use.
#[derive(Default)]
pub(crate) struct StreamState {
    tails: BTreeMap<u64, StreamTail>,
    /// Streams with frames that are not durable yet.
    pending: BTreeSet<u64>,
    /// Those of `pending` where an answer may be due: a write or a flush has completed since the last answers,
    /// or a completed frame waits for a commit.
    due: BTreeSet<u64>,
    /// Streams with durable frames that neither a record nor a checkpoint names.
    unnamed: BTreeSet<u64>,
    /// Those that only the checkpoint being written names.
    named_next: BTreeSet<u64>,
    /// Raw extents held by callers: by pin, the stream and its pages.
    raw_extents: BTreeMap<u64, (u64, PageRun)>,
    /// Frames of deleted streams that commits still wait for.
    orphans: Vec<PendingFrame>,
    frame_tickets: u64,
    /// Number of streams visited, for the test that it does not grow with idle streams.
    #[cfg(test)]
    pub(crate) visited: u64,
}

impl StreamState {
    /// After recovery: nothing is in flight. No record and no checkpoint names the durable frames of the
    /// streams `unnamed`.
    pub(crate) fn new(tails: BTreeMap<u64, StreamTail>, unnamed: BTreeSet<u64>) -> StreamState {
        StreamState { tails, unnamed, ..StreamState::default() }
    }

    pub(crate) fn tail(&self, stream: u64) -> Option<&StreamTail> {
        self.tails.get(&stream)
    }

    /// Open streams, ascending.
    pub(crate) fn tails(&self) -> impl Iterator<Item = (u64, &StreamTail)> {
        self.tails.iter().map(|(&id, tail)| (id, tail))
    }

    /// Number of the next frame; 0 for a stream without frames.
    pub(crate) fn next_frame(&self, stream: u64) -> u64 {
        self.tail(stream).map_or(0, |tail| tail.next)
    }

    pub(crate) fn has_pending_frames(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Streams with durable frames that neither a record nor a durable checkpoint names, and these frames.
    pub(crate) fn unnamed_frames(&self) -> impl Iterator<Item = (u64, DurableFrames)> {
        let ids = self.unnamed.union(&self.named_next);
        ids.filter_map(|&id| {
            let tail = self.tails.get(&id).filter(|tail| !tail.damaged)?;
            Some((id, tail.durable))
        })
    }

    /// A record names the durable frames of `streams`.
    pub(crate) fn name_frames(&mut self, streams: impl Iterator<Item = u64>) {
        for id in streams {
            self.unnamed.remove(&id);
            self.named_next.remove(&id);
        }
    }

    /// A checkpoint that begins now names the durable frames of every stream. Returns those that no earlier
    /// record or checkpoint names, as [`StreamState::unnamed_frames`] does.
    pub(crate) fn begin_checkpoint(&mut self) -> Vec<(u64, DurableFrames)> {
        self.named_next.append(&mut self.unnamed);
        self.named_next.iter().filter_map(|&id| Some((id, self.tails.get(&id)?.durable))).collect()
    }

    /// The checkpoint of [`StreamState::begin_checkpoint`] is durable.
    pub(crate) fn end_checkpoint(&mut self) {
        self.named_next.clear();
    }

    /// Makes the next checkpoint name `durable`, which may be wrong.
    #[cfg(test)]
    pub(crate) fn spoil_durable(&mut self, stream: u64, durable: DurableFrames) {
        self.tails.entry(stream).or_default().durable = durable;
        self.unnamed.insert(stream);
    }

    /// A number that grows with every frame.
    pub(crate) fn frame_tickets(&self) -> u64 {
        self.frame_tickets
    }

    /// The tail of a stream that is in the tables.
    pub(crate) fn open_tail(&mut self, stream: u64) -> &StreamTail {
        self.tails.entry(stream).or_default()
    }

    /// The stream continues in a new piece, from its first page on.
    pub(crate) fn begin_piece(&mut self, stream: u64) {
        self.tails.entry(stream).or_default().used = 0;
    }

    /// Assigns number and place of one more frame of `pages` pages in the last piece.
    pub(crate) fn number_frame(&mut self, stream: u64, pages: u32) -> FramePlace {
        let tail = self.tails.entry(stream).or_default();
        let place = FramePlace { number: tail.next, used: tail.used, durable: tail.durable.next };
        tail.next += 1;
        tail.used += pages;
        place
    }

    /// Adds a frame to those in flight; returns its ticket.
    pub(crate) fn enter_frame(&mut self, stream: u64, frame: PendingFrame) -> u64 {
        self.frame_tickets += 1;
        let ticket = self.frame_tickets;
        self.tails.entry(stream).or_default().pending.push(PendingFrame { ticket, ..frame });
        self.pending.insert(stream);
        ticket
    }

    /// The frame of a ticket, until it is durable.
    pub(crate) fn pending_frame(&mut self, stream: u64, ticket: u64) -> Option<&mut PendingFrame> {
        let tail = self.tails.get_mut(&stream);
        tail.and_then(|tail| tail.pending.find(ticket))
            .or_else(|| self.orphans.iter_mut().find(|frame| frame.ticket == ticket))
    }

    /// The write of a frame has completed; returns the groups that waited for it.
    pub(crate) fn frame_written(&mut self, stream: u64, ticket: u64) -> Vec<u64> {
        let Some(frame) = self.pending_frame(stream, ticket) else {
            return Vec::new();
        };
        frame.written = true;
        let groups = std::mem::take(&mut frame.groups);
        self.orphans.retain(|orphan| !orphan.written);
        self.due.insert(stream);
        groups
    }

    /// `group` counts only if `frame` and those before it survive; returns the number of writes that it waits
    /// for.
    pub(crate) fn await_frames(&mut self, stream: u64, frame: u64, group: u64) -> u32 {
        let Some(tail) = self.tails.get_mut(&stream) else {
            return 0;
        };
        let mut writes = 0;
        for pending in tail.pending.in_flight().filter(|pending| pending.frame <= frame) {
            pending.groups.push(group);
            writes += 1;
        }
        writes
    }

    /// All epochs up to `flushed` are durable.
    pub(crate) fn flushed(&mut self, flushed: u64) {
        for id in &self.pending {
            if let Some(tail) = self.tails.get_mut(id) {
                #[cfg(test)]
                {
                    self.visited += 1;
                }
                tail.pending.flushed(flushed);
                self.due.insert(*id);
            }
        }
    }

    /// Takes waiters that are due, each with its frame, in the order of each stream.
    pub(crate) fn acknowledge(&mut self, written_lsn: u64, durable_lsn: u64) -> Vec<(FrameCompleter, u64)> {
        let mut answers = Vec::new();
        for id in std::mem::take(&mut self.due) {
            let Some(tail) = self.tails.get_mut(&id) else {
                continue;
            };
            #[cfg(test)]
            {
                self.visited += 1;
            }
            tail.pending.acknowledge_written(written_lsn, &mut answers);
            if let Some(end) = tail.pending.take_durable(durable_lsn, &mut answers) {
                tail.durable = end;
                self.unnamed.insert(id);
            }
            if tail.pending.is_empty() {
                self.pending.remove(&id);
            } else if tail.pending.waits_for_commit() {
                self.due.insert(id);
            }
        }
        answers
    }

    /// Takes all waiters.
    pub(crate) fn take_waiters(&mut self) -> Vec<FrameCompleter> {
        let mut waiters = Vec::new();
        for id in &self.pending {
            waiters.extend(self.tails.get_mut(id).into_iter().flat_map(|tail| tail.pending.take_waiters()));
        }
        waiters
    }

    /// The stream was deleted; returns the waiters for its frames. Commits that depend on one of them still
    /// wait for it: the commit that deletes the stream may be lost.
    pub(crate) fn forget_stream(&mut self, stream: u64) -> Vec<FrameCompleter> {
        for listed in [&mut self.pending, &mut self.due, &mut self.unnamed, &mut self.named_next] {
            listed.remove(&stream);
        }
        let Some(tail) = self.tails.remove(&stream) else {
            return Vec::new();
        };
        let frames = tail.pending.into_frames().collect();
        self.drop_frames(frames).into_iter().map(|(completer, _)| completer).collect()
    }

    /// The stream ends before frame `from`, and its next frame begins behind `used` pages of its last piece. Returns
    /// the waiters for frames that are gone, each with its frame. As for a deleted stream, commits still wait for the
    /// frames that they depend on.
    pub(crate) fn cut_stream(&mut self, stream: u64, from: u64, used: u32) -> Vec<(FrameCompleter, u64)> {
        let tail = self.tails.entry(stream).or_default();
        (tail.next, tail.used, tail.damaged) = (from, used, false);
        if tail.durable.next > from {
            tail.durable = DurableFrames { next: from, last: None };
        }
        let gone = tail.pending.cut_off(from);
        if tail.pending.is_empty() {
            self.pending.remove(&stream);
            self.due.remove(&stream);
        }
        self.drop_frames(gone)
    }

    /// Takes the waiters of frames that are gone.
    fn drop_frames(&mut self, frames: VecDeque<PendingFrame>) -> Vec<(FrameCompleter, u64)> {
        let mut waiters = Vec::new();
        for mut frame in frames {
            waiters.extend(frame.waiter.take().map(|(_, completer)| (completer, frame.frame)));
            if !frame.groups.is_empty() {
                self.orphans.push(frame);
            }
        }
        waiters
    }

    /// Whether the frame of a ticket is in flight, and neither cut off nor deleted with its stream.
    pub(crate) fn is_pending(&mut self, stream: u64, ticket: u64) -> bool {
        self.tails.get_mut(&stream).is_some_and(|tail| tail.pending.find(ticket).is_some())
    }

    /// Pages of `stream` are in use as a raw extent, under `pin`.
    pub(crate) fn hold_raw_extent(&mut self, pin: u64, stream: u64, run: PageRun) {
        self.raw_extents.insert(pin, (stream, run));
    }

    pub(crate) fn release_raw_extent(&mut self, pin: u64) {
        self.raw_extents.remove(&pin);
    }

    /// Pages in use as raw extents.
    pub(crate) fn raw_extent_runs(&self) -> impl Iterator<Item = PageRun> + '_ {
        self.raw_extents.values().map(|&(_, run)| run)
    }

    pub(crate) fn is_raw_extent(&self, stream: u64, run: PageRun) -> bool {
        self.raw_extents.values().any(|held| *held == (stream, run))
    }
}

#[cfg(test)]
mod tests;
