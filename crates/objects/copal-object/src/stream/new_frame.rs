//! A frame before it has a number, and the checks of its stream.

use crate::{Ack, ObjectId, StoreError, state::StoreState};
use bytes::Bytes;

/// Placement class of stream extents.
pub(super) const STREAM_CLASS: usize = 0;

/// A frame without a number yet.
pub(super) struct NewFrame<'a> {
    pub(super) stream: u64,
    pub(super) payload: &'a Bytes,
    /// Pages it takes with its header.
    pub(super) pages: u32,
    /// The commit that the frame comes after; 0: none.
    pub(super) after: u64,
    pub(super) ack: Ack,
}

impl NewFrame<'_> {
    /// Whether the stream can take frames.
    /// # Errors
    /// `NotFound`, `WrongKind`; `UnknownDependency`: it comes after a commit that does not exist.
    pub(super) fn expect_stream(&self, state: &StoreState) -> Result<(), StoreError> {
        let stream = ObjectId(self.stream);
        if state.tables.stream(self.stream).is_none() {
            let known = state.tables.entries.contains(self.stream);
            return Err(if known { StoreError::WrongKind(stream) } else { StoreError::NotFound(stream) });
        }
        if self.after > state.commit.last_lsn() {
            return Err(StoreError::UnknownDependency { stream: None, frame: None, lsn: self.after });
        }
        Ok(())
    }
}
