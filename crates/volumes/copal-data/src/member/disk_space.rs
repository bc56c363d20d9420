//! Space for new files on a disk, computed at the time of each batch.
//!
//! There are two limits, and the lower one counts: the mark above which a disk accepts no creates (VOL-27),
//! and the engine's own reserve. Deletes, views, seals and copies from other members may exceed the first
//! limit; essential rows may exceed both.
//!
//! Design: docs/design/cluster.md#rules VOL-27
//! Not here: space that a full engine frees by itself (`copal-kv`), reports of a full disk (`copal-server`).

use copal_volume::group::placement::HARD_STOP_PERCENT;
use parking_lot::Mutex;
use std::sync::Arc;

/// Returns used bytes and capacity.
type Bytes = dyn Fn() -> (u64, u64) + Send + Sync;

/// See the module.
#[derive(Default)]
pub(super) struct DiskSpace {
    /// `None`: only the engine has a limit.
    bytes: Mutex<Option<Arc<Bytes>>>,
}

impl DiskSpace {
    /// Sets the source of usage and capacity.
    pub(super) fn watch(&self, bytes: impl Fn() -> (u64, u64) + Send + Sync + 'static) {
        *self.bytes.lock() = Some(Arc::new(bytes));
    }

    /// Bytes that new files may take below the mark.
    pub(super) fn below_mark(&self) -> u64 {
        let Some(bytes) = self.bytes.lock().clone() else {
            return u64::MAX;
        };
        let (used, capacity) = bytes();
        let mark = u128::from(capacity) * u128::from(HARD_STOP_PERCENT) / 100;
        u64::try_from(mark).unwrap_or(u64::MAX).saturating_sub(used)
    }
}
