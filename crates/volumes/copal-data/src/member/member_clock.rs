//! Clock of a member: the cluster's reference once it is known, before that the machine's own clock.
//!
//! Design: docs/design/cluster.md#rules VOL-42, VOL-43
//! Invariant: the earlier of the two clocks determines which buckets are sealed, so one clock that is ahead
//! seals nothing too early.
//!
//! Not here: the source of the reference (`copal-server`), the rules for seals in the future
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

    /// Follows a reference as soon as it is known.
    pub(super) fn follow_reference(&self, reference: Arc<dyn ReferenceClock>) {
        *self.reference.write() = Some(reference);
    }

    /// Current time of the machine's own clock, ms since 1970.
    pub(super) fn own_ms(&self) -> u64 {
        self.own.now_ms()
    }

    /// The cluster's reference, ms since 1970; `None`: this process does not know it yet.
    pub(super) fn reference_ms(&self) -> Option<u64> {
        self.reference.read().as_ref()?.reference_ms()
    }

    /// Current time for decisions on operations, ms since 1970.
    pub(super) fn now_ms(&self) -> u64 {
        self.reference_ms().unwrap_or_else(|| self.own.now_ms())
    }

    /// Current time for seals, ms since 1970.
    pub(super) fn sealing_ms(&self) -> u64 {
        let own_ms = self.own.now_ms();
        self.reference_ms().map_or(own_ms, |reference| reference.min(own_ms))
    }
}
