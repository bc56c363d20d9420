//! Streams at work: appending frames, and when each counts.
//!
//! A solo durable append is one write-through of whole pages, no metadata; several threads may have one each
//! on its way. When others wait for a flush anyway, it joins them.
//! Design: docs/design/object.md#streams OBJ-12, OBJ-14
//! Invariants
//! - Frames are acknowledged in order. A frame is durable when it was written through or its epoch is
//!   flushed, all frames before it are durable, and so are the commit that entered its space and its `after`.
//! - A frame never rewrites a page of an earlier one.
//!
//! Not here: finding the end after a crash (`walk`), reading (`frame_reader`).

use crate::{
    Ack, FramePos, Lsn, ObjectId, StoreError,
    engine::{
        admission::{admit, enter_internal},
        pump::wait_change,
    },
    flaw::Flaw,
    format::{
        frame::{self, FrameHeader},
        ops::RecordOp,
        run::Run,
    },
    resize::grow::make_available,
    space,
    space::placement::Home,
    state::{StoreCore, StoreState, Tag, pending_frames::FrameState},
    stream::reserved_frame::{ReservedFrame, Way},
    tables::Piece,
};
use bytes::Bytes;
use copal_device::{AlignedBuf, Class, Completion, DeviceError, Io, IoKind};
use parking_lot::MutexGuard;
use std::sync::Arc;

/// Most bytes of the operation that gives a stream space, in a record and in a checkpoint.
const EXTENT_OP_BYTES: usize = 64;

/// Placement class of stream extents.
pub(crate) const STREAM_CLASS: usize = 0;

/// A frame before it has its number.
struct NewFrame<'a> {
    stream: u64,
    payload: &'a Bytes,
    /// Pages it takes with its header.
    pages: u32,
    /// The commit it comes after; 0: none.
    after: u64,
    ack: Ack,
}

/// See `Store::reserve_frame`.
pub(crate) fn reserve_frame(
    store: &Arc<StoreCore>,
    stream: ObjectId,
    payload: &Bytes,
    after: Option<Lsn>,
    ack: Ack,
) -> Result<ReservedFrame, StoreError> {
    let after = after.map_or(0, |lsn| lsn.0);
    if store.shape.read_only {
        return Err(StoreError::ReadOnly);
    }
    let pages = frame::pages_for(payload.len(), store.shape.page_bytes) as u32;
    if payload.len() > frame::FRAME_BYTES_MAX - frame::HEADER_LEN {
        return Err(StoreError::TooLarge);
    }
    let mut state = store.state.lock();
    let piece = loop {
        state.writable()?;
        let Some(entry) = state.tables.stream(stream.0) else {
            let known = state.tables.entries.contains_key(&stream.0);
            return Err(if known { StoreError::WrongKind(stream) } else { StoreError::NotFound(stream) });
        };
        if after > state.groups.last_lsn {
            return Err(StoreError::UnknownDependency { stream: None, frame: None, lsn: after });
        }
        let last = entry.pieces.last().copied();
        let expected = entry.what.expected_log2;
        if state.in_flight_bytes > state.in_flight_limit {
            wait_change(store, &mut state);
            continue;
        }
        let tail = state.tails.entry(stream.0).or_default();
        if tail.damaged {
            let range = tail.next..tail.next + 1;
            return Err(StoreError::Corrupt { id: stream, range });
        }
        let is_raw = |piece: &Piece| state.raw_extents.values().any(|held| *held == (stream.0, piece.run));
        if last.as_ref().is_some_and(is_raw) {
            return Err(StoreError::InUse(stream));
        }
        let tail = state.tails.entry(stream.0).or_default();
        match last.filter(|piece| piece.run.pages - tail.used >= pages) {
            Some(piece) => break piece,
            None => extend_stream(store, &mut state, stream.0, pages, expected)?,
        }
    };
    let frame = NewFrame { stream: stream.0, payload, pages, after, ack };
    Ok(number_frame(store, state, &frame, piece))
}

/// Enters one more extent for the stream, or prepares one; the caller looks again.
pub(crate) fn extend_stream(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    stream: u64,
    pages: u32,
    expected_log2: u8,
) -> Result<(), StoreError> {
    let missing = state.pages_for_tables(EXTENT_OP_BYTES as u64, false);
    if missing > 0 {
        return make_available(store, state, missing, missing);
    }
    let Some(admitted) = admit(store, state, EXTENT_OP_BYTES, false)? else {
        return Ok(());
    };
    let smallest = store.shape.stream_extent_pages.max(pages.into());
    let entry = state.tables.stream(stream);
    let pieces = entry.into_iter().flat_map(|entry| &entry.pieces);
    let held = pieces.map(|piece| u64::from(piece.run.pages)).sum();
    let available = state.space.available_pages();
    let wanted = space::stream_extent_pages(held, available, expected_log2, smallest, store.shape.page_bytes);
    let home = Home { class: STREAM_CLASS, owner: stream };
    let spare = state.spare_extents.iter().position(|run| run.pages >= pages);
    let run = match spare {
        Some(index) => {
            let run = state.spare_extents.swap_remove(index);
            state.space.staged_pages -= u64::from(run.pages);
            Some(run)
        }
        None => {
            state.look_at_host();
            let available = state.space.available_pages();
            [wanted, smallest, pages.into()]
                .into_iter()
                .filter(|&size| size <= available)
                .find_map(|size| state.space.allocator.allocate_run(size as u32, home, true))
        }
    };
    let Some(run) = run else {
        return prepare_extent(store, state, home, wanted, pages);
    };
    let incarnation = state.entropy.next();
    let first = state.tails.entry(stream).or_default().next;
    enter_internal(state, &RecordOp::StreamExtent { id: stream, run, first, incarnation }, admitted);
    state.tails.entry(stream).or_default().used = 0;
    Ok(())
}

/// Takes space that was never written, writes zeros over it, and sets it aside.
fn prepare_extent(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    home: Home,
    wanted: u64,
    pages: u32,
) -> Result<(), StoreError> {
    let available = state.space.available_pages();
    let found = [wanted, pages.into()]
        .into_iter()
        .filter(|&size| size <= available)
        .find_map(|size| state.space.allocator.allocate_run(size as u32, home, false));
    let Some(run) = found else {
        return make_available(store, state, wanted.max(pages.into()), pages.into());
    };
    state.space.staged_pages += u64::from(run.pages);
    let len = run.pages as usize * store.shape.page_bytes;
    let io =
        Io { at: store.shape.byte(run.at), kind: IoKind::WriteZeroes(len as u64), class: Class::Foreground };
    let done = MutexGuard::unlocked(state, || store.device.submit(vec![io]).wait());
    if let Err(error) = done.into_iter().try_for_each(|done| done.result) {
        state.failure.get_or_insert(error.clone());
        return Err(StoreError::Device(error));
    }
    state.space.allocator.note_written(run);
    state.reckon_checkpoint();
    state.spare_extents.push(run);
    Ok(())
}

/// Gives the frame its number and place, and enters it among what is on its way.
fn number_frame(
    store: &Arc<StoreCore>,
    mut state: MutexGuard<'_, StoreState>,
    frame: &NewFrame<'_>,
    piece: Piece,
) -> ReservedFrame {
    let &NewFrame { stream, pages, ack, .. } = frame;
    let (durable_lsn, wanted_lsn) = (state.groups.durable_lsn, state.wanted_lsn);
    let idle = state.epochs.flushing.is_none() && wanted_lsn <= durable_lsn;
    let early = store.shape.broken.by(Flaw::ThroughEarly);
    let after = if frame.after <= durable_lsn { 0 } else { frame.after };
    let needs_lsn = piece.lsn.max(after);
    let tail = state.tails.entry(stream).or_default();
    // What is on its way before it must become durable without a flush as well.
    let through =
        ack == Ack::Durable && idle && (early || (needs_lsn <= durable_lsn && tail.pending.is_through()));
    let run = Run::new(piece.run.at + u64::from(tail.used), pages);
    let number = tail.next;
    let header =
        FrameHeader { incarnation: piece.incarnation, frame: number, flushed_frame: tail.durable, after };
    tail.next += 1;
    tail.used += pages;
    let mut buf = AlignedBuf::stale(pages as usize * store.shape.page_bytes);
    frame::encode(&header, frame.payload, &mut buf);
    let at = FramePos(number);
    if through {
        let pin = state.space.pin(vec![run]);
        let ticket = state.take_frame_ticket();
        state.enter_frame(stream, FrameState::new(ticket, number, None, needs_lsn));
        let way = Way::Through { stream, ticket, run, pin, buf };
        return ReservedFrame::new(store, at, way);
    }
    let completion = queue_frame(store, &mut state, frame, at, run, needs_lsn, buf);
    ReservedFrame::new(store, at, Way::Queued { completion })
}

/// Puts the write of a frame among those that go to the device next; it counts with their flush.
fn queue_frame(
    store: &StoreCore,
    state: &mut StoreState,
    frame: &NewFrame<'_>,
    at: FramePos,
    run: Run,
    needs_lsn: u64,
    buf: AlignedBuf,
) -> Completion<Result<FramePos, StoreError>> {
    let &NewFrame { stream, ack, .. } = frame;
    let bytes = buf.len() as u64;
    let epoch = state.epochs.begin_write();
    let (waiter, completion) = if ack == Ack::Ordered {
        (None, Completion::ready(Ok(at)))
    } else {
        let (completer, completion) = store.promise();
        (Some((ack, completer)), completion)
    };
    if ack == Ack::Durable {
        state.epochs.want(epoch);
        state.wanted_lsn = state.wanted_lsn.max(needs_lsn);
    }
    let ticket = state.take_frame_ticket();
    let mut frame = FrameState::new(ticket, at.0, Some(epoch), needs_lsn);
    frame.waiter = waiter;
    state.enter_frame(stream, frame);
    state.in_flight.insert(run.at, run.pages);
    state.in_flight_bytes += bytes;
    state.unflushed_bytes += bytes;
    let tag = Tag::Frame { stream, ticket, epoch, run, bytes };
    let io = store.write_io(run.at, buf, Class::Commit);
    state.outbox.push((tag, vec![io]));
    completion
}

impl StoreState {
    fn enter_frame(&mut self, stream: u64, frame: FrameState) {
        self.tails.entry(stream).or_default().pending.push(frame);
    }

    fn take_frame_ticket(&mut self) -> u64 {
        self.frame_tickets += 1;
        self.frame_tickets
    }

    pub(crate) fn pending_frame(&mut self, stream: u64, ticket: u64) -> Option<&mut FrameState> {
        let tail = self.tails.get_mut(&stream);
        tail.and_then(|tail| tail.pending.find(ticket))
            .or_else(|| self.orphans.iter_mut().find(|state| state.ticket == ticket))
    }

    /// The write of a frame has completed.
    pub(crate) fn frame_written(&mut self, stream: u64, ticket: u64) {
        let Some(state) = self.pending_frame(stream, ticket) else {
            return;
        };
        state.written = true;
        let groups = std::mem::take(&mut state.groups);
        self.orphans.retain(|orphan| !orphan.written);
        groups.into_iter().for_each(|group| self.groups.end_write(group));
    }

    /// The open group counts only if `frame` and those before it survive: it is written when they are.
    pub(crate) fn await_frames(&mut self, stream: u64, frame: u64) {
        let Some(tail) = self.tails.get_mut(&stream) else {
            return;
        };
        for state in tail.pending.on_their_way().filter(|state| state.frame <= frame) {
            state.groups.push(self.groups.open.number);
            self.groups.open.outstanding += 1;
        }
    }

    pub(crate) fn frame_through(&mut self, stream: u64, ticket: u64) {
        self.frame_written(stream, ticket);
        if let Some(state) = self.pending_frame(stream, ticket) {
            state.durable = true;
        }
        self.acknowledge_frames();
    }

    /// Everything of epochs up to `flushed` is durable.
    pub(crate) fn frames_flushed(&mut self, flushed: u64) {
        self.tails.values_mut().for_each(|tail| tail.pending.flushed(flushed));
    }

    /// Acknowledges frames whose turn has come, in the order of each stream.
    pub(crate) fn acknowledge_frames(&mut self) {
        let (written_lsn, durable_lsn) = (self.groups.written_lsn, self.groups.durable_lsn);
        let mut answers = Vec::new();
        for tail in self.tails.values_mut() {
            tail.pending.acknowledge_written(written_lsn, &mut answers);
            if let Some(end) = tail.pending.take_durable(durable_lsn, &mut answers) {
                tail.durable = end;
            }
        }
        for (completer, frame) in answers {
            self.deliver(completer, Ok(FramePos(frame)));
        }
    }

    /// Answers every waiting frame with the failure.
    pub(crate) fn fail_frames(&mut self, failure: &DeviceError) {
        let tails = self.tails.values_mut();
        let waiters: Vec<_> = tails.flat_map(|tail| tail.pending.take_waiters()).collect();
        for completer in waiters {
            self.deliver(completer, Err(StoreError::Device(failure.clone())));
        }
    }

    /// The stream is gone: whoever waits for one of its frames learns that.
    pub(crate) fn forget_stream(&mut self, stream: u64) {
        let Some(tail) = self.tails.remove(&stream) else {
            return;
        };
        for mut state in tail.pending.into_frames() {
            if let Some((_, completer)) = state.waiter.take() {
                self.deliver(completer, Err(StoreError::NotFound(ObjectId(stream))));
            }
            // Commits that depend on it still wait for it: the one that deletes the stream may be lost.
            if !state.groups.is_empty() {
                self.orphans.push(state);
            }
        }
    }
}
