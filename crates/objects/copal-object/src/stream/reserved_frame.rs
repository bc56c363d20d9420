//! A frame between its number and its write.
//!
//! Invariants
//! - A number that was given out is written: a hole would be the end of the stream to whoever opens the store
//!   next. A frame that is dropped is therefore written like any other; only nobody learns when.
//!
//! Not here: where the frame lies and when it counts (`append`).

use crate::{FramePos, StoreError, format::run::Run, state::StoreCore};
use copal_device::{AlignedBuf, Completion};
use std::sync::Arc;

/// What is left to do for a frame.
pub(crate) enum Way {
    /// One write on the thread that calls.
    Through { stream: u64, ticket: u64, run: Run, pin: u64, buf: AlignedBuf },
    /// Its write stands among those that go to the device next.
    Queued { completion: Completion<Result<FramePos, StoreError>> },
}

/// A frame that has its number and place in its stream, from [`crate::Store::reserve_frame`]. Dropping it
/// writes it, too.
#[must_use = "write() brings the frame to the device and tells when it is there"]
pub struct ReservedFrame {
    inner: Arc<StoreCore>,
    at: FramePos,
    way: Option<Way>,
}

impl ReservedFrame {
    pub(crate) fn new(inner: &Arc<StoreCore>, at: FramePos, way: Way) -> ReservedFrame {
        ReservedFrame { inner: Arc::clone(inner), at, way: Some(way) }
    }

    /// The frame's number in its stream.
    #[must_use]
    pub fn at(&self) -> FramePos {
        self.at
    }

    /// Brings the frame to the device. A frame that needs no flush is written before this returns; the others
    /// are told when their flush is over.
    /// # Errors
    /// `Device`, `Fenced`; `NotFound`: the stream was deleted meanwhile.
    pub fn write(mut self) -> Completion<Result<FramePos, StoreError>> {
        let way = self.way.take().expect("taken here and by drop, which comes last");
        self.go(way)
    }

    fn go(&self, way: Way) -> Completion<Result<FramePos, StoreError>> {
        match way {
            Way::Through { stream, ticket, run, pin, buf } => {
                let inner = &self.inner;
                inner.write_frame_through(self.at, stream, ticket, run, pin, buf)
            }
            Way::Queued { completion } => {
                self.inner.pump();
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
