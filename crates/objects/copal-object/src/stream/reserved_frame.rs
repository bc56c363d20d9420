//! A frame between its number and its write.
//!
//! Invariants
//! - An assigned number is always written: for the next opening a hole would be the end of the stream. A
//!   dropped frame is therefore written like any other, but no caller learns when.
//!
//! Not here: the frame's place and when it counts (`append`).

use crate::{
    Ack, FramePos, ObjectId, StoreError, engine::pump::pump, flaw::StoreFlaw, format::run::PageRun,
    state::StoreCore,
};
use copal_device::{AlignedBuf, Completion};
use std::sync::Arc;

/// The remaining write of a frame.
pub(crate) enum FrameRoute {
    /// One write on the calling thread.
    Through { stream: u64, ticket: u64, run: PageRun, pin: u64, buf: AlignedBuf },
    /// The write is queued for the device.
    Queued { completion: Completion<Result<FramePos, StoreError>> },
}

/// A frame with its number and place in the stream, from [`crate::Store::reserve_frame`]. Dropping it writes
/// it too.
#[must_use = "write() writes the frame and returns its completion"]
pub struct ReservedFrame {
    inner: Arc<StoreCore>,
    at: FramePos,
    way: Option<FrameRoute>,
}

impl ReservedFrame {
    pub(crate) fn new(inner: &Arc<StoreCore>, at: FramePos, way: FrameRoute) -> ReservedFrame {
        ReservedFrame { inner: Arc::clone(inner), at, way: Some(way) }
    }

    /// The frame's number in its stream.
    #[must_use]
    pub fn at(&self) -> FramePos {
        self.at
    }

    /// Writes the frame to the device. A frame that needs no flush is written before this returns; others
    /// complete with their flush.
    /// # Errors
    /// `Device`, `Fenced`; `NotFound`: the stream was deleted meanwhile. `FrameCut`: its end was cut off.
    pub fn write(mut self) -> Completion<Result<FramePos, StoreError>> {
        let way = self.way.take().expect("taken here and by drop, which comes last");
        self.go(way)
    }

    fn go(&self, way: FrameRoute) -> Completion<Result<FramePos, StoreError>> {
        match way {
            FrameRoute::Through { stream, ticket, run, pin, buf } => {
                let inner = &self.inner;
                write_frame_through(inner, self.at, stream, ticket, run, pin, buf)
            }
            FrameRoute::Queued { completion } => {
                pump(&self.inner);
                completion
            }
        }
    }
}

impl Drop for ReservedFrame {
    fn drop(&mut self) {
        if let Some(way) = self.way.take() {
            drop(self.go(way));
        }
    }
}

impl std::fmt::Debug for ReservedFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReservedFrame").field("at", &self.at).finish_non_exhaustive()
    }
}

/// The hot path: one write that is durable when it returns, on the caller's thread. It is acknowledged at
/// once, unless earlier frames are still in flight.
fn write_frame_through(
    store: &Arc<StoreCore>,
    at: FramePos,
    stream: u64,
    ticket: u64,
    run: PageRun,
    pin: u64,
    buf: AlignedBuf,
) -> Completion<Result<FramePos, StoreError>> {
    let result = store.device.write_through(store.shape.byte(run.at), buf);
    let mut state = store.state.lock();
    state.space.unpin(pin);
    let is_cut = !state.streams.is_pending(stream, ticket);
    let completion = match result {
        // Commits that depend on the frame wait for its write.
        Ok(_) if is_cut => {
            state.frame_written(stream, ticket);
            let id = ObjectId(stream);
            Completion::ready(Err(match state.tables.stream(stream) {
                Some(_) => StoreError::FrameCut { id, frame: at },
                None => StoreError::NotFound(id),
            }))
        }
        Ok(_) => {
            if let Some(frame) = state.streams.pending_frame(stream, ticket) {
                frame.durable = true;
            }
            state.frame_written(stream, ticket);
            state.acknowledge_frames();
            let early = store.shape.broken.by(StoreFlaw::ThroughEarly);
            let behind = state.streams.pending_frame(stream, ticket).filter(|_| !early).map(|frame| {
                let (completer, completion) = store.promise();
                frame.waiter = Some((Ack::Durable, completer));
                completion
            });
            if store.shape.broken.by(StoreFlaw::ThroughIsFlush) {
                let epoch = state.commit.pretend_flush();
                state.streams.flushed(epoch);
            }
            behind.unwrap_or_else(|| Completion::ready(Ok(at)))
        }
        Err(error) => {
            state.fence.fail(error.clone());
            Completion::ready(Err(StoreError::Device(error)))
        }
    };
    drop(state);
    pump(store);
    completion
}
