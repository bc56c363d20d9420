//! Progress reports of long operations, and their cancellation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stage of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// Reading the catalog, the base and the block map.
    Plan,
    /// Reading, chunking and storing a disk. The total is the estimate of bytes to be read, without holes.
    Read,
    /// Writing recipes, the manifest and the Publish record.
    Publish,
    /// Fetching chunks and writing them to a target. The total is the disk's data bytes.
    Restore,
    /// Fetching chunks and comparing them with their ids. The total is the disk's data bytes.
    Verify,
    /// Walking snapshots and their recipes. The total is the number of snapshots, if known.
    Walk,
    /// Decoding packs. The total is their stored bytes.
    ReadData,
    /// Unlinking and compacting packs. The total is the bytes to examine.
    Sweep,
    /// Reading pack footers into the index. The total is packs.
    Index,
}

/// Receives progress; called from any thread of the operation, often: keep it cheap.
pub trait Progress: Send + Sync {
    /// A stage begins; `total` is in the stage's unit, 0 if unknown. `what` names the disk or VM.
    fn stage(&self, stage: Stage, what: &str, total: u64) {
        let _ = (stage, what, total);
    }
    /// `delta` more units of the current stage are done.
    fn advance(&self, delta: u64) {
        let _ = delta;
    }
    /// Bytes newly stored in the repository since the last call, after compression.
    fn stored(&self, delta_bytes: u64) {
        let _ = delta_bytes;
    }
    /// A message for the user that does not end the operation.
    fn notice(&self, message: &str) {
        let _ = message;
    }
}

/// Ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;
impl Progress for Silent {}

/// Asks a running operation to stop at its next safe point; cheap to clone and to check.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag {
    raised: Arc<AtomicBool>,
}

impl CancelFlag {
    /// A flag that is not raised.
    pub fn new() -> CancelFlag {
        CancelFlag::default()
    }
    /// A flag shared with a signal handler: setting it to `true` cancels.
    pub fn from_shared(raised: Arc<AtomicBool>) -> CancelFlag {
        CancelFlag { raised }
    }
    /// Asks to stop. Safe from a signal handler's thread.
    pub fn cancel(&self) {
        self.raised.store(true, Ordering::Relaxed);
    }
    /// Whether cancellation was requested.
    pub fn is_cancelled(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }
}
