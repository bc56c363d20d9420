//! Appending frames to streams, and the conditions under which each counts.
//!
//! A single durable append is one write-through of whole pages, without metadata; several threads may each
//! have one in flight. If other callers wait for a flush anyway, the frame joins it.
//! Design: docs/design/object.md#streams OBJ-12, OBJ-14
//! Invariants
//! - Frames are acknowledged in order.
//! - A frame is durable when it was written through or its epoch is flushed, and when all frames before it,
//!   the commit that entered its space and its `after` are durable.
//! - A frame never rewrites a page of an earlier one.
//!
//! Not here: space for frames (`extent`), finding the end after a crash (`walk`), reading (`frame_reader`).

use crate::{
    Ack, FramePos, Lsn, ObjectId, StoreError,
    engine::{
        admission::{admit, enter_internal},
        pump::wait_change,
    },
    flaw::StoreFlaw,
    format::{
        frame::{self, FrameHeader},
        ops::{RecordOp, StreamFrames},
        run::PageRun,
        sum_rule::SumRule,
    },
    state::{StoreCore, StoreState, pending_frames::PendingFrame, queue::IoPurpose},
    stream::{
        extent::extend_stream,
        new_frame::NewFrame,
        reserved_frame::{FrameRoute, ReservedFrame},
        riding_frame::ride,
    },
    tables::StreamPiece,
};
use bytes::Bytes;
use copal_device::{AlignedBuf, Completion, IoClass};
use parking_lot::MutexGuard;
use std::sync::Arc;

/// Most bytes of the operation that promises longer frames.
const FRAMES_OP_BYTES: usize = 64;

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
    let frame = NewFrame { stream: stream.0, payload, pages, after, ack };
    let mut state = store.state.lock();
    let piece = loop {
        state.writable()?;
        frame.expect_stream(&state)?;
        if state.commit.is_crowded() {
            wait_change(store, &mut state);
            continue;
        }
        if pages > state.space.placement().frame_pages_max() {
            return Err(StoreError::TooLarge);
        }
        if state.space.placement().frames_ride() {
            if let Some(frame) = ride(store, &mut state, &frame)? {
                return Ok(frame);
            }
            continue;
        }
        let Some(entry) = state.tables.stream(stream.0) else {
            return Err(StoreError::NotFound(stream));
        };
        let last = entry.pieces.last().copied();
        let (expected, pages_max) = (entry.what.expected_log2, entry.frame_pages_max);
        let tail = state.streams.open_tail(stream.0);
        let (used, next) = (tail.used, tail.next);
        if tail.damaged {
            return Err(StoreError::Corrupt { id: stream, range: next..next + 1 });
        }
        if last.is_some_and(|piece| state.streams.is_raw_extent(stream.0, piece.run)) {
            return Err(StoreError::InUse(stream));
        }
        if pages > pages_max && !store.shape.broken.by(StoreFlaw::LongFramesUnsaid) {
            promise_longer(store, &mut state, stream.0, pages)?;
            continue;
        }
        match last.filter(|piece| piece.run.pages - used >= pages) {
            Some(piece) => break piece,
            None => extend_stream(store, &mut state, stream.0, pages, expected)?,
        }
    };
    Ok(number_frame(store, state, &frame, piece))
}

/// Enters a promise of frames of `pages` pages; the caller checks again. A frame counts only with the promise:
/// if it is damaged, recovery looks behind it as far as promised for a frame that calls it durable.
fn promise_longer(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    stream: u64,
    pages: u32,
) -> Result<(), StoreError> {
    let Some(admitted) = admit(store, state, FRAMES_OP_BYTES, false)? else {
        return Ok(());
    };
    let pages_max = pages.next_power_of_two().min(frame::pages_max(store.shape.page_bytes));
    let durable = state.streams.open_tail(stream).durable;
    let frames = StreamFrames { id: stream, durable, pages_max };
    enter_internal(state, &RecordOp::Frames { streams: vec![frames] }, admitted);
    state.streams.name_frames(std::iter::once(stream));
    Ok(())
}

/// Assigns the frame's number and place, and adds it to the frames in flight.
fn number_frame(
    store: &Arc<StoreCore>,
    mut state: MutexGuard<'_, StoreState>,
    frame: &NewFrame<'_>,
    piece: StreamPiece,
) -> ReservedFrame {
    let &NewFrame { stream, pages, ack, .. } = frame;
    let durable_lsn = state.commit.durable_lsn();
    let early = store.shape.broken.by(StoreFlaw::ThroughEarly);
    let after = if frame.after <= durable_lsn { 0 } else { frame.after };
    let needs_lsn = piece.lsn.max(after);
    // Earlier frames in flight must become durable without a flush as well.
    let through = ack == Ack::Durable
        && state.commit.is_idle()
        && (early || (needs_lsn <= durable_lsn && state.streams.open_tail(stream).pending.is_through()));
    let place = state.streams.number_frame(stream, pages);
    let run = PageRun::new(piece.run.at + u64::from(place.used), pages);
    let header = FrameHeader {
        incarnation: piece.incarnation,
        frame: place.number,
        flushed_frame: place.durable,
        after,
        rule: state.tables.stream(stream).map_or_else(SumRule::default, |stream| stream.what.sums),
    };
    let mut buf = AlignedBuf::stale(pages as usize * store.shape.page_bytes);
    frame::encode(&header, frame.payload, &mut buf);
    let at = FramePos(place.number);
    if through {
        let pin = state.space.pin(vec![run]);
        let pending = PendingFrame::new(place.number, place.used, None, needs_lsn);
        let ticket = state.streams.enter_frame(stream, pending);
        let way = FrameRoute::Through { stream, ticket, run, pin, buf };
        return ReservedFrame::new(store, at, way);
    }
    let pending = PendingFrame::new(place.number, place.used, None, needs_lsn);
    let completion = queue_frame(store, &mut state, frame, pending, run, buf);
    ReservedFrame::new(store, at, FrameRoute::Queued { completion })
}

/// Queues the write of a frame for the device; the frame is durable with the flush of its epoch.
fn queue_frame(
    store: &StoreCore,
    state: &mut StoreState,
    frame: &NewFrame<'_>,
    mut pending: PendingFrame,
    run: PageRun,
    buf: AlignedBuf,
) -> Completion<Result<FramePos, StoreError>> {
    let &NewFrame { stream, ack, .. } = frame;
    let bytes = buf.len() as u64;
    let epoch = state.commit.begin_write(&[run], bytes);
    let (waiter, completion) = if ack == Ack::Ordered {
        (None, Completion::ready(Ok(FramePos(pending.frame))))
    } else {
        let (completer, completion) = store.promise();
        (Some((ack, completer)), completion)
    };
    if ack == Ack::Durable {
        state.commit.want_epoch(epoch);
        state.commit.want_durable(pending.needs_lsn);
    }
    pending.epoch = Some(epoch);
    pending.waiter = waiter;
    let ticket = state.streams.enter_frame(stream, pending);
    let purpose = IoPurpose::Frame { stream, ticket, epoch, run, bytes };
    let io = store.write_io(run.at, buf, IoClass::Commit);
    state.queue.submit(purpose, vec![io]);
    completion
}
