//! Groups with damage on this disk, and their repairs.
//!
//! Not here: the repair itself (`repair`).

use copal_volume::group::GroupId;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering},
};
use tokio::sync::Notify;

/// Damaged groups of this disk.
#[derive(Default)]
pub(crate) struct DamagedGroups {
    reported: Mutex<BTreeSet<GroupId>>,
    repairing: Mutex<BTreeSet<GroupId>>,
    /// Repairs of a group since the process began.
    generations: Mutex<BTreeMap<GroupId, u64>>,
    /// Repairs of all groups since the process began.
    repairs: AtomicU64,
    /// Comparisons with another member, and those of them that found missing files.
    pub(crate) compared: AtomicU64,
    pub(crate) differing: AtomicU64,
    now: Notify,
}

impl DamagedGroups {
    /// Reports damage in a group; wakes the repair.
    pub(crate) fn report(&self, group: GroupId) {
        self.reported.lock().insert(group);
        self.now.notify_one();
    }

    /// Reports damage again without waking the repair: it is retried with the next round.
    pub(crate) fn retry_later(&self, group: GroupId) {
        self.reported.lock().insert(group);
    }

    /// Takes the groups reported since the last call.
    pub(crate) fn take(&self) -> BTreeSet<GroupId> {
        std::mem::take(&mut *self.reported.lock())
    }

    /// Returns when damage is reported.
    pub(crate) async fn wait(&self) {
        self.now.notified().await;
    }

    /// Whether the group is being repaired, or is about to be. Meanwhile this member cannot become in sync, and is no
    /// donor.
    pub(crate) fn is_repairing(&self, group: GroupId) -> bool {
        self.repairing.lock().contains(&group)
    }

    /// Number of repairs of a group. A comparison counts only if the number is unchanged since its begin.
    pub(crate) fn generation(&self, group: GroupId) -> u64 {
        self.generations.lock().get(&group).copied().unwrap_or_default()
    }

    /// Announces a repair, which begins if another member is in sync. From now on this member is no donor, and cannot
    /// become in sync in the group.
    pub(crate) fn announce_repair(&self, group: GroupId) {
        self.repairing.lock().insert(group);
    }

    /// Begins a repair: from now on this member cannot become in sync in the group.
    pub(crate) fn begin_repair(&self, group: GroupId) {
        self.repairing.lock().insert(group);
        *self.generations.lock().entry(group).or_default() += 1;
        self.repairs.fetch_add(1, Ordering::AcqRel);
    }

    /// Number of repairs that have begun on this disk. While it stays the same, no repair drops rows.
    pub(crate) fn repairs(&self) -> u64 {
        self.repairs.load(Ordering::Acquire)
    }

    /// Ends a repair, also one that was only announced.
    pub(crate) fn end_repair(&self, group: GroupId) {
        self.repairing.lock().remove(&group);
    }
}
