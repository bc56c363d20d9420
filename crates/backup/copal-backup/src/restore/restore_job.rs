//! The restore of one disk, as its threads share it.

use super::block_edges::BlockEdges;
use crate::request::progress::Progress;
use copal_disk::target::Target;
use std::sync::atomic::{AtomicU64, Ordering};

/// The restore of one disk, shared by its threads.
pub(super) struct RestoreJob<'a> {
    pub(super) size_bytes: u64,
    pub(super) target: &'a dyn Target,
    pub(super) progress: &'a dyn Progress,
    /// Incomplete blocks of a target that is written in any order.
    pub(super) edges: BlockEdges,
    pub(super) written_bytes: AtomicU64,
}

impl RestoreJob<'_> {
    /// Counts bytes of data that were written.
    pub(super) fn wrote(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.progress.advance(bytes);
    }
}
