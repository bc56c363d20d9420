//! Groups in which damage was met on this disk, and what was given up of them.
//!
//! Not here: giving it up (`repairing`).

use copal_volume::group::GroupId;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::AtomicU64,
};
use tokio::sync::Notify;

/// Groups in which damage was met.
#[derive(Default)]
pub(crate) struct Repairs {
    met: Mutex<BTreeSet<GroupId>>,
    under_way: Mutex<BTreeSet<GroupId>>,
    /// How often something of a group was given up since the process began.
    given_up: Mutex<BTreeMap<GroupId, u64>>,
    /// Comparisons of a group's files with another member's, and those that found other files time and again.
    pub(crate) compared: AtomicU64,
    pub(crate) differing: AtomicU64,
    now: Notify,
}

impl Repairs {
    /// Damage was met in a group.
    pub(crate) fn met(&self, group: GroupId) {
        self.met.lock().insert(group);
        self.now.notify_one();
    }

    /// Damage that could not be given up now: it is looked at again, and not at once.
    pub(crate) fn later(&self, group: GroupId) {
        self.met.lock().insert(group);
    }

    /// Groups in which damage was met since the last time.
    pub(crate) fn take(&self) -> BTreeSet<GroupId> {
        std::mem::take(&mut *self.met.lock())
    }

    /// Returns when damage is met.
    pub(crate) async fn wait(&self) {
        self.now.notified().await;
    }

    /// Whether something of the group is being given up: nobody becomes whole in it.
    pub(crate) fn is_under_way(&self, group: GroupId) -> bool {
        self.under_way.lock().contains(&group)
    }

    /// How often something of a group was given up. What was compared before it changed does not count.
    pub(crate) fn generation(&self, group: GroupId) -> u64 {
        self.given_up.lock().get(&group).copied().unwrap_or_default()
    }

    /// From here on nobody becomes whole in the group.
    pub(crate) fn begin(&self, group: GroupId) {
        self.under_way.lock().insert(group);
        *self.given_up.lock().entry(group).or_default() += 1;
    }

    /// From here on somebody may.
    pub(crate) fn end(&self, group: GroupId) {
        self.under_way.lock().remove(&group);
    }
}
