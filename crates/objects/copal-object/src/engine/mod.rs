//! The engine: steps groups, flushes and checkpoints forward. No thread of its own: called by whoever submits
//! and by completions.
//!
//! A group closes when no flush is under way (so that everything that arrived meanwhile shares the next one),
//! or when it is full. A flush starts when somebody waits for one.
//! Design: docs/design/object.md#driving
//! Invariants
//! - A record carries the epoch open when it is submitted (OBJ-6); the flush of that epoch waits for it and
//!   its data.
//! - Acknowledgements come in commit order, and never after a failed write or flush (OBJ-29).

pub(crate) mod close;

use crate::{
    Lsn, StoreError,
    flaw::Flaw,
    format::{ops::RecordOp, record, run::Run},
    state::{
        Shape, StoreCore, StoreState, Tag, UNFLUSHED_BYTES_MAX, Waiter,
        epoch::Flushing,
        group::{Admitted, ClosedGroup, OpenGroup},
        journal::NewRecord,
    },
};
use copal_device::{AlignedBuf, Class, DeviceError, Io, IoKind};
use parking_lot::MutexGuard;
use std::sync::Arc;

impl StoreCore {
    /// Does everything that can be done now.
    pub(crate) fn advance(&self, state: &mut StoreState) {
        if state.failure.is_some() {
            self.fail_waiters(state);
            return;
        }
        loop {
            let mut progress = self.want_what_is_needed(state);
            progress |= self.may_close_group(state) && self.close_group(state);
            progress |= self.step_checkpoint(state);
            progress |= self.start_flush(state);
            progress |= self.submit_flush(state);
            if !progress {
                break;
            }
        }
        self.publish_landed(state);
    }

    /// Turns what callers wait for into epochs that have to be flushed.
    fn want_what_is_needed(&self, state: &mut StoreState) -> bool {
        if state.unflushed_bytes > UNFLUSHED_BYTES_MAX {
            let open = state.epochs.open;
            state.epochs.want(open);
            state.unflushed_bytes = 0;
        }
        if let Some(epoch) = state.space.overdue_quarantine() {
            state.drain_epoch = state.drain_epoch.max(epoch);
        }
        if state.drain_epoch <= state.epochs.durable_flushed {
            return false;
        }
        // OBJ-3: first the freeing epoch has to be flushed, then a record that says so.
        if state.epochs.flushed < state.drain_epoch {
            let epoch = state.drain_epoch;
            state.epochs.want(epoch);
            return false;
        }
        // A group may still wait for a frame: when that is written, a record can say so.
        if self.trusted_epoch(state) < state.drain_epoch {
            return false;
        }
        let carried = state.groups.closed.iter().find(|group| group.carries >= state.drain_epoch);
        if let Some(group) = carried {
            let epoch = group.epoch;
            state.epochs.want(epoch);
            return false;
        }
        if state.groups.open.forced {
            return false;
        }
        state.groups.open.forced = true;
        state.groups.open.releasing = true;
        true
    }

    /// The last epoch that a record may call durable.
    fn trusted_epoch(&self, state: &StoreState) -> u64 {
        if self.shape.broken.by(Flaw::FlushedAheadOfFrames) {
            return state.epochs.flushed;
        }
        state.groups.trusted_epoch(state.epochs.flushed)
    }

    fn may_close_group(&self, state: &StoreState) -> bool {
        if state.groups.is_open_empty() {
            return false;
        }
        let full = state.groups.open.ops.len() > state.journal.record_bytes_max() / 2
            || state.groups.open.transactions > 4096;
        let idle = state.groups.records == 0 && (state.epochs.flushing.is_none() || self.shape.eager);
        full || idle || self.flush_is_due(state)
    }

    /// Where the journal has room for a record of so many bytes of operations.
    pub(crate) fn record_position(
        &self,
        state: &StoreState,
        ops_bytes: usize,
        releasing: bool,
    ) -> Option<u64> {
        let pages = record::pages_for(ops_bytes, self.shape.page_bytes) as u64;
        let keep = if releasing { 0 } else { state.journal.kept_pages() };
        state.journal.place(pages, keep)
    }

    /// Writes the record of the open group; `false` when the journal has no room for it.
    pub(crate) fn close_group(&self, state: &mut StoreState) -> bool {
        // What a checkpoint without a record stands for comes before any record (OBJ-16).
        if state.checkpointer.absorbed().is_some() {
            return false;
        }
        let group = &state.groups.open;
        let Some(position) = self.record_position(state, group.ops.len(), group.releasing) else {
            return false;
        };
        let pages = record::pages_for(group.ops.len(), self.shape.page_bytes) as u64;
        assert!(
            record::HEADER_LEN + group.ops.len() <= state.journal.record_bytes_max(),
            "a record is no longer than recovery reads"
        );
        let mut group = std::mem::take(&mut state.groups.open);
        state.groups.open = OpenGroup { number: group.number + 1, ..OpenGroup::default() };
        let stale = self.shape.broken.by(Flaw::StampedClosing);
        let epoch = match state.epochs.flushing {
            Some(Flushing::Closing(epoch) | Flushing::Submitted(epoch)) if stale => epoch,
            _ => state.epochs.begin_write(),
        };
        let mut buf = AlignedBuf::zeroed(pages as usize * self.shape.page_bytes);
        let carries = self.trusted_epoch(state);
        let first_lsn = if group.transactions == 0 { state.groups.last_lsn + 1 } else { group.first_lsn };
        let record = NewRecord {
            position,
            ops: &group.ops,
            transactions: group.transactions,
            first_lsn,
            epoch,
            flushed_epoch: carries,
        };
        state.journal.write(&record, &mut buf);
        state.space.quarantine(epoch, std::mem::take(&mut group.freed));
        let last_lsn = first_lsn + u64::from(group.transactions) - 1;
        state.groups.records += 1;
        state.groups.closed.push_back(ClosedGroup {
            number: group.number,
            epoch,
            last_lsn,
            next_seq: state.journal.seq,
            carries,
            outstanding: group.outstanding + 1,
        });
        let run = state.journal.run(position, pages);
        state.unflushed_bytes += buf.len() as u64;
        let ios = self.write_ios(run, vec![buf], Class::Commit);
        let counted = if stale && epoch < state.epochs.open { u64::MAX } else { epoch };
        state.outbox.push((Tag::Record { group: group.number, epoch: counted }, ios));
        self.after_close(state);
        true
    }

    /// Whether a flush should start as soon as none is under way.
    fn flush_is_due(&self, state: &StoreState) -> bool {
        if state.epochs.flushing.is_some() {
            return false;
        }
        state.wanted_lsn > state.groups.durable_lsn || state.epochs.wanted > state.epochs.flushed
    }

    /// Closes the open epoch when somebody waits for something in it.
    fn start_flush(&self, state: &mut StoreState) -> bool {
        if state.epochs.flushing.is_some() {
            return false;
        }
        // A group whose epoch is flushed may still wait for a frame; another flush would not help it.
        let flushed = state.epochs.flushed;
        let commits = state.wanted_lsn > state.groups.durable_lsn
            && state.groups.closed.back().is_some_and(|group| group.epoch > flushed);
        if !commits && state.epochs.wanted <= state.epochs.flushed {
            return false;
        }
        state.epochs.close();
        state.unflushed_bytes = 0;
        true
    }

    fn submit_flush(&self, state: &mut StoreState) -> bool {
        let Some(epoch) = state.epochs.take_ready() else {
            return false;
        };
        state
            .outbox
            .push((Tag::Flush { epoch }, vec![Io { at: 0, kind: IoKind::Flush, class: Class::Commit }]));
        true
    }

    /// An I/O has completed. Takes the mutex; the caller pumps afterwards.
    pub(crate) fn completed(self: &Arc<StoreCore>, tag: Tag, result: Result<(), DeviceError>) {
        let mut state = self.state.lock();
        if let Tag::Discard { run } = tag {
            if let Err(error) = &result {
                tracing::warn!(%error, "space that nothing uses was not given back");
            }
            let epoch = state.epochs.open;
            state.space.allocator.discarded(run, result.is_ok(), epoch);
            return;
        }
        if let Err(error) = result {
            tracing::error!(%error, ?tag, "a write or flush failed; the store takes no more writes");
            state.failure.get_or_insert(error);
        }
        match tag {
            Tag::Data { group, epoch, runs, bytes } => {
                for run in &runs {
                    state.in_flight.remove(&run.at);
                }
                state.in_flight_bytes -= bytes;
                state.epochs.end_write(epoch);
                if state.failure.is_none() {
                    state.groups.end_write(group);
                }
            }
            Tag::Record { group, epoch } => {
                state.groups.records -= 1;
                state.epochs.end_write(epoch);
                if state.failure.is_none() {
                    state.groups.end_write(group);
                }
            }
            Tag::Frame { stream, ticket, epoch, run, bytes } => {
                state.in_flight.remove(&run.at);
                state.in_flight_bytes -= bytes;
                state.epochs.end_write(epoch);
                if state.failure.is_none() {
                    state.frame_written(stream, ticket);
                }
            }
            Tag::Flush { epoch } => {
                if state.failure.is_none() {
                    self.flush_completed(&mut state, epoch);
                }
            }
            Tag::Checkpoint => {
                if state.failure.is_none() {
                    self.checkpoint_written(&mut state);
                }
            }
            Tag::Discard { .. } => {}
            Tag::Superblock => {
                if state.failure.is_none() {
                    self.superblock_written(&mut state);
                }
            }
        }
    }

    fn flush_completed(&self, state: &mut StoreState, epoch: u64) {
        state.epochs.end_flush(epoch);
        let flushed = state.epochs.flushed;
        state.space.allocator.flushed(flushed);
        state.frames_flushed(flushed);
    }

    /// Groups whose epoch is flushed and whose writes, the frames they depend on among them, have completed.
    fn note_durable_groups(&self, state: &mut StoreState) {
        let flushed = state.epochs.flushed;
        if let Some((carried, seq)) = state.groups.flushed(flushed) {
            state.epochs.durable_flushed = state.epochs.durable_flushed.max(carried);
            state.journal.flushed_seq = state.journal.flushed_seq.max(seq);
        }
    }

    /// Gives back what may be reused, and answers those whose turn has come.
    pub(crate) fn publish_landed(&self, state: &mut StoreState) {
        self.note_durable_groups(state);
        self.drain_quarantine(state);
        state.acknowledge_frames();
        let (written, durable) = (state.groups.written_lsn, state.groups.durable_lsn);
        while state.written_waiters.front().is_some_and(|waiter| waiter.lsn <= written) {
            let Some(Waiter { lsn, completer }) = state.written_waiters.pop_front() else {
                break;
            };
            state.deliver(completer, Ok(Lsn(lsn)));
        }
        while state.durable_waiters.front().is_some_and(|waiter| waiter.lsn <= durable) {
            let Some(Waiter { lsn, completer }) = state.durable_waiters.pop_front() else {
                break;
            };
            state.deliver(completer, Ok(Lsn(lsn)));
        }
    }

    fn drain_quarantine(&self, state: &mut StoreState) {
        let broken = self.shape.broken;
        let reusable = if broken.by(Flaw::ReuseAtOnce) {
            u64::MAX
        } else if broken.by(Flaw::ReuseAfterFlush) {
            state.epochs.flushed
        } else if broken.by(Flaw::ReuseAfterTwoFlushes) {
            state.epochs.flushed.saturating_sub(1)
        } else {
            state.epochs.durable_flushed
        };
        let recent = &mut state.recent;
        state.space.drain(reusable, |run| recent.forget(run));
        self.give_back(state);
    }

    fn fail_waiters(&self, state: &mut StoreState) {
        let Some(failure) = state.failure.clone() else {
            return;
        };
        state.outbox.clear();
        let waiters: Vec<Waiter> =
            state.written_waiters.drain(..).chain(state.durable_waiters.drain(..)).collect();
        for waiter in waiters {
            state.deliver(waiter.completer, Err(StoreError::Device(failure.clone())));
        }
        state.fail_frames(&failure);
    }

    /// Write commands for `run`, whose bytes are `bufs` in order, each no longer than the device takes.
    pub(crate) fn write_ios(&self, run: Run, bufs: Vec<AlignedBuf>, class: Class) -> Vec<Io> {
        let most = self.shape.io_pages() as usize * self.shape.page_bytes;
        let mut at = run.at;
        let mut ios = Vec::with_capacity(bufs.len());
        for buf in bufs {
            let pages = (buf.len() / self.shape.page_bytes) as u64;
            if buf.len() <= most {
                ios.push(self.write_io(at, buf, class));
            } else {
                let mut within = at;
                for part in buf.chunks(most) {
                    ios.push(self.write_io(within, AlignedBuf::padded(part, 1), class));
                    within += (part.len() / self.shape.page_bytes) as u64;
                }
            }
            at += pages;
        }
        ios
    }

    /// Asks for room in the open group for `ops_bytes` bytes of operations (OBJ-16). `None`: the group had to
    /// be closed first or the mutex was released to wait for the journal; the caller looks at everything
    /// again.
    /// # Errors
    /// `TooLarge`: longer than any record. `NoSpace`: neither the journal nor a checkpoint can take it.
    /// `Fenced`.
    pub(crate) fn admit(
        self: &Arc<StoreCore>,
        state: &mut MutexGuard<'_, StoreState>,
        ops_bytes: usize,
        releasing: bool,
    ) -> Result<Option<Admitted>, StoreError> {
        let most = state.journal.record_bytes_max();
        if record::HEADER_LEN + ops_bytes > most {
            return Err(StoreError::TooLarge);
        }
        let Some(admitted) = state.groups.admit(ops_bytes, most) else {
            // The open group is full and waits for the journal or for its turn.
            if !self.close_group(state) {
                self.wait_journal(state)?;
            }
            return Ok(None);
        };
        let group = &state.groups.open;
        let all_bytes = group.ops.len() + ops_bytes;
        // One of the two ways to become durable is open to it.
        if !state.space.fits_checkpoint()
            && self.record_position(state, all_bytes, releasing || group.releasing).is_none()
        {
            self.wait_journal(state)?;
            return Ok(None);
        }
        Ok(Some(admitted))
    }

    /// As [`StoreCore::admit`], for one operation of the store's own.
    pub(crate) fn admit_op(
        self: &Arc<StoreCore>,
        state: &mut MutexGuard<'_, StoreState>,
        op: &RecordOp,
    ) -> Result<Option<Admitted>, StoreError> {
        let mut encoded = Vec::new();
        op.encode(&mut encoded);
        self.admit(state, encoded.len(), false)
    }

    /// Enters an internal transaction of one operation; returns its position.
    pub(crate) fn enter_internal(&self, state: &mut StoreState, op: &RecordOp, admitted: Admitted) -> u64 {
        let lsn = state.groups.take_lsn(admitted);
        state.enter(op, lsn);
        lsn
    }

    /// Waits for room in the journal: for a checkpoint, in short.
    /// # Errors
    /// `NoSpace`: there is none for a checkpoint either, and nothing is under way that could change that.
    /// `Fenced`.
    pub(crate) fn wait_journal(
        self: &Arc<StoreCore>,
        state: &mut MutexGuard<'_, StoreState>,
    ) -> Result<(), StoreError> {
        let before = (state.groups.open.number, state.space.allocator.free_pages());
        self.advance(state);
        state.writable()?;
        if state.is_moving() {
            self.wait_change(state);
            return Ok(());
        }
        if before != (state.groups.open.number, state.space.allocator.free_pages()) {
            return Ok(());
        }
        Err(self.no_checkpoint(state))
    }

    /// Whether the journal has room for the open group's record.
    pub(crate) fn can_close(&self, state: &StoreState) -> bool {
        let group = &state.groups.open;
        self.record_position(state, group.ops.len(), group.releasing).is_some()
    }

    /// The refusal where no checkpoint fits.
    pub(crate) fn no_checkpoint(&self, state: &StoreState) -> StoreError {
        let page = self.shape.page_bytes as u64;
        StoreError::NoSpace {
            needed_bytes: state.space.checkpoint_pages * page,
            free_bytes: state.space.allocator.free_pages() * page,
        }
    }
}

/// Tells the device that `run` is not needed any more.
pub(crate) fn discard_io(shape: &Shape, run: Run) -> Io {
    Io {
        at: shape.byte(run.at),
        kind: IoKind::Discard(shape.byte(run.pages.into())),
        class: Class::Background,
    }
}
