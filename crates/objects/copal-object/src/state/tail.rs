//! The end of an open stream, and what is on its way to it.

use crate::state::pending_frames::PendingFrames;

/// The end of an open stream.
#[derive(Default)]
pub(crate) struct Tail {
    /// Number of the next frame.
    pub(crate) next: u64,
    /// Pages used of the last piece.
    pub(crate) used: u32,
    /// Piece the end was found in; used by the mount only.
    pub(crate) piece: usize,
    /// Frames below this are durable.
    pub(crate) durable: u64,
    /// Recovery found acknowledged frames damaged at `next`.
    pub(crate) damaged: bool,
    pub(crate) pending: PendingFrames,
}
