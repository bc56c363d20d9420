//! The clock that a member goes by: the cluster's reference once it was told, its own before.
//!
//! Design: docs/design/cluster.md#rules VOL-42, VOL-43
//! Invariant: time buckets are sealed by the earlier of the two clocks, so one clock that is ahead seals
//! nothing too early.
//!
//! Not here: who tells the reference (`copal-server`), the rules for seals in the future
//! (`copal_volume::group`).

use copal_volume::{Clock, ReferenceClock};
use parking_lot::RwLock;
use std::sync::Arc;

/// See the module.
pub(super) struct MemberClock {
    own: Arc<dyn Clock>,
    reference: RwLock<Option<Arc<dyn ReferenceClock>>>,
}

impl MemberClock {
    pub(super) fn new(own: Arc<dyn Clock>) -> MemberClock {
        MemberClock { own, reference: RwLock::default() }
    }

    /// Goes by a reference as soon as that is told.
    pub(super) fn go_by(&self, reference: Arc<dyn ReferenceClock>) {
        *self.reference.write() = Some(reference);
    }

    /// What this machine's own clock shows, ms since 1970.
    pub(super) fn own_ms(&self) -> u64 {
        self.own.now_ms()
    }

    /// The cluster's reference, ms since 1970; `None`: this process has not been told it yet.
    pub(super) fn reference_ms(&self) -> Option<u64> {
        self.reference.read().as_ref()?.reference_ms()
    }

    /// The time by which operations are judged.
    pub(super) fn now_ms(&self) -> u64 {
        self.reference_ms().unwrap_or_else(|| self.own.now_ms())
    }

    /// The time up to which buckets may be sealed.
    pub(super) fn sealing_ms(&self) -> u64 {
        let own_ms = self.own.now_ms();
        self.reference_ms().map_or(own_ms, |reference| reference.min(own_ms))
    }
}
