//! Whether a disk takes new files: decided where they are applied, by what is used at that moment.
//!
//! Two limits, whichever is met first: the mark above which a disk takes no creates (VOL-27), and what the
//! engine keeps back for itself. Deletes, views, closing and what is taken over from others go beyond the
//! first, and what is essential goes beyond the second.
//!
//! Design: docs/design/cluster.md#rules VOL-27
//! Not here: what a full engine frees by itself (`copal-kv`), who is told (`copal-server`).

use copal_volume::group::placement::HARD_STOP_PERCENT;
use parking_lot::Mutex;
use std::sync::Arc;

/// Says how many bytes are used, and how many there are.
type Bytes = dyn Fn() -> (u64, u64) + Send + Sync;

/// See the module.
#[derive(Default)]
pub(super) struct DiskRoom {
    /// `None`: only the engine knows an end.
    bytes: Mutex<Option<Arc<Bytes>>>,
}

impl DiskRoom {
    /// From now on `bytes` is asked.
    pub(super) fn watch(&self, bytes: impl Fn() -> (u64, u64) + Send + Sync + 'static) {
        *self.bytes.lock() = Some(Arc::new(bytes));
    }

    /// Bytes that new files may take before the mark.
    pub(super) fn below_mark(&self) -> u64 {
        let Some(bytes) = self.bytes.lock().clone() else {
            return u64::MAX;
        };
        let (used, capacity) = bytes();
        let mark = u128::from(capacity) * u128::from(HARD_STOP_PERCENT) / 100;
        u64::try_from(mark).unwrap_or(u64::MAX).saturating_sub(used)
    }
}
